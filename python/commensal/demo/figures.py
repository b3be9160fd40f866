# SPDX-License-Identifier: Apache-2.0
"""From what the windows recorded to the figures of the demo, and the checks that it must pass."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from commensal._report.quiet import Verdict
from commensal.demo.gpu import Gpu
from commensal.demo.plan import DemoPlan, MiB
from commensal.demo.runs import DeviceUse, JobRecord, Mode, Step, WindowRecord
from commensal.demo.statistics import PhaseTimes, harvest, slowdown, slowdown_interval

__all__ = [
    "GUARANTEED",
    "OPPORTUNISTIC",
    "Figures",
    "Measurement",
    "check",
    "figures_of",
    "machine",
]

GUARANTEED = "guaranteed"
OPPORTUNISTIC = "opportunistic"
ALONE = {GUARANTEED: Mode.GUARANTEED_ALONE, OPPORTUNISTIC: Mode.OPPORTUNISTIC_ALONE}
MOST_TRACKER_ERROR = 0.25
TRACKED_STEPS = 32  # the tracker's median is over so many steps


@dataclass(frozen=True)
class Measurement:
    """Everything that one run of the demo recorded."""

    plan: DemoPlan
    windows: tuple[WindowRecord, ...]
    verdicts: tuple[Verdict, ...]
    judged: bool
    notes: tuple[str, ...]
    machine: Mapping[str, Any]

    def of(self, mode: Mode) -> list[WindowRecord]:
        return [window for window in self.windows if window.mode is mode]

    def alone(self, job: str, number: int = 0) -> JobRecord:
        """Return a job's run alone in a round.

        Raises:
            ValueError: there is none.
        """
        for window in self.of(ALONE[job]):
            if window.round == number:
                return window.jobs[job]
        raise ValueError(f"round {number} has no window {ALONE[job].value}")


@dataclass(frozen=True)
class Sharing:
    """How both jobs fared while they shared, over all rounds."""

    slowdown: float
    slowdown_interval: tuple[float, float]
    slowdown_rounds: tuple[float, ...]
    period_slowdown: float
    harvest: float
    harvest_rounds: tuple[float, ...]
    p99_ratio: float


@dataclass(frozen=True)
class TrackerCheck:
    """Our step tracker beside the script's own clock."""

    job: str
    steps: int
    tracked_steps: int
    median_seconds: float
    tracked_median_seconds: float

    @property
    def agrees(self) -> bool:
        error = abs(self.tracked_median_seconds - self.median_seconds)
        return (
            abs(self.tracked_steps - self.steps) <= 1
            and error <= MOST_TRACKER_ERROR * self.median_seconds
        )


