# SPDX-License-Identifier: Apache-2.0
"""What the stage `demo` of tests/gpu/run_all.sh says of a run of the demo on a card."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))
import demo_stage
from demo_stage import FIGURES, RECORDING, TIMES, digits_of_bundle, hold, plan_within
from recorded import recorded_measurement
from stage_report import StageReport

from commensal.demo import recording
from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Measurement
from commensal.demo.gpu import Gpu
from commensal.demo.plan import GPU_FULL
from commensal.demo.runs import DeviceUse, JobRecord, Mode

pytestmark = pytest.mark.tool("tests/gpu", "python/commensal/demo")

CARD = Gpu("A card", 80 << 30, 70 << 30, "13.0", "2.11.0")


def on_a_card(devices: tuple[str, ...] = ("GPU-1",)) -> Measurement:
    """Return the recorded run as one of a plan on a card that it fulfils."""
    run = recorded_measurement()
    windows = []
    for window in run.windows:
        jobs = window.jobs
        if window.mode is Mode.COMMENSAL:
            jobs = {
                name: replace(record, stats={**record.stats, "devices": list(devices)})
                for name, record in jobs.items()
            }
        uses = (DeviceUse(0.5, 10.0, 0.4, 0.54, 0.6, 0.9),)
        windows.append(replace(window, jobs=jobs, cpu=(), device=uses))
    plan = replace(GPU_FULL, rounds=1, guaranteed_steps=20, opportunistic_steps=20)
    plan = replace(plan, warm_up_steps=0, least_shrinks=2, least_moved_bytes=256 << 20)
    return replace(run, plan=plan, windows=tuple(windows))


class Stage:
    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.report = StageReport("demo", out, FIGURES)
        self.child = (0, "")
        monkeypatch.setattr(demo_stage, "look", lambda: CARD)
        monkeypatch.setattr(demo_stage, "usable", lambda found: found)

    def holds(self, measured: Measurement | None) -> dict[str, Any]:
        def run(out: Path, _seconds: float) -> tuple[int, str]:
            if measured is not None:
                recording.save(out / RECORDING, measured)
            return self.child

        hold(self.report, self.out, 90.0, run)
        self.code = self.report.finish()
        told: dict[str, Any] = json.loads((self.out / "demo.json").read_text())
        return told


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def failed(told: dict[str, Any]) -> list[str]:
    return [name for name, check in told["checks"].items() if not check["held"]]


def test_a_good_run_has_its_figures_its_page_and_its_picture(stage: Stage) -> None:
    told = stage.holds(on_a_card())
    assert (stage.code, failed(told)) == (0, [])
    figures = told["figures"]
    assert set(figures) == set(FIGURES)
    assert figures["slowdown.commensal"]["value"] == pytest.approx(0.01)
    assert figures["slowdown.default"]["value"] == pytest.approx(1.0)
    assert figures["gpu_time.efficiency"]["target"] == {"least": 0.85, "of": "value", "met": True}
    assert figures["moved"]["value"] == 600 << 20
    assert (stage.out / "demo.html").read_text().startswith("<!doctype html>")
    assert (stage.out / "demo.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((stage.out / "demo_figures.json").read_text())["bit_identical"] is True


def broken(run: Measurement, name: str, **changes: object) -> Measurement:
    """Change a job's record under commensal."""
    windows = tuple(
        replace(w, jobs={**w.jobs, name: replace(w.jobs[name], **changes)})
        if w.mode is Mode.COMMENSAL
        else w
        for w in run.windows
    )
    return replace(run, windows=windows)


def test_other_losses_fail(stage: Stage) -> None:
    run = on_a_card()
    job: JobRecord = run.of(Mode.COMMENSAL)[0].jobs[GUARANTEED]
    other = (*job.steps[:-1], replace(job.steps[-1], loss="0x9p0"))
    told = stage.holds(broken(run, GUARANTEED, steps=other))
    assert failed(told) == ["losses and parameters are those alone, to the last bit"]


def test_memory_that_never_moved_fails(stage: Stage) -> None:
    run = on_a_card()
    still = tuple(replace(w, memory=()) for w in run.windows)
    told = stage.holds(replace(run, windows=still))
    assert failed(told) == ["live memory moved out and came back"]


