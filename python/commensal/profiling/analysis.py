# SPDX-License-Identifier: Apache-2.0
"""Turns samples of a job that ran alone into what it leaves: busy share, gaps by phase.

Pure: no clock, no files. docs/stats.md explains every figure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from commensal.profiling.job_page import Activity

__all__ = [
    "EDGES_SECONDS",
    "LEAST_GAP_SECONDS",
    "PHASES",
    "Analysis",
    "Gap",
    "Phase",
    "Samples",
    "TooLittle",
    "analyse",
    "oracle_share",
]

Phase = Literal["data", "pause", "step"]
PHASES: tuple[Phase, ...] = ("data", "pause", "step")

WARM_UP_STEPS = 3
LEAST_STEPS = 20
LEAST_SECONDS = 2.0
# Shorter gaps are no use: the gate opens late and closes early.
LEAST_GAP_SECONDS = 0.005
# A job that uses less of one core than this leaves the device idle (its heartbeat goes on).
IDLE_CORES = 0.1
# A stretch between two steps that takes so much longer than a step is no step.
PAUSE_FACTOR = 3.0
PAUSE_SECONDS = 0.05
# The first bin holds the gaps that are too short, the last one has no end.
EDGES_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_NS = 1e9


def _numbers() -> array[int]:
    return array("q")


@dataclass
class Samples:
    """What was read every few milliseconds; all of equal length, in the order of time."""

    times_ns: array[int] = field(default_factory=_numbers)  # CLOCK_MONOTONIC
    cpu_ns: array[int] = field(default_factory=_numbers)  # used so far by the job's processes
    activity: array[int] = field(default_factory=_numbers)  # of its page
    steps: array[int] = field(default_factory=_numbers)  # done so far

    def __len__(self) -> int:
        return len(self.times_ns)

    def add(self, time_ns: int, cpu_ns: int, activity: int, steps: int) -> None:
        self.times_ns.append(time_ns)
        self.cpu_ns.append(cpu_ns)
        self.activity.append(activity)
        self.steps.append(steps)

    def part(self, begin: int, end: int) -> Samples:
        """Return the samples from `begin` up to `end`, inclusive."""
        taken = slice(begin, end + 1)
        return Samples(
            self.times_ns[taken], self.cpu_ns[taken], self.activity[taken], self.steps[taken]
        )


class TooLittle(Exception):
    """There is not enough to judge; the message says what was there and what is needed."""


@dataclass(frozen=True)
class Gap:
    """A stretch in which the job left the device idle."""

    begin_seconds: float  # after the window's begin
    seconds: float
    idle_core_seconds: float
    phase: Phase


@dataclass(frozen=True)
class Analysis:
    """A job alone, from the end of its warm-up to its last step. Shares are of all cores' time.

    busy + gaps + short gaps + beside = 1.
    """

    cores: float
    start_seconds: float  # from its launch to the window's begin
    seconds: float
    steps: int
    step_median_seconds: float
    busy_share: float
    gap_share: dict[Phase, float]  # gaps that are long enough, by what the job did meanwhile
    short_gap_share: float
    beside_share: float  # cores that it left idle while it computed
    gaps: tuple[Gap, ...]
    window: Samples

    @property
    def gaps_share(self) -> float:
        return sum(self.gap_share.values())

    @property
    def gaps_per_second(self) -> float:
        return sum(gap.seconds >= LEAST_GAP_SECONDS for gap in self.gaps) / self.seconds

    def histogram(self, phase: Phase) -> tuple[list[int], list[float]]:
        """Return the number of a phase's gaps in each bin, and their share of all cores' time."""
        counts, shares = [0] * len(EDGES_SECONDS), [0.0] * len(EDGES_SECONDS)
        for gap in self.gaps:
            if gap.phase == phase:
                bin_ = max(i for i, edge in enumerate(EDGES_SECONDS) if gap.seconds >= edge)
                counts[bin_] += 1
                shares[bin_] += gap.idle_core_seconds / (self.cores * self.seconds)
        return counts, shares


def oracle_share(busy_share: float, slowdown: float) -> float:
    """Return the most that a neighbour can use of a device while a job loses `slowdown`.

    In the time that one step takes alone, times 1 + slowdown, the job needs `busy_share` of the
    device for its own work; the rest is free: 1 - u / (1 + s). A bound: switching between the two
    costs something, and gaps may be too short to use.
    """
    return min(1.0, max(0.0, 1.0 - busy_share / (1.0 + slowdown)))


def analyse(samples: Samples, cores: float, launched_ns: int) -> Analysis:
    """Look at the samples between the end of the warm-up and the last step.

    @raises TooLittle.
    """
    ends = [i for i in range(1, len(samples)) if samples.steps[i] > samples.steps[i - 1]]
    if not ends:
        raise TooLittle("no step was seen: steps are seen where an optimizer runs")
    first = next((i for i in ends if samples.steps[i] > WARM_UP_STEPS), None)
    if first is None or first == ends[-1]:
        raise TooLittle(
            f"only {samples.steps[ends[-1]]} steps were seen, needs {LEAST_STEPS + WARM_UP_STEPS}"
        )
    window = samples.part(first, ends[-1])
    seconds = (window.times_ns[-1] - window.times_ns[0]) / _NS
    steps = window.steps[-1] - window.steps[0]
    if steps < LEAST_STEPS or seconds < LEAST_SECONDS:
        raise TooLittle(
            f"only {steps} steps in {seconds:.1f} s after the warm-up, needs {LEAST_STEPS} steps "
            f"and {LEAST_SECONDS:.0f} s"
        )
    borders = [i - first for i in ends if i >= first]
    lengths = _step_lengths(window, borders)
    gaps = tuple(_gaps(window, cores, _pauses(window, borders, median(lengths))))
    whole = cores * seconds
    busy = min(1.0, (window.cpu_ns[-1] - window.cpu_ns[0]) / _NS / whole)
    long = [gap for gap in gaps if gap.seconds >= LEAST_GAP_SECONDS]
    gap_share: dict[Phase, float] = {
        phase: sum(gap.idle_core_seconds for gap in long if gap.phase == phase) / whole
        for phase in PHASES
    }
    short = sum(gap.idle_core_seconds for gap in gaps) / whole - sum(gap_share.values())
    return Analysis(
        cores=cores,
        start_seconds=(window.times_ns[0] - launched_ns) / _NS,
        seconds=seconds,
        steps=steps,
        step_median_seconds=median(lengths),
        busy_share=busy,
        gap_share=gap_share,
        short_gap_share=max(0.0, short),
        beside_share=max(0.0, 1.0 - busy - sum(gap_share.values()) - short),
        gaps=gaps,
        window=window,
    )


def _step_lengths(window: Samples, borders: Sequence[int]) -> list[float]:
    """Return the length of each step in seconds; several between two samples share theirs."""
    lengths: list[float] = []
    for begin, end in pairwise(borders):
        done = window.steps[end] - window.steps[begin]
        lengths += [(window.times_ns[end] - window.times_ns[begin]) / _NS / done] * done
    return lengths


def _pauses(window: Samples, borders: Sequence[int], typical: float) -> list[bool]:
    """Tell for each interval whether it lies in a stretch that is too long for a step."""
    least = PAUSE_FACTOR * typical + PAUSE_SECONDS
    pauses = [False] * len(window)
    for begin, end in pairwise(borders):
        if (window.times_ns[end] - window.times_ns[begin]) / _NS > least:
            pauses[begin:end] = [True] * (end - begin)
    return pauses


def _gaps(window: Samples, cores: float, pauses: Sequence[bool]) -> list[Gap]:
    """Join neighbouring intervals in which the job left the device idle."""
    gaps: list[Gap] = []
    begin, waited, used = -1, 0, 0
    times = window.times_ns

    def close(end: int) -> None:
        length = times[end] - times[begin]
        phase: Phase = "pause" if any(pauses[begin:end]) else "step"
        if 2 * waited >= length:
            phase = "data"
        idle = max(0.0, cores * length - used) / _NS
        gaps.append(Gap((times[begin] - times[0]) / _NS, length / _NS, idle, phase))

    for i in range(len(window) - 1):
        length = times[i + 1] - times[i]
        cpu = window.cpu_ns[i + 1] - window.cpu_ns[i]
        if cpu < IDLE_CORES * length:
            if begin < 0:
                begin, waited, used = i, 0, 0
            waited += length if window.activity[i] == Activity.WAITING else 0
            used += cpu
        elif begin >= 0:
            close(i)
            begin = -1
    if begin >= 0:
        close(len(window) - 1)
    return gaps