@dataclass(frozen=True)
class Figures:
    """What the demo reports."""

    default: Sharing
    commensal: Sharing
    bytes_moved: int
    bytes_ahead: int
    shrinks: int
    growths: int
    longest_pause_seconds: float
    bit_identical: bool
    compared_steps: Mapping[str, int]
    trackers: tuple[TrackerCheck, ...]
    busy_share: float
    alone_step_seconds: Mapping[str, float]
    judged: bool
    notes: tuple[str, ...]
    machine: Mapping[str, Any]
    device_use: DeviceUse | None = None  # of a GPU, while both jobs ran

    def headline(self) -> str:
        """Say it in one sentence."""
        same = "identical to the last bit" if self.bit_identical else "DIFFERENT from alone"
        return (
            f"Under commensal the guaranteed job's steps took {percent(self.commensal.slowdown)}"
            f" than alone; with default sharing, {percent(self.default.slowdown)}."
            f" The opportunistic job trained at {self.commensal.harvest * 100:.0f} % of its speed"
            f" alone while {self.bytes_moved / MiB:.0f} MiB of its live memory moved;"
            f" live shrinks: {self.shrinks}. Results: {same}."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON object."""

        def side(name: str, sharing: Sharing) -> tuple[dict[str, Any], dict[str, Any]]:
            low, high = sharing.slowdown_interval
            guaranteed = {
                f"slowdown_{name}": sharing.slowdown,
                f"slowdown_{name}_interval": [low, high],
                f"slowdown_{name}_rounds": list(sharing.slowdown_rounds),
                f"slowdown_{name}_with_waits": sharing.period_slowdown,
                f"p99_ratio_{name}": sharing.p99_ratio,
            }
            opportunistic = {
                f"harvest_{name}": sharing.harvest,
                f"harvest_{name}_rounds": list(sharing.harvest_rounds),
            }
            return guaranteed, opportunistic

        default, commensal = side("default", self.default), side("commensal", self.commensal)
        return {
            "schema": 1,
            "guaranteed": {
                **default[0],
                **commensal[0],
                "busy_share": self.busy_share,
                "alone_step_seconds": self.alone_step_seconds[GUARANTEED],
            },
            "opportunistic": {
                **default[1],
                **commensal[1],
                "bytes_moved": self.bytes_moved,
                "bytes_moved_ahead": self.bytes_ahead,
                "shrinks": self.shrinks,
                "growths": self.growths,
                "longest_pause_seconds": self.longest_pause_seconds,
                "alone_step_seconds": self.alone_step_seconds[OPPORTUNISTIC],
            },
            "bit_identical": self.bit_identical,
            "compared_steps": dict(self.compared_steps),
            "step_tracker": [
                {**asdict(tracker), "agrees": tracker.agrees} for tracker in self.trackers
            ],
            **({"device_use": asdict(self.device_use)} if self.device_use else {}),
            "judged": self.judged,
            "notes": list(self.notes),
            "machine": dict(self.machine),
        }


def percent(slowdown_value: float) -> str:
    """Say a slowdown: "2.1 % longer"."""
    how = "longer" if slowdown_value >= 0 else "less"
    digits = 1 if abs(slowdown_value) < 1 else 0
    return f"{abs(slowdown_value) * 100:.{digits}f} % {how}"


def machine(gpu: Gpu | None = None) -> dict[str, Any]:
    """Describe where the figures come from."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    versions = {}
    for package in ("commensal", "torch", "numpy", "scikit-learn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    device: dict[str, Any] = {}
    if gpu is not None:
        device = {"gpu": gpu.name, "gpu_memory_bytes": gpu.memory_bytes, "cuda": gpu.cuda}
    return {
        **device,
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory_kib * 1024,
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
    }


def overlap(window: WindowRecord) -> tuple[float, float]:
    """Return from when to when every job of a window was stepping, and warm.

    Raises:
        ValueError: they never did at the same time.
    """
    if any(len(job.steps) <= window.warm_up for job in window.jobs.values()):
        raise ValueError(f"a job of a window never got warm ({window.mode.value})")
    begin = max(job.steps[window.warm_up :][0].begin for job in window.jobs.values())
    end = min(job.steps[-1].end for job in window.jobs.values())
    if end <= begin:
        raise ValueError(f"the jobs of a window never ran together ({window.mode.value})")
    return begin, end


def within(steps: Sequence[Step], begin: float, end: float) -> list[Step]:
    return [step for step in steps if step.begin >= begin and step.end <= end]


def settled(job: JobRecord) -> list[Step]:
    """Return the steps whose time counts: the first ones of each batch size warm up."""
    counted: list[Step] = []
    last_batch, seen = 0, 0
    for step in job.steps:
        seen = seen + 1 if step.batch == last_batch else 1
        last_batch = step.batch
        if seen > 3:
            counted.append(step)
    return counted


def phases(alone: Sequence[Step], shared: Sequence[Step], *, waits: bool) -> list[PhaseTimes]:
    """Pair the steps of both sides by batch size."""

    def times(steps: Sequence[Step], batch: int) -> list[float]:
        return [s.seconds if waits else s.busy_seconds for s in steps if s.batch == batch]

    return [
        PhaseTimes(times(alone, batch), times(shared, batch))
        for batch in sorted({step.batch for step in alone})
    ]


def alone_rate(job: JobRecord, warm_up: int = 0) -> float:
    """Return steps a second, from the first that is warm to the last."""
    warm = job.steps[warm_up:]
    return len(warm) / (warm[-1].end - warm[0].begin)


def counted_steps(job: JobRecord, begin: float, end: float) -> float:
    """Return the steps done in a stretch, with the parts of steps that reach over its ends."""
    total = 0.0
    for step in job.steps:
        inside = min(step.end, end) - max(step.begin, begin)
        if inside > 0 and step.seconds > 0:
            total += inside / step.seconds
    return total


def sharing_of(measurement: Measurement, mode: Mode) -> Sharing:
    """Compare the windows of a mode with those alone, round by round."""
    rounds: list[tuple[float, float, float]] = []
    pooled: tuple[list[Step], list[Step]] = ([], [])
    for window in measurement.of(mode):
        begin, end = overlap(window)
        alone = settled(measurement.alone(GUARANTEED, window.round))
        shared = within(settled(window.jobs[GUARANTEED]), begin, end)
        pooled[0].extend(alone)
        pooled[1].extend(shared)
        rounds.append(
            (
                slowdown(phases(alone, shared, waits=False)),
                slowdown(phases(alone, shared, waits=True)),
                harvest(
                    counted_steps(window.jobs[OPPORTUNISTIC], begin, end),
                    end - begin,
                    alone_rate(measurement.alone(OPPORTUNISTIC, window.round), window.warm_up),
                ),
            )
        )
    interval = slowdown_interval(phases(*pooled, waits=False))
    return Sharing(
        slowdown=median(r[0] for r in rounds),
        slowdown_interval=(interval.low, interval.high),
        slowdown_rounds=tuple(r[0] for r in rounds),
        period_slowdown=median(r[1] for r in rounds),
        harvest=median(r[2] for r in rounds),
        harvest_rounds=tuple(r[2] for r in rounds),
        p99_ratio=tail_ratio(*pooled),
    )


def typical_seconds(steps: Sequence[Step]) -> dict[int, float]:
    """Return the median step time of each batch size."""
    return {
        batch: median(s.busy_seconds for s in steps if s.batch == batch)
        for batch in {s.batch for s in steps}
    }


def tail_ratio(alone: Sequence[Step], shared: Sequence[Step]) -> float:
    """Return the 99th percentile of shared steps over the median alone, phases put together."""
    typical = typical_seconds(alone)
    ratios = sorted(s.busy_seconds / typical[s.batch] for s in shared if s.batch in typical)
    return ratios[min(len(ratios) - 1, int(0.99 * len(ratios)))]


def live_moves(window: WindowRecord) -> tuple[int, int]:
    """Count the shrinks and the growths that moved live memory.

    A shrink is a lowered limit after which live bytes left the device before the limit rose
    again; a growth is a raised one after which live bytes came back before it was lowered again.
    """
    samples = [sample for sample in window.memory if sample.job == OPPORTUNISTIC]
    shrinks = growths = 0
    awaited = ""
    for before, after in itertools.pairwise(samples):
        limits = (before.limit_bytes, after.limit_bytes)
        if limits[0] is not None and limits[1] is not None and limits[0] != limits[1]:
            awaited = "out" if limits[1] < limits[0] else "in"
        if awaited == "out" and after.moved_out_bytes_total > before.moved_out_bytes_total:
            shrinks, awaited = shrinks + 1, ""
        elif awaited == "in" and after.moved_in_bytes_total > before.moved_in_bytes_total:
            growths, awaited = growths + 1, ""
    return shrinks, growths


def tracker_checks(measurement: Measurement) -> tuple[TrackerCheck, ...]:
    """Compare our step tracker with the clocks of the scripts, in the last shared window."""
    checks = []
    for name, job in measurement.of(Mode.COMMENSAL)[-1].jobs.items():
        tracked = job.stats.get("step", {})
        tracked_median = float(tracked.get("median_seconds") or 0.0)
        periods = [b.end - a.end for a, b in zip(job.steps, job.steps[1:], strict=False)]
        checks.append(
            TrackerCheck(
                job=name,
                steps=len(job.steps),
                tracked_steps=int(tracked.get("number", 0)),
                median_seconds=nearest_median(periods, tracked_median),
                tracked_median_seconds=tracked_median,
            )
        )
    return tuple(checks)


def nearest_median(periods: Sequence[float], tracked: float) -> float:
    """Return the median of the last periods that comes nearest to the tracker's.

    The tracker's window may begin a step earlier or later than ours, and where steps are of two
    kinds, as on a busy machine, one more of a kind moves the median from one to the other.
    """
    windows = (periods[-TRACKED_STEPS + by :] for by in (-1, 0, 1))
    return min((median(window) for window in windows), key=lambda found: abs(found - tracked))


def device_use(window: WindowRecord) -> DeviceUse | None:
    """Return the newest that was told of a GPU's time while both jobs ran."""
    begin, end = overlap(window)
    return next((use for use in reversed(window.device) if begin <= use.time <= end), None)


def figures_of(measurement: Measurement) -> Figures:
    """Compute everything that is reported."""
    shared = measurement.of(Mode.COMMENSAL)
    memory = [window.jobs[OPPORTUNISTIC].stats.get("memory", {}) for window in shared]
    turns = [live_moves(window) for window in shared]
    alone = {name: measurement.alone(name) for name in ALONE}
    guaranteed = alone[GUARANTEED].steps
    return Figures(
        default=sharing_of(measurement, Mode.DEFAULT),
        commensal=sharing_of(measurement, Mode.COMMENSAL),
        bytes_moved=min(int(stats.get("moved_bytes_total", 0)) for stats in memory),
        bytes_ahead=min(int(stats.get("moved_ahead_bytes_total", 0)) for stats in memory),
        shrinks=min(turn[0] for turn in turns),
        growths=min(turn[1] for turn in turns),
        longest_pause_seconds=max(float(m.get("longest_pause_seconds", 0.0)) for m in memory),
        bit_identical=same_results(measurement),
        compared_steps={name: len(job.steps) for name, job in alone.items()},
        trackers=tracker_checks(measurement),
        busy_share=sum(s.busy_seconds for s in guaranteed) / sum(s.seconds for s in guaranteed),
        alone_step_seconds={
            name: median(s.busy_seconds for s in job.steps) for name, job in alone.items()
        },
        judged=measurement.judged,
        notes=measurement.notes,
        machine=measurement.machine,
        device_use=device_use(shared[-1]),
    )


def same_results(measurement: Measurement) -> bool:
    """Tell whether each job under commensal gave the losses and parameters that it gives alone.

    Under default sharing the opportunistic job is ended early, and the guaranteed one doubles its
    batch earlier: there the losses so far, or up to the doubling, count.
    """
    for name in ALONE:
        reference = measurement.alone(name)
        losses = [step.loss for step in reference.steps]
        for window in measurement.windows:
            if (run := window.jobs.get(name)) is None:
                continue
            found = [step.loss for step in run.steps]
            if window.mode is Mode.DEFAULT:
                if name == GUARANTEED:
                    found = found[: measurement.plan.default_double_at]
                if found != losses[: len(found)]:
                    return False
            elif found != losses or (run.sha256 and run.sha256 != reference.sha256):
                return False
    return True


def check(measurement: Measurement, figures: Figures) -> list[str]:
    """Return why the demo failed; nothing if it did not. Times are reported, not checked."""
    plan = measurement.plan
    failures = []
    if not figures.bit_identical:
        failures.append("losses or parameters differ from the run alone")
    if figures.shrinks < plan.least_shrinks:
        failures.append(f"live shrinks: {figures.shrinks} < {plan.least_shrinks}")
    if figures.bytes_moved < plan.least_moved_bytes:
        failures.append(
            f"moved bytes: {figures.bytes_moved / MiB:.0f} MiB <"
            f" {plan.least_moved_bytes / MiB:.0f} MiB"
        )
    failures.extend(
        f"the step tracker of the {tracker.job} job counted {tracker.tracked_steps} steps with a"
        f" median of {tracker.tracked_median_seconds * 1e3:.1f} ms, the script {tracker.steps} with"
        f" {tracker.median_seconds * 1e3:.1f} ms"
        for tracker in figures.trackers
        if not tracker.agrees
    )
    return failures
