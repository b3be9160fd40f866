# SPDX-License-Identifier: Apache-2.0
"""What the stage `scripts` of tests/gpu/run_all.sh says of runs alone and under commensal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import scripts_stage
from scripts_stage import Ran, compare
from stage_report import StageReport

pytestmark = pytest.mark.tool("tests/gpu")

FIGURES = [
    "resnet.step_ratio.guaranteed",
    "resnet.step_ratio.opportunistic",
    "resnet.reserved_peak_ratio",
    "trainer.step_ratio.guaranteed",
    "trainer.step_ratio.opportunistic",
    "trainer.reserved_peak_ratio",
]


def ran(losses: list[str], second: float = 0.5, live: int = 7) -> Ran:
    told = {
        "losses": losses,
        "seconds": [9.0, 9.0, 9.0, second, second, second],
        "reserved_peak_bytes": 1 << 20,
        "live": live,
    }
    return Ran(0, told, "")


class Stage:
    """A report, and runs that are made up by who starts them."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.report = StageReport("scripts", out, FIGURES)
        self.runs: dict[str, Ran] = {}
        monkeypatch.setattr(scripts_stage, "run", self._run)

    def _run(self, _name: str, _folder: Path, launcher: list[str], _deadline: float) -> Ran:
        return self.runs[launcher[2].strip("-") if launcher else "alone"]

    def told(self, name: str = "resnet", seconds: float = 60.0) -> dict[str, Any]:
        compare(self.report, name, self.out, time.monotonic() + seconds)
        found: dict[str, Any] = json.loads((self.out / "scripts.json").read_text())
        return found


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def failed(told: dict[str, Any]) -> list[str]:
    return [name for name, check in told["checks"].items() if not check["held"]]


def test_same_losses_pass_and_steps_are_compared_past_the_first(stage: Stage) -> None:
    stage.runs = {
        "alone": ran(["a", "b"]),
        "guaranteed": ran(["a", "b"], second=0.5),
        "opportunistic": ran(["a", "b"], second=1.0),
    }
    told = stage.told()
    assert failed(told) == []
    assert told["figures"]["resnet.step_ratio.guaranteed"]["value"] == 1.0
    assert told["figures"]["resnet.step_ratio.opportunistic"]["value"] == 2.0
    assert told["figures"]["resnet.reserved_peak_ratio"]["value"] == 1.0


@pytest.mark.parametrize("losses", [["a", "c"], ["a"], ["a", "b", "c"]])
def test_other_losses_fail(stage: Stage, losses: list[str]) -> None:
    stage.runs = {
        "alone": ran(["a", "b"]),
        "guaranteed": ran(["a", "b"]),
        "opportunistic": ran(losses),
    }
    assert failed(stage.told()) == ["resnet: losses of the opportunistic job are those alone"]


def test_no_losses_at_all_are_no_equal_ones(stage: Stage) -> None:
    stage.runs = dict.fromkeys(("alone", "guaranteed", "opportunistic"), ran([]))
    assert len(failed(stage.told())) == 2


def test_a_job_that_fails_is_named_with_its_last_words(stage: Stage) -> None:
    stage.runs = {
        "alone": ran(["a"]),
        "guaranteed": ran(["a"]),
        "opportunistic": Ran(1, {}, "RuntimeError: no"),
    }
    told = stage.told()
    assert failed(told) == ["resnet: opportunistic job ran"]
    assert told["checks"]["resnet: opportunistic job ran"]["detail"] == "RuntimeError: no"
    assert "the job failed" in told["figures"]["resnet.reserved_peak_ratio"]["reason"]


def test_blocks_that_stay_fail(stage: Stage) -> None:
    stage.runs = {
        "alone": ran(["a"]),
        "guaranteed": ran(["a"]),
        "opportunistic": ran(["a"], live=8),
    }
    assert failed(stage.told()) == ["resnet: as many blocks live at the end as alone"]


