# SPDX-License-Identifier: Apache-2.0
"""What the pictures show: plain numbers from what was recorded, for whatever draws them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from commensal.demo.figures import (
    ALONE,
    GUARANTEED,
    OPPORTUNISTIC,
    Measurement,
    overlap,
    settled,
    typical_seconds,
    within,
)
from commensal.demo.plan import MiB
from commensal.demo.runs import CpuSample, JobRecord, MemorySample, Mode, Step, WindowRecord

__all__ = [
    "Curve",
    "Gaps",
    "Mark",
    "Memory",
    "Span",
    "gaps_of",
    "memory_of",
    "step_curves",
]

Values = NDArray[np.float64]
BIN_SECONDS = 0.008


@dataclass(frozen=True)
class Curve:
    """Step times of a job in one way to run it, relative to its median alone; sorted."""

    name: str  # "alone", "default" or "commensal"
    label: str
    values: Values

    @property
    def shares(self) -> Values:
        """The share of the steps that took at most so long."""
        return np.arange(1, len(self.values) + 1) / len(self.values)


@dataclass(frozen=True)
class Mark:
    """Something that happened, `job` being whom it concerned."""

    seconds: float
    text: str
    job: str


@dataclass(frozen=True)
class Memory:
    """A shared window; seconds since the first step, MiB. `limit_reasons` goes with `limit`.

    `ahead_*`: where live memory had moved out between safe points, and what was left in memory.
    """

    seconds: Values
    device: Values
    slower: Values
    limit: Values
    limit_reasons: tuple[str, ...]
    guaranteed_seconds: Values
    guaranteed_device: Values
    ahead_seconds: Values
    ahead_device: Values
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Span:
    """A stretch of the guaranteed job, in milliseconds; `what` it did: "computes" or "waits"."""

    begin: float
    length: float
    what: str


@dataclass(frozen=True)
class Gaps:
    """Milliseconds since the excerpt began; `used` is the opportunistic job's share, 0..1."""

    length: float
    spans: tuple[Span, ...]
    times: Values
    used: Values


def step_curves(measurement: Measurement, job: str) -> list[Curve]:
    """Return a job's step times alone, with default sharing and under commensal."""
    curves = [
        Curve("alone", "alone", relative_times(measurement, ALONE[job], job)),
        Curve("default", "default sharing", relative_times(measurement, Mode.DEFAULT, job)),
        Curve("commensal", "commensal", relative_times(measurement, Mode.COMMENSAL, job)),
    ]
    return [curve for curve in curves if len(curve.values)]


def relative_times(measurement: Measurement, mode: Mode, job: str) -> Values:
    values: list[float] = []
    for window in measurement.of(mode):
        typical = typical_seconds(settled(measurement.alone(job, window.round)))
        steps: Sequence[Step] = settled(window.jobs[job])
        if len(window.jobs) > 1:
            steps = within(steps, *overlap(window))
        values.extend(s.busy_seconds / typical[s.batch] for s in steps if s.batch in typical)
    return np.sort(np.array(values))


def memory_of(measurement: Measurement) -> Memory:
    """Return where memory was in the last window under commensal."""
    window = measurement.of(Mode.COMMENSAL)[-1]
    origin = min(job.steps[0].begin for job in window.jobs.values())
    own = [s for s in window.memory if s.job == OPPORTUNISTIC]
    other = [s for s in window.memory if s.job == GUARANTEED]
    # A limit above the budget limits nothing that could be drawn.
    most = measurement.plan.budget_bytes
    ahead = [
        after
        for before, after in itertools.pairwise(own)
        if after.moved_ahead_bytes_total > before.moved_ahead_bytes_total
    ]
    return Memory(
        seconds=since(origin, own),
        device=np.array([s.device_bytes for s in own]) / MiB,
        slower=np.array([s.host_bytes for s in own]) / MiB,
        limit=np.array([min(s.limit_bytes or most, most) for s in own]) / MiB,
        limit_reasons=tuple(reason_at(window, s.time) for s in own),
        guaranteed_seconds=since(origin, other),
        guaranteed_device=np.array([s.device_bytes for s in other]) / MiB,
        ahead_seconds=since(origin, ahead),
        ahead_device=np.array([s.device_bytes for s in ahead]) / MiB,
        marks=marks_of(window, origin),
    )


