# SPDX-License-Identifier: Apache-2.0
"""The small inputs of tests/cases: each is run as it is, and says itself whether its outcome is
right. Those of a few seconds run always, the others in `./scripts/soak`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from world import COMMENSAL

CASES = Path(__file__).parents[1] / "cases"
DEADLINE = 900.0  # of one case; the longest takes four minutes
CHANGES_SECONDS = "8"  # for how long the limit of a tNN_*.py falls and rises
SKIPPED = 77

QUICK = frozenset(
    {
        "02-closed-stderr.sh",
        "07-long-runtime-path.sh",
        "25-pid1-children.sh",
        "51-tmp-full.sh",
        "61-auto-starves-guaranteed.sh",
    }
)
# Started by another case.
PARTS = frozenset({"t19_rlimits.py", "t45_plain.py", "t55_mlockall.py"})
NOT_YET_RIGHT = {
    "08-invalid-utf8-name.sh": "such a job runs unmanaged",
    "40-simulator-traces.sh": "quoted and padded headings are refused",
    "50-spill-disk-full.sh": "the job ends by an OutOfMemoryError",
    "53-hf-lightning.sh": "the OutOfMemoryError is not recognised",
    "55-mlock.sh": "whole address ranges become resident",
    "60-control-characters-in-name.sh": "they reach the terminal",
}


def _all_cases() -> list[str]:
    names = (file.name for file in CASES.iterdir())
    return sorted(name for name in names if re.fullmatch(r"\d\d\w?-.+\.sh|t\d\d_.+\.py", name))


TO_RUN = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.soak])
    for name in _all_cases()
    if name not in PARTS and name not in NOT_YET_RIGHT
]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder in which a case makes its own; what is left running there is killed."""
    folder = Path(tempfile.mkdtemp(prefix="cases-", dir="/tmp"))
    yield folder
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME", "").startswith(f"{folder}/"):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", TO_RUN)
def test_the_outcome_is_right(name: str, scratch: Path) -> None:
    command = [str(CASES / name)]
    if name.endswith(".py"):
        command = [str(CASES / "live.sh"), *command, CHANGES_SECONDS]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
    environ = {"COMMENSAL": str(COMMENSAL), "PY": sys.executable, "TMPDIR": str(scratch)}
    with subprocess.Popen(
        command,
        env=clean | environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="backslashreplace",
    ) as case:
        try:
            said, _ = case.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            case.send_signal(signal.SIGTERM)  # it then ends what it has started
            said, _ = case.communicate(timeout=60)
            pytest.fail(f"longer than {DEADLINE:.0f} s\n{said}")
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    if case.returncode == SKIPPED:
        pytest.skip(last)
    assert case.returncode == 0, said
    assert last.startswith("OK: "), said


def test_the_table_has_every_case() -> None:
    told = (CASES / "README.md").read_text(encoding="utf-8")
    assert [name for name in _all_cases() if f"`{name}`" not in told] == []
    not_yet = re.findall(r"^\| `(.+?)`", told.partition("## Not yet right")[2], re.MULTILINE)
    assert sorted(not_yet) == sorted(NOT_YET_RIGHT)
    assert {*QUICK, *PARTS, *NOT_YET_RIGHT} <= set(_all_cases())
