# SPDX-License-Identifier: Apache-2.0
"""The live view: only where there is room, quiet, and true to what the jobs do."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from recorded import memory_samples
from rich.console import Console

from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Measurement, settled, typical_seconds
from commensal.demo.live import LiveView, Pace, speed, view_for
from commensal.demo.plan import FULL, plan_for
from commensal.demo.runs import Mode, Step, WindowRecord
from commensal.demo.view import JobNow, PlainView

COLOUR = re.compile(r"\x1b\[[0-9;]*(?:3[0-7]|9[0-7]|38;)[0-9;]*m")
FRAME = "\x1b[H"  # the cursor goes home before each frame


def console(width: int = 80, height: int = 24, **more: str) -> Console:
    """Return a terminal that keeps what is written to it."""
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard",
        legacy_windows=False,
        _environ={"TERM": "xterm", **more},
    )


def written(terminal: Console) -> str:
    assert isinstance(terminal.file, io.StringIO)
    return terminal.file.getvalue()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replay(
    view: LiveView, clock: Clock, run: Measurement, mode: Mode, until: float = 0.9
) -> WindowRecord:
    """Let the view see a recorded window up to a part of the time in which both jobs run."""
    for window in run.windows:
        if len(window.jobs) == 1:
            for name, job in window.jobs.items():
                view.learn(name, typical_seconds(settled(job)))
    window = run.of(mode)[-1]
    clock.now = min(job.steps[0].begin for job in window.jobs.values())
    end = clock.now + until * (min(j.steps[-1].end for j in window.jobs.values()) - clock.now)
    view.window(mode, window.round)
    period = max(0.2, (end - clock.now) / 50)
    while clock.now < end:
        clock.now += period
        view.update(dict(jobs_at(window, clock.now)))
    return window


def jobs_at(window: WindowRecord, now: float) -> Iterator[tuple[str, JobNow]]:
    for name, job in window.jobs.items():
        seen = [s for s in window.memory if s.job == name and s.time <= now]
        done = [s for s in job.steps if s.end <= now]
        yield name, JobNow(len(job.steps), done, seen[-1] if seen else None)


def last_frame(terminal: Console) -> list[str]:
    frame = written(terminal).split(FRAME)[-1].partition("\x1b[?1049l")[0]
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", frame).replace("\r", "").split("\n")


def test_the_live_view_needs_a_terminal_with_room() -> None:
    assert isinstance(view_for(console(), FULL), LiveView)
    assert isinstance(view_for(console(width=79), FULL), PlainView)
    assert isinstance(view_for(console(height=23), FULL), PlainView)
    assert isinstance(view_for(console(TERM="dumb"), FULL), PlainView)
    pipe = Console(file=io.StringIO(), width=120, height=50, _environ={})
    assert isinstance(view_for(pipe, FULL), PlainView)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (132, 43)])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_frame_fills_the_terminal_and_no_more(
    real_run: Measurement, mode: Mode, width: int, height: int
) -> None:
    terminal, clock = console(width, height), Clock()
    with LiveView(terminal, real_run.plan, clock) as view:
        replay(view, clock, real_run, mode)
        for number in range(40):
            view.say(f"decision {number}, because of a reason that is longer than a line is wide")
        view.update({})
        clock.now += 1
        replay(view, clock, real_run, mode)
    lines = last_frame(terminal)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}
    text = "\n".join(lines)
    assert "both under commensal" in text or mode is not Mode.COMMENSAL
    assert "decision 39" in text


def test_one_bar_falls_and_the_other_does_not_move(measurement: Measurement) -> None:
    shown = {}
    for mode in (Mode.DEFAULT, Mode.COMMENSAL):
        terminal, clock = console(), Clock()
        with LiveView(terminal, measurement.plan, clock) as view:
            replay(view, clock, measurement, mode, until=0.8)
        speeds = next(line for line in last_frame(terminal) if "speed" in line)
        shown[mode] = [int(found) for found in re.findall(r"(\d+) %", speeds)]
    assert shown[Mode.DEFAULT] == [50, 50]
    assert shown[Mode.COMMENSAL] == [99, 62]


def test_memory_by_tier_shrinks_and_grows(measurement: Measurement) -> None:
    terminal, clock = console(), Clock()
    steps = measurement.of(Mode.COMMENSAL)[0].jobs[OPPORTUNISTIC].steps[:1]
    bars = []
    with LiveView(terminal, measurement.plan, clock) as view:
        view.window(Mode.COMMENSAL, 0)
        for sample in memory_samples([224, 72, 224]):
            clock.now += 1
            view.update({OPPORTUNISTIC: JobNow(20, steps, sample)})
            line = next(text for text in last_frame(terminal) if "memory" in text)
            bars.append((line.count("█"), line.count("▒")))
    assert bars[0] == bars[2]
    assert bars[0][1] == 0
    assert bars[1][0] < bars[0][0] / 2
    assert bars[1][1] > 5
    assert "device 200, slower 0, limit 224 MiB" in "\n".join(last_frame(terminal))


def test_it_draws_at_most_twice_a_second(measurement: Measurement) -> None:
    terminal, clock = console(), Clock()
    with LiveView(terminal, measurement.plan, clock) as view:
        view.window(Mode.COMMENSAL, 0)
        before = written(terminal).count(FRAME)
        for _ in range(100):
            clock.now += 0.1
            view.update(dict(jobs_at(measurement.of(Mode.COMMENSAL)[0], clock.now)))
            view.say("something")
        frames = written(terminal).count(FRAME) - before
    assert 10 <= frames <= 20


def test_no_color_is_respected(measurement: Measurement) -> None:
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        terminal, clock = console(**more), Clock()
        with LiveView(terminal, measurement.plan, clock) as view:
            replay(view, clock, measurement, Mode.COMMENSAL)
            view.warn("a warning")
        assert bool(COLOUR.search(written(terminal))) == coloured


def test_the_terminal_is_left_as_it_was_and_warnings_stay(measurement: Measurement) -> None:
    terminal = console()
    with LiveView(terminal, measurement.plan) as view:
        view.warn("both: others used 9 % of the machine; once more")
    before, _, after = written(terminal).partition("\x1b[?1049l")
    assert "\x1b[?1049h" in before
    assert "once more" in after


def test_a_pipe_gets_a_line_for_each_window(measurement: Measurement) -> None:
    pipe = Console(file=io.StringIO(), width=80, _environ={})
    with view_for(pipe, measurement.plan) as view:
        view.window(Mode.GUARANTEED_ALONE, 0)
        view.update({GUARANTEED: JobNow(200, ())})
        view.say("a decision")
        view.warn("guaranteed job alone: steal was 2 %; once more")
        view.window(Mode.GUARANTEED_ALONE, 0)
        view.window_done()
        view.window(Mode.OPPORTUNISTIC_ALONE, 0)
    assert written(pipe).splitlines() == [
        "round 1, window 1 of 8: guaranteed job alone",
        "guaranteed job alone: steal was 2 %; once more",
        "round 1, window 1 of 8: guaranteed job alone",
        "round 1, window 2 of 8: opportunistic job alone",
    ]


def test_a_small_terminal_gets_bars(measurement: Measurement) -> None:
    terminal = console(60, 12)
    job = JobNow(200, (), memory_samples([72])[0])
    with view_for(terminal, measurement.plan) as view:
        view.window(Mode.COMMENSAL, 0)
        view.update({GUARANTEED: JobNow(200, ()), OPPORTUNISTIC: job})
    assert "opportunistic" in written(terminal)
    assert "0/200" in written(terminal)


def test_speed_is_relative_to_alone_at_the_same_batch() -> None:
    steps = [Step(i * 0.2, 0.2, 0.1, 24, "x") for i in range(10)]
    steps += [Step(2.0 + i * 0.3, 0.3, 0.1, 48, "x") for i in range(3)]
    typical = {24: 0.1, 48: 0.1}
    assert speed(steps[:10], typical, now=1.9) == pytest.approx(1.0)
    assert speed(steps[10:], typical, now=2.7) == pytest.approx(0.5)
    assert speed(steps, {}, now=2.7) is None
    assert speed([], typical, now=2.7) is None
    assert speed(steps[:9], {24: 0.1}, now=1.6 + 0.1 + 1.0 + 0.4) == pytest.approx(0.25)


def test_the_share_of_the_run_only_grows_and_ends_at_one() -> None:
    for plan in (FULL, plan_for(1), replace(FULL, rounds=5)):
        pace, windows = Pace(plan), plan.rounds * len(Mode)
        done = [pace.done(n, share) for n in range(windows) for share in (0.0, 0.5)]
        assert done == sorted(done)
        assert done[0] == 0.0
        assert pace.done(windows, 0.0) == pytest.approx(1.0)
