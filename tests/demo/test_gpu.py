# SPDX-License-Identifier: Apache-2.0
"""The demo on a GPU: which device it takes, what it runs there, and what its report says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import job, memory_samples

from commensal.demo import gpu, plots, recording, report
from commensal.demo.conductor import Conductor, device_uses, obeyed
from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    Measurement,
    figures_of,
    machine,
    overlap,
)
from commensal.demo.gpu import Gpu, choose, look, usable
from commensal.demo.live import Pace
from commensal.demo.plan import FULL, GPU_FULL, GPU_LEAST_FREE, LimitChange, plan_for
from commensal.demo.processes import Daemon, DemoError
from commensal.demo.runs import DeviceUse, Mode
from commensal.demo.series import gaps_of
from commensal.demo.view import PlainView

CARD = Gpu("A card", 80 << 30, 70 << 30, "13.0", "2.11.0+cu130")


@pytest.fixture(autouse=True)
def with_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commensal be installed with CUDA for the PyTorch of `CARD`."""
    (tmp_path / "libcommensal_torch_cuda-2.11.so").touch()
    monkeypatch.setattr(gpu, "LIBRARIES", tmp_path)


@pytest.fixture
def on_gpu(measurement: Measurement) -> Measurement:
    """The recorded run as if it had been one on a GPU."""
    windows = []
    for window in measurement.windows:
        uses = tuple(DeviceUse(at, 10.0, 0.4, 0.3, 0.6, 0.5) for at in (0.2, 0.5, 99.0))
        shared = window.mode is Mode.COMMENSAL
        windows.append(replace(window, cpu=(), device=uses if shared else (), warm_up=3))
    plan = replace(measurement.plan, device="cuda", warm_up_steps=3)
    return replace(measurement, plan=plan, windows=tuple(windows), machine=machine(CARD))


# --- which device ---


def test_auto_takes_a_gpu_where_there_is_one_and_else_says_why_not() -> None:
    assert choose("auto", lambda: CARD) == (CARD, "")
    assert choose("auto", lambda: "no driver") == (None, "no driver")


def test_nobody_looks_for_a_gpu_where_the_cpu_is_asked_for() -> None:
    def never() -> Gpu:
        raise AssertionError

    assert choose("cpu", never) == (None, "")


def test_a_gpu_that_is_asked_for_and_is_not_there_is_an_error_with_the_reason() -> None:
    with pytest.raises(DemoError, match="no GPU to run on: no driver"):
        choose("cuda", lambda: "no driver")
    assert choose("cuda", lambda: CARD) == (CARD, "")


def test_another_device_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="device must be auto, cpu or cuda: tpu"):
        choose("tpu", lambda: CARD)


def test_a_gpu_without_room_or_without_our_allocator_is_none() -> None:
    assert usable(CARD) == CARD
    assert usable("no driver") == "no driver"
    full = replace(CARD, free_bytes=GPU_LEAST_FREE - (1 << 29))
    assert usable(full) == "A card has 8.5 GiB free, the demo needs 9 GiB"
    other = replace(CARD, torch="2.12.1")
    assert usable(other) == "commensal was installed without CUDA for PyTorch 2.12.1"


def said(code: str) -> Gpu | str:
    return look((sys.executable, "-c", code))


def test_what_the_child_says_is_taken_and_what_it_does_not_say_is_told() -> None:
    facts = "dict(name='A card', memory_bytes=1, free_bytes=1, cuda='13.0', torch='2.11.0')"
    assert said(f"import json; print('noise'); print(json.dumps({facts}))") == Gpu(
        "A card", 1, 1, "13.0", "2.11.0"
    )
    assert said('print(\'{"why": "no driver"}\')') == "no driver"
    assert said("raise RuntimeError('broken')") == "PyTorch did not say: RuntimeError: broken"
    assert said("raise SystemExit(3)") == "PyTorch did not say: exit code 3"


def test_a_child_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE_SECONDS", 0.2)
    assert said("import time; time.sleep(600)") == "PyTorch did not answer within 0.2 s"


# --- what runs there ---


class NoView(PlainView):
    def __init__(self) -> None:
        """Show nothing."""


def test_the_plan_for_a_gpu_keeps_what_is_promised() -> None:
    assert plan_for(None, "cuda") == plan_for(10_000, "cuda") == GPU_FULL
    assert GPU_FULL.on_gpu
    assert not FULL.on_gpu
    assert GPU_FULL.least_shrinks >= 3
    assert GPU_FULL.opportunistic_steps >= 200
    assert GPU_FULL.budget_bytes < GPU_LEAST_FREE
    high = max(change.max_bytes for change in GPU_FULL.limit_changes)
    assert GPU_FULL.opportunistic_memory.endswith(f":{high >> 20}MiB")


@pytest.mark.parametrize("seconds", [1, 60, 70, 120])
def test_a_shorter_run_on_a_gpu_is_not_judged(seconds: int) -> None:
    plan = plan_for(seconds, "cuda")
    assert (plan.judged, plan.rounds, plan.device) == (False, 1, "cuda")
    assert plan.guaranteed_options == GPU_FULL.guaranteed_options
    assert 0 < plan.double_at < plan.guaranteed_steps
    steps = [change.at_step for change in plan.limit_changes]
    assert 0 < steps[0] < steps[-1] < plan.opportunistic_steps
    assert 0 < Pace(plan).done(1, 0.5) < 1


