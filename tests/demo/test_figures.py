# SPDX-License-Identifier: Apache-2.0
"""The demo's figures and self-checks, from a recorded measurement."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import memory_samples

from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    Measurement,
    check,
    figures_of,
    live_moves,
    nearest_median,
    overlap,
)
from commensal.demo.runs import JobRecord, Mode, WindowRecord, read_log
from commensal.demo.series import memory_of


def test_a_trackers_window_may_begin_a_step_earlier_or_later() -> None:
    periods = [9.0] * 20 + [0.1] * 16 + [0.3] * 16  # the last 32: as many of either kind
    assert nearest_median(periods, 0.3) == pytest.approx(0.3)  # the last 31
    assert nearest_median(periods, 0.1) == pytest.approx(0.2)
    assert nearest_median([1.0] * 50, 7.0) == 1.0


def test_the_figures_of_a_recorded_run(measurement: Measurement) -> None:
    figures = figures_of(measurement)
    assert figures.default.slowdown == pytest.approx(1.0)
    assert figures.default.period_slowdown == pytest.approx(0.4)
    assert figures.default.harvest == pytest.approx(0.5, rel=0.01)
    assert figures.commensal.slowdown == pytest.approx(0.01)
    assert figures.commensal.harvest == pytest.approx(50 / 80, rel=0.01)
    assert figures.busy_share == pytest.approx(0.4)
    assert figures.bit_identical
    assert figures.bytes_moved == 600 << 20
    assert figures.bytes_ahead == 100 << 20
    assert (figures.shrinks, figures.growths) == (3, 3)
    assert check(measurement, figures) == []


def test_the_json_has_the_documented_keys(measurement: Measurement) -> None:
    found = json.loads(json.dumps(figures_of(measurement).as_json()))
    assert found["guaranteed"].keys() >= {"slowdown_default", "slowdown_commensal"}
    assert found["opportunistic"].keys() >= {
        "harvest_default",
        "harvest_commensal",
        "bytes_moved",
        "shrinks",
    }
    assert found["bit_identical"] is True
    assert found["judged"] is True


def test_the_picture_marks_what_moved_while_the_job_ran(measurement: Measurement) -> None:
    memory = memory_of(measurement)
    assert len(memory.ahead_seconds) == len(memory.ahead_device) == 3, "once a shrink"
    assert set(memory.ahead_device) == {72.0}, "what was left in memory then"
    assert set(memory.ahead_seconds) <= set(memory.seconds)


def with_job(measurement: Measurement, mode: Mode, name: str, job: JobRecord) -> Measurement:
    """Return the measurement with one job's record exchanged."""

    def changed(window: WindowRecord) -> WindowRecord:
        return replace(window, jobs={**window.jobs, name: job}) if window.mode is mode else window

    return replace(measurement, windows=tuple(changed(window) for window in measurement.windows))


@pytest.mark.parametrize("name", [GUARANTEED, OPPORTUNISTIC])
def test_one_wrong_loss_fails_the_demo(measurement: Measurement, name: str) -> None:
    job = measurement.of(Mode.COMMENSAL)[0].jobs[name]
    steps = (*job.steps[:7], replace(job.steps[7], loss=(7.5).hex()), *job.steps[8:])
    broken = with_job(measurement, Mode.COMMENSAL, name, replace(job, steps=steps))
    figures = figures_of(broken)
    assert not figures.bit_identical
    assert "DIFFERENT" in figures.headline()
    assert "losses or parameters differ from the run alone" in check(broken, figures)


@pytest.mark.parametrize("name", [GUARANTEED, OPPORTUNISTIC])
def test_other_parameters_fail_the_demo(measurement: Measurement, name: str) -> None:
    job = measurement.of(Mode.COMMENSAL)[0].jobs[name]
    broken = with_job(measurement, Mode.COMMENSAL, name, replace(job, sha256="b"))
    assert not figures_of(broken).bit_identical


def test_missing_steps_fail_the_demo(measurement: Measurement) -> None:
    job = measurement.of(Mode.COMMENSAL)[0].jobs[GUARANTEED]
    broken = with_job(measurement, Mode.COMMENSAL, GUARANTEED, replace(job, steps=job.steps[:-1]))
    assert not figures_of(broken).bit_identical


def test_too_few_moves_fail_the_demo(measurement: Measurement) -> None:
    wanting = replace(measurement, plan=replace(measurement.plan, least_shrinks=4))
    assert check(wanting, figures_of(wanting)) == ["live shrinks: 3 < 4"]
    wanting = replace(measurement, plan=replace(measurement.plan, least_moved_bytes=700 << 20))
    assert check(wanting, figures_of(wanting)) == ["moved bytes: 600 MiB < 700 MiB"]


def test_a_step_tracker_that_disagrees_fails_the_demo(measurement: Measurement) -> None:
    job = measurement.of(Mode.COMMENSAL)[0].jobs[GUARANTEED]
    stats = {**job.stats, "step": {"number": 17, "median_seconds": 0.05}}
    wrong = with_job(measurement, Mode.COMMENSAL, GUARANTEED, replace(job, stats=stats))
    assert "counted 17 steps" in check(wrong, figures_of(wrong))[0]


def test_a_lowered_limit_that_moves_nothing_is_no_shrink(measurement: Measurement) -> None:
    window = measurement.of(Mode.COMMENSAL)[0]
    idle = replace(window, memory=memory_samples([224, 210, 224, 210, 224]))
    assert live_moves(idle) == (0, 0)
    busy = replace(window, memory=memory_samples([224, 150, 100, 224]))
    assert live_moves(busy) == (2, 1)


def test_overlap_is_where_both_step(measurement: Measurement) -> None:
    window = measurement.of(Mode.DEFAULT)[0]
    begin, end = overlap(window)
    assert (begin, end) == pytest.approx((0.0, 1.4))
    late = replace(
        window.jobs[OPPORTUNISTIC],
        steps=tuple(replace(s, end=s.end + 60) for s in window.jobs[OPPORTUNISTIC].steps),
    )
    with pytest.raises(ValueError, match="never ran together"):
        overlap(replace(window, jobs={**window.jobs, OPPORTUNISTIC: late}))


def test_a_line_still_being_written_is_left_out(tmp_path: Path) -> None:
    row = {"time": 1.0, "step": 0, "seconds": 0.5, "wait_seconds": 0.1, "batch": 4, "loss": "0x1p0"}
    log = tmp_path / "log"
    event = {"time": 2.0, "event": "evaluation", "seconds": 0.25}
    log.write_text(f'{json.dumps(row)}\n{json.dumps(event)}\n{{"time": 3.0, "st')
    with log.open() as reading:
        steps, events, position = read_log(reading)
    assert [step.busy_seconds for step in steps] == pytest.approx([0.4])
    assert [(event.what, event.value) for event in events] == [("evaluation", 0.25)]
    with log.open("a") as writing:
        writing.write('ep": 1, "seconds": 0.5, "wait_seconds": 0.0, "batch": 4, "loss": "0x1p1"}\n')
    with log.open() as reading:
        reading.seek(position)
        steps, events, _ = read_log(reading)
    assert [step.loss for step in steps] == ["0x1p1"]
    assert events == []