def since(origin: float, samples: Sequence[MemorySample]) -> Values:
    return np.array([s.time - origin for s in samples])


def reason_at(window: WindowRecord, time: float) -> str:
    """Return why the opportunistic job's limit was what it was at a time."""
    reason = ""
    for event in window.events:
        if event.what == "grant" and event.job == OPPORTUNISTIC and event.time <= time:
            reason = event.reason
    return reason


def marks_of(window: WindowRecord, origin: float) -> tuple[Mark, ...]:
    guaranteed = window.jobs[GUARANTEED]
    marks = [
        Mark(e.time - origin, "batch doubles", GUARANTEED)
        for e in guaranteed.events
        if e.what == "double"
    ]
    marks.append(Mark(guaranteed.steps[-1].end - origin, "guaranteed ends", GUARANTEED))
    marks += [
        Mark(e.time - origin, f"set {e.value / MiB:.0f}", OPPORTUNISTIC)
        for e in window.events
        if e.what == "set"
    ]
    return tuple(sorted(marks, key=lambda mark: mark.seconds))


def gaps_of(measurement: Measurement, mode: Mode, seconds: float) -> Gaps | None:
    """Return who ran when in the middle of the last window's sampled time; None: too short.

    What the opportunistic job used of the cores, or, on a GPU, how fast its steps were of its speed
    alone: no clock tells at such a scale who has a GPU.
    """
    window = measurement.of(mode)[-1]
    begin, end = overlap(window)
    if measurement.plan.on_gpu:
        times, used = step_rate(measurement, window)
    elif window.cpu:
        begin, end = max(begin, window.cpu[0].time), min(end, window.cpu[-1].time)
        times, used = cpu_rate([s for s in window.cpu if s.job == OPPORTUNISTIC])
        used = used / int(measurement.machine.get("cores", 1))
    else:
        return None
    if end - begin < 0.2:
        return None
    middle, half = (begin + end) / 2, min(seconds, end - begin) / 2
    begin, end = middle - half, middle + half
    shown = (times >= begin) & (times <= end)
    return Gaps(
        length=(end - begin) * 1e3,
        spans=tuple(spans_of(window.jobs[GUARANTEED], begin, end)),
        times=(times[shown] - begin) * 1e3,
        used=np.clip(used[shown], 0, 1),
    )


def spans_of(job: JobRecord, begin: float, end: float) -> list[Span]:
    stretches: list[tuple[float, float, str]] = []
    for step in job.steps:
        computing = step.begin + step.wait_seconds
        stretches += [(step.begin, computing, "waits"), (computing, step.end, "computes")]
    # Evaluations and checkpoints are work, too.
    stretches += [(e.time - e.value, e.time, "computes") for e in job.events if e.value]
    clipped = [(max(a, begin), min(b, end), what) for a, b, what in stretches]
    return [Span((a - begin) * 1e3, (b - a) * 1e3, what) for a, b, what in clipped if b > a]


def cpu_rate(samples: Sequence[CpuSample]) -> tuple[Values, Values]:
    """Return the middle of each bin and the cores used in it."""
    times = np.array([s.time for s in samples])
    used = np.array([s.cpu_seconds for s in samples])
    edges = np.arange(times[0], times[-1], BIN_SECONDS)
    at_edges = np.interp(edges, times, used)
    return (edges[:-1] + edges[1:]) / 2, np.diff(at_edges) / BIN_SECONDS


def step_rate(measurement: Measurement, window: WindowRecord) -> tuple[Values, Values]:
    """Return the middle of each bin and the opportunistic job's speed in it, of that alone."""
    typical = typical_seconds(settled(measurement.alone(OPPORTUNISTIC, window.round)))
    steps = window.jobs[OPPORTUNISTIC].steps[window.warm_up :]
    # What is done by the end of each step, in seconds of the job alone.
    times = np.array([steps[0].begin, *(step.end for step in steps)])
    done = np.cumsum([0.0, *(typical.get(step.batch, 0.0) for step in steps)])
    edges = np.arange(times[0], times[-1], BIN_SECONDS)
    return (edges[:-1] + edges[1:]) / 2, np.diff(np.interp(edges, times, done)) / BIN_SECONDS