def test_what_does_not_run_alone_fails_unless_its_package_is_missing(stage: Stage) -> None:
    stage.runs = {"alone": Ran(1, {}, "ModuleNotFoundError: No module named 'transformers'")}
    told = stage.told("trainer")
    assert failed(told) == []
    assert "no package transformers" in told["figures"]["trainer.reserved_peak_ratio"]["reason"]
    told = stage.told("resnet")
    assert failed(told) == ["resnet: runs alone"]


def test_what_there_is_no_time_for_says_so(stage: Stage) -> None:
    told = stage.told(seconds=-1.0)
    reasons = {told["figures"][name]["reason"] for name in FIGURES[:3]}
    assert reasons == {"not run: the stage's time was up"}


def test_a_script_that_the_end_of_the_time_cuts_is_left_and_does_not_fail(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.runs = {"alone": Ran(124, {}, "not done in time: ")}
    told = stage.told()
    assert failed(told) == []
    assert told["left"] == FIGURES[:3]
    stage.report = StageReport("scripts", stage.out, FIGURES)
    stage.runs = dict.fromkeys(("alone", "guaranteed", "opportunistic"), ran(["a"]))
    clock = iter([0.0, 20.0, 20.0])  # 20 s alone, then 45 s are left; then 5 s
    monkeypatch.setattr(scripts_stage.time, "monotonic", lambda: next(clock, 60.0))
    compare(stage.report, "resnet", stage.out, 65.0)
    told = json.loads((stage.out / "scripts.json").read_text())
    assert failed(told) == []
    assert told["figures"]["resnet.step_ratio.guaranteed"]["value"] == 1.0
    assert told["left"] == FIGURES[1:3]


def test_steps_beside_other_stages_are_not_timed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.runs = dict.fromkeys(("alone", "guaranteed", "opportunistic"), ran(["a"]))
    monkeypatch.setenv("STAGE_BESIDE", "1")
    told = stage.told()
    assert failed(told) == []
    reason = told["figures"]["resnet.step_ratio.guaranteed"]["reason"]
    assert reason == "not run: other stages ran beside it"
    assert told["figures"]["resnet.reserved_peak_ratio"]["value"] == 1.0


def test_a_script_that_passed_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran_now: list[str] = []

    def compare_now(report: StageReport, name: str, _folder: Path, deadline: float) -> None:
        ran_now.append(name)
        report.check(f"{name}: runs alone", name != "ddp" or deadline > time.monotonic() + 100.0)
        for kind in ("step_ratio.guaranteed", "step_ratio.opportunistic", "reserved_peak_ratio"):
            report.value(f"{name}.{kind}", 1.0, "x")

    monkeypatch.setattr(scripts_stage, "compare", compare_now)
    monkeypatch.setattr(scripts_stage, "coordinator", lambda _: nullcontext())
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    monkeypatch.setenv("STAGE_SECONDS", "100")
    arguments = ["--out", str(tmp_path), "--only", "resnet", "--only", "ddp"]
    assert scripts_stage.main(arguments) == 1
    monkeypatch.setenv("STAGE_SECONDS", "300")
    assert scripts_stage.main(arguments) == 0
    assert ran_now == ["resnet", "ddp", "ddp"]


def test_a_run_is_ended_at_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Callable[[str], Path]
) -> None:
    monkeypatch.setattr(scripts_stage, "HERE", scripted("import time; time.sleep(600)"))
    done = scripts_stage.run("resnet", tmp_path, [], time.monotonic() - 5.0)
    assert done.code == 124
    assert "not done in time" in done.tail


def test_a_run_tells_what_its_script_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Callable[[str], Path]
) -> None:
    body = "import sys; open(sys.argv[sys.argv.index('--result') + 1], 'w').write('{\"live\": 3}')"
    monkeypatch.setattr(scripts_stage, "HERE", scripted(body))
    done = scripts_stage.run("resnet", tmp_path, [], time.monotonic() + 60.0)
    assert (done.code, done.told) == (0, {"live": 3})


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[str], Path]:
    """Return a folder whose workloads.py is the text that is given."""

    def make(body: str) -> Path:
        (tmp_path / "workloads.py").write_text(body)
        return tmp_path

    return make
