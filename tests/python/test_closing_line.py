# SPDX-License-Identifier: Apache-2.0
"""The closing lines of the test scripts: what failed is named, what died counts as failed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JUNIT = """<testsuites><testsuite>
<testcase classname="pool" name="splits"/>
<testcase classname="pool" name="merges"><failure message="Failed"/>
<system-out>{output}</system-out></testcase>
<testcase classname="gpu" name="maps"><skipped message="no card"/></testcase>
</testsuite></testsuites>
"""


def summary(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/summary.py"), *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_failed_case_is_named_with_the_end_of_its_output(tmp_path: Path) -> None:
    results = tmp_path / "cpp.xml"
    results.write_text(JUNIT.format(output="\n".join(f"line {i}" for i in range(100))))
    told = summary(results)
    assert told.returncode == 1
    assert told.stdout == "1 passed, 1 failed, 1 skipped\n"
    first, *rest = told.stderr.splitlines()
    assert first == "failed: pool merges"
    assert rest[-1] == "  | line 99"
    assert "  | line 0" not in rest


def program(tmp_path: Path, cases: str, ended: str = "") -> Path:
    """Return the results of a run of one program, with those of its cases."""
    results = tmp_path / "cpp.xml"
    results.write_text(
        f'<testsuites><testcase classname="pool.0" name="pool.0">{ended}</testcase></testsuites>'
    )
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "pool.0.xml").write_text(f"<testsuites>{cases}</testsuites>")
    return results


FAILED = '<failure message="Failed">1 != 2</failure>'


def test_cases_of_one_process_count_one_by_one(tmp_path: Path) -> None:
    cases = (
        '<testcase classname="Pool" name="Splits" status="run"/>'
        f'<testcase classname="Pool" name="Merges" status="run">{FAILED}</testcase>'
        '<testcase classname="Pool" name="Sorts" status="notrun"/>'
        '<testcase classname="Pool" name="Maps" status="run"><skipped message=""/></testcase>'
    )
    told = summary(program(tmp_path, cases, ended=FAILED))
    assert told.stdout == "1 passed, 1 failed, 1 skipped\n"
    assert told.stderr == "failed: Pool Merges\n  | 1 != 2\n"


def test_a_process_that_fails_beside_its_cases_is_one_more(tmp_path: Path) -> None:
    told = summary(program(tmp_path, '<testcase classname="Pool" name="Splits"/>', ended=FAILED))
    assert told.stdout == "1 passed, 1 failed, 0 skipped\n"
    assert told.stderr.startswith("failed: pool.0 pool.0\n")


def test_a_process_that_died_before_it_told_its_cases_is_a_failure(tmp_path: Path) -> None:
    results = program(tmp_path, "", ended=FAILED)
    (tmp_path / "cases" / "pool.0.xml").unlink()
    assert summary(results).stdout == "0 passed, 1 failed, 0 skipped\n"


def test_a_result_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    broken = tmp_path / "broken.xml"
    broken.write_text("<testsuites>")
    told = summary(broken, tmp_path / "none.xml")
    assert told.returncode == 1
    assert told.stdout == "0 passed, 2 failed, 0 skipped\n"
    assert str(broken) in told.stderr and "none.xml" in told.stderr


@pytest.mark.parametrize(
    ("test", "check", "closing"),
    [
        (
            "echo 3 passed, 0 failed, 1 skipped",
            "echo 2 passed, 0 failed",
            "5 passed, 0 failed, 1 skipped",
        ),
        (
            "echo failed: pool merges; echo '  | 1 != 2'; echo 2 passed, 1 failed; exit 1",
            "echo '== tsan-suites: FAILED, 3 s'; echo 1 passed, 1 failed; exit 1",
            "3 passed, 2 failed, 0 skipped",
        ),
        ("echo 3 passed, 0 failed, 0 skipped", "kill -9 $$", "3 passed, 1 failed, 0 skipped"),
        (
            "echo 3 passed, 0 failed, 0 skipped; exit 1",
            "echo 1 passed, 0 failed",
            "4 passed, 1 failed, 0 skipped",
        ),
    ],
)
def test_ci_adds_up_both_parts_and_repeats_what_failed(
    tmp_path: Path, test: str, check: str, closing: str
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "scripts").mkdir()
    for name, body in (("test", test), ("check", check)):
        script = tmp_path / "scripts" / name
        script.write_text(f"#!/usr/bin/env bash\n{body}\n")
        script.chmod(0o755)
    run = subprocess.run(
        [str(tmp_path / ".ci/run")], capture_output=True, text=True, timeout=60, check=False
    )
    lines = run.stdout.splitlines()
    assert lines[-1] == closing
    assert run.returncode == (0 if ", 0 failed" in closing else 1)
    if "merges" in test:
        assert lines[-4:-1] == ["failed: pool merges", "  | 1 != 2", "== tsan-suites: FAILED, 3 s"]
