# SPDX-License-Identifier: Apache-2.0
"""What a stage of tests/gpu/run_all.sh writes, and when it fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
from stage_report import StageReport, spread

pytestmark = pytest.mark.tool("tests/gpu")

ROOT = Path(__file__).resolve().parents[2]


def told(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "stage.json").read_text())
    return found


def test_a_whole_stage_has_its_figures_and_a_check(tmp_path: Path) -> None:
    report = StageReport("stage", tmp_path, ["time", "bytes", "peer"])
    report.machine(card="a card")
    report.value("time", [3.0, 1.0, 2.0], "ms", most=2.0)
    report.value("bytes", 7, "B", least=8, allocations=3)
    report.not_run("peer", "not in the bundle")
    report.check("same", True, "17 of 17")
    assert report.finish() == 0
    found = told(tmp_path)
    assert found["whole"] is True
    assert found["machine"] == {"card": "a card"}
    assert found["figures"]["time"]["n"] == 3
    assert found["figures"]["time"]["p50"] == 2.0
    assert found["figures"]["time"]["target"] == {"most": 2.0, "of": "p50", "met": True}
    assert found["figures"]["bytes"]["target"]["met"] is False
    assert found["figures"]["bytes"]["allocations"] == 3
    assert found["figures"]["peer"] == {"reason": "not run: not in the bundle"}
    assert found["checks"]["same"] == {"held": True, "detail": "17 of 17"}


@pytest.mark.parametrize(
    ("check", "figure", "complaint"),
    [
        (None, True, "a stage without a check"),
        (False, True, "check failed: same"),
        (True, False, "figure missing, without a reason: time"),
    ],
)
def test_what_is_missing_fails_the_stage(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    check: bool | None,
    figure: bool,
    complaint: str,
) -> None:
    report = StageReport("stage", tmp_path, ["time"])
    if check is not None:
        report.check("same", check)
    if figure:
        report.value("time", 1.0, "ms")
    assert report.finish() == 1
    assert f"stage: {complaint}" in capsys.readouterr().err
    assert told(tmp_path)["complaints"] == [complaint]
    assert told(tmp_path)["whole"] is False


def test_what_is_cut_off_keeps_its_results(tmp_path: Path) -> None:
    report = StageReport("stage", tmp_path, ["time", "never"])
    report.value("time", 1.0, "ms")
    assert told(tmp_path)["figures"]["time"]["value"] == 1.0
    assert told(tmp_path)["whole"] is False


def test_reasons_of_dry_runs_are_for_dry_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = StageReport("stage", tmp_path, ["time"])
    with pytest.raises(ValueError, match="'not simulated' is for dry runs"):
        report.not_simulated("time", "kernels do nothing")
    monkeypatch.setenv("COMMENSAL_SIMULATED_RUN", "1")
    report = StageReport("stage", tmp_path, ["time"])
    report.not_simulated("time", "kernels do nothing")
    assert told(tmp_path)["simulated"] is True
    assert told(tmp_path)["figures"]["time"]["reason"] == "not simulated: kernels do nothing"


def test_a_name_is_announced_and_used_once(tmp_path: Path) -> None:
    report = StageReport("stage", tmp_path, ["time"])
    with pytest.raises(ValueError, match="'tmie' is not among the figures"):
        report.value("tmie", 1.0, "ms")
    report.value("time", 1.0, "ms")
    with pytest.raises(ValueError, match="'time' is recorded twice"):
        report.value("time", 1.0, "ms")
    report.check("same", True)
    with pytest.raises(ValueError, match="'same' is made twice"):
        report.check("same", True)


def test_a_spread_of_one_sample_is_that_sample() -> None:
    assert spread([4.0]) == {"n": 1, "min": 4.0, "p10": 4.0, "p50": 4.0, "p90": 4.0, "max": 4.0}


def test_every_suite_for_a_gpu_is_in_a_stage() -> None:
    """What CMake gives the label `gpu` is compiled by `stages.sh`, which does not know CMake."""
    ctest = shutil.which("ctest")
    built = list((ROOT / "build").glob("*/tests/allocator/peer_access_test"))
    if ctest is None or not built:
        pytest.skip("no ctest, or no build folder with the suites")
    build = max(built, key=lambda suite: suite.stat().st_mtime).parents[2]
    told = subprocess.run(
        [ctest, "--show-only=json-v1", "-L", "^gpu$"],
        cwd=build,
        capture_output=True,
        check=True,
        timeout=120,
    )
    suites = {Path(test["command"][0]).name for test in json.loads(told.stdout)["tests"]}
    staged = set(re.findall(r"\b\w+_test\b", (ROOT / "tests" / "gpu" / "stages.sh").read_text()))
    assert "peer_access_test" in suites
    assert suites <= staged