def test_a_job_that_was_cut_off_fails(stage: Stage) -> None:
    run = on_a_card()
    told = stage.holds(replace(run, plan=replace(run.plan, opportunistic_steps=21)))
    assert failed(told) == ["the opportunistic job did all its steps under commensal"]


def test_jobs_that_did_not_share_the_gpu_fail(stage: Stage) -> None:
    told = stage.holds(on_a_card(devices=("host",)))
    assert failed(told) == [
        f"the {name} job's device is the GPU" for name in (GUARANTEED, OPPORTUNISTIC)
    ]


def test_jobs_that_never_met_have_no_figures_and_a_reason(stage: Stage) -> None:
    run = on_a_card()
    later = tuple(
        replace(step, end=step.end + 1e3)
        for step in run.of(Mode.COMMENSAL)[0].jobs[GUARANTEED].steps
    )
    told = stage.holds(broken(run, GUARANTEED, steps=later))
    assert failed(told) == ["both jobs trained at the same time"]
    assert all("reason" in told["figures"][name] for name in FIGURES)


def test_a_run_that_fails_or_hangs_is_told_with_its_last_words(stage: Stage) -> None:
    stage.child = (1, "CUDA error")
    told = stage.holds(None)
    assert failed(told) == ["it ran to its end"]
    assert told["checks"]["it ran to its end"]["detail"] == "CUDA error"
    assert stage.code == 1


def test_without_a_gpu_or_a_package_every_figure_says_why(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_stage, "PACKAGES", ("no_such_package",))
    told = stage.holds(None)
    assert stage.code == 0
    assert {told["figures"][name]["reason"] for name in FIGURES} == {
        "not run: no package no_such_package"
    }


def test_no_gpu_fails_the_stage(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_stage, "look", lambda: "no driver")
    assert failed(stage.holds(None)) == ["there is a GPU for the demo"]


def test_what_cannot_be_drawn_keeps_its_figures(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "commensal.demo.report", None)
    told = stage.holds(on_a_card())
    assert (stage.code, failed(told)) == (0, [])
    assert "not drawn: " in capsys.readouterr().out
    assert not (stage.out / "demo.html").exists()
    assert (stage.out / "demo_figures.json").exists()


def test_a_recording_is_drawn_later(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    recording.save(stage.out / RECORDING, on_a_card())
    assert demo_stage.main(["--out", str(stage.out), "--draw"]) == 0
    assert "drawn: demo.html, demo.png" in capsys.readouterr().out
    assert (stage.out / "demo.html").exists()


def test_the_digits_of_a_bundle_are_for_who_lacks_scikit_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data" / "digits.csv.gz"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setenv("BUNDLE", str(tmp_path))
    assert digits_of_bundle() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert digits_of_bundle() == file
    monkeypatch.delenv("BUNDLE")
    assert digits_of_bundle() is None


def test_a_dry_run_has_counts_and_no_times(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMENSAL_SIMULATED_RUN", "1")
    told = stage.holds(on_a_card())
    assert stage.code == 0
    reasons = {told["figures"][name]["reason"] for name in TIMES}
    assert reasons == {"not simulated: kernels do nothing on this driver"}
    assert told["figures"]["moved"]["value"] == 600 << 20
    assert plan_within(90.0).rounds == 1
    assert plan_within(90.0).budget_bytes < 512 << 20


def test_the_longer_the_stage_may_take_the_more_is_measured() -> None:
    short, long, whole = (plan_within(seconds) for seconds in (90.0, 180.0, 540.0))
    assert short.opportunistic_steps < long.opportunistic_steps
    assert (short.judged, long.judged, whole.judged) == (False, False, True)
    assert whole.rounds == GPU_FULL.rounds


def test_a_child_is_ended_at_the_end_of_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "stage.py"
    script.write_text("import time; print('begun', flush=True); time.sleep(600)")
    monkeypatch.setattr(demo_stage, "__file__", str(script))
    monkeypatch.setattr(demo_stage, "DRAWING_SECONDS", 0)
    code, words = demo_stage.run_child(tmp_path, 2.0)
    assert code == 124
    assert words.startswith("not done in time: ")