def test_the_scripts_are_the_same_and_are_told_the_device(tmp_path: Path) -> None:
    for plan, device in ((GPU_FULL, True), (FULL, False)):
        scripts = Conductor(plan, NoView(), tmp_path)._scripts(Mode.COMMENSAL)
        names = [Path(scripts[name][0]).name for name in (GUARANTEED, OPPORTUNISTIC)]
        assert names == ["digits_cnn.py", "char_transformer.py"]
        assert all(("--device" in script) is device for script in scripts.values())


def test_jobs_on_a_gpu_get_its_memory_and_the_coordinator_divides_it(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, 1 << 30, on_gpu=True)
    assert daemon.environment()["COMMENSAL_GPU_MEMORY"] == "elastic"
    assert "COMMENSAL_GPU_MEMORY" not in Daemon(tmp_path, 1 << 30).environment()


def test_a_limit_waits_until_the_one_before_it_is_obeyed() -> None:
    above, within = memory_samples([224, 100])
    low = LimitChange(10, 150 << 20)
    assert obeyed(None, above)
    assert obeyed(low, None)
    assert not obeyed(low, above)
    assert obeyed(low, within)


def test_the_use_of_a_gpu_is_kept_once_it_is_known() -> None:
    shares = {"guaranteed_share": 0.5, "opportunistic_share": 0.2, "oracle_share": 0.4}
    known = {"kind": "gpu", "use": {**shares, "efficiency": 0.5, "seconds": 9.5}}
    unknown = {"kind": "gpu", "use": {**dict.fromkeys(shares), "efficiency": None, "seconds": 0.0}}
    host = {"kind": "host", "use": known["use"]}
    status = {"devices": [host, known, unknown]}
    assert device_uses(7.0, status) == [DeviceUse(7.0, 9.5, 0.5, 0.2, 0.4, 0.5)]


# --- what is said of it ---


def test_first_steps_that_load_kernels_do_not_count(on_gpu: Measurement) -> None:
    plain = figures_of(replace(on_gpu, plan=FULL))
    window = on_gpu.of(Mode.OPPORTUNISTIC_ALONE)[0]
    steps = window.jobs[OPPORTUNISTIC].steps
    late = 10.0  # the first step took so much longer
    first = replace(steps[0], seconds=steps[0].seconds + late)
    slow = replace(window.jobs[OPPORTUNISTIC], steps=(first, *steps[1:]))
    windows = tuple(
        replace(w, jobs={OPPORTUNISTIC: slow}) if w.mode is window.mode else w
        for w in on_gpu.windows
    )
    slowly = figures_of(replace(on_gpu, windows=windows))
    assert slowly.commensal.harvest == pytest.approx(plain.commensal.harvest)
    counted = tuple(replace(w, warm_up=0) for w in windows)
    assert figures_of(replace(on_gpu, windows=counted)).commensal.harvest > 2


def test_a_job_that_never_got_warm_is_named(on_gpu: Measurement) -> None:
    window = on_gpu.of(Mode.COMMENSAL)[0]
    short = replace(window, jobs={**window.jobs, GUARANTEED: job(20, count=3)})
    with pytest.raises(ValueError, match=r"a job of a window never got warm \(commensal\)"):
        overlap(short)


def test_the_use_is_that_of_the_time_that_both_jobs_ran(on_gpu: Measurement) -> None:
    figures = figures_of(on_gpu)
    assert figures.device_use is not None
    assert figures.device_use.time == 0.5
    assert figures.as_json()["device_use"]["efficiency"] == 0.5
    assert figures.as_json()["machine"]["gpu"] == "A card"


def test_on_the_cpu_nothing_of_it_is_told(measurement: Measurement) -> None:
    told = figures_of(measurement).as_json()
    assert "device_use" not in told
    assert "gpu" not in machine()


def test_the_opportunistic_job_is_drawn_by_its_own_steps(on_gpu: Measurement) -> None:
    gaps = gaps_of(on_gpu, Mode.DEFAULT, 2.5)
    assert gaps is not None
    assert gaps.used.mean() == pytest.approx(0.5, abs=0.02)  # steps of 100 ms, alone 50
    drawn = plots.plots_of(on_gpu)["gaps"][0].traces[-1]
    assert drawn["name"] == "opportunistic job's speed"
    assert "of its speed alone" in drawn["hovertemplate"]


def test_the_report_names_the_gpu_its_memory_and_its_time(
    on_gpu: Measurement, tmp_path: Path
) -> None:
    text = report.write(tmp_path, on_gpu, figures_of(on_gpu)).read_text()
    assert "A card" in text
    assert "80.0 GiB" in text
    assert "guaranteed 40 %, opportunistic 30 % of 60 % to be had" in text
    assert "by its own steps" in text
    assert "as the kernel counts it" not in text
    assert (tmp_path / "sharing.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_on_a_gpu_is_kept_whole(on_gpu: Measurement, tmp_path: Path) -> None:
    kept = replace(on_gpu, plan=replace(GPU_FULL, rounds=1))
    recording.save(tmp_path / "run", kept)
    assert recording.load(tmp_path / "run") == kept
