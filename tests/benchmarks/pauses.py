# SPDX-License-Identifier: Apache-2.0
"""How long a training loop stands still when its memory limit falls and rises."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Bar, Bench, BenchmarkError, Result, Script

from allocator import find_program
from commensal.demo.processes import Daemon

MiB = 1 << 20
UNIT = 32 * MiB
JOB = "shrinking"
SHARES = (0.25, 0.5, 0.9)  # of its memory, taken away and given back
# An opportunistic job's memory comes back between its steps; a guaranteed one has all of it at the
# next step, and waits for that.
CLASSES = ("opportunistic", "guaranteed")
MOST_STEPS = 20
NO_LIMIT = 4096 * MiB

Row = dict[str, Any]  # what one step saw: workload.py


@dataclass(frozen=True)
class Change:
    """The steps from a new limit until it is carried out, and what a step took before."""

    rows: Sequence[Row]
    usual_seconds: float
    settled: bool

    def waits(self) -> list[float]:
        """Return, for each step that moved live memory, how long the loop stood per 32 MiB."""
        return [stood(row) / math.ceil(moved(row) / UNIT) for row in self.rows if moved(row)]

    def stops(self) -> list[float]:
        """Return the same of the time in which all its threads were stopped."""
        return [
            float(row["pause_seconds_total"]) / math.ceil(moved(row) / UNIT)
            for row in self.rows
            if moved(row)
        ]

    def extra_seconds(self) -> float:
        """Return how much longer than usual all the steps took."""
        return sum(row["end"] - row["begin"] - self.usual_seconds for row in self.rows)


def moved(row: Row) -> int:
    """Return the live bytes that changed places in a step."""
    return int(row["moved_out_bytes_total"] + row["moved_in_bytes_total"])


def stood(row: Row) -> float:
    """Return how long the loop stood still in a step.

    Threads are stopped while it waits at its safe point, or, in the background, while it computes.
    """
    return max(float(row["safe_point_wait_seconds_total"]), float(row["pause_seconds_total"]))


def run(*, quick: bool) -> Result:
    """Let a coordinator take memory from a training job and give it back, again and again."""
    model, shares, rounds = ("digits_cnn", (0.5,), 1) if quick else ("gpt", SHARES, 3)
    result = Result(
        "pauses",
        f"A training loop ({model}) whose memory limit falls and rises, {rounds} rounds",
        ["change", "moved", "stood", "p99", "per 32 MiB", "p99", "stopped", "longer by"],
    )
    bench = Bench(result, quick=quick)
    found: dict[str, list[Change]] = {}
    for job_class in CLASSES[:1] if quick else CLASSES:
        peak = changes(bench, found, model, job_class, [*shares] * rounds)
    rows = [row for all_changes in found.values() for one in all_changes for row in one.rows]
    empty = [row["empty_stop"] for row in rows]
    failed = sum(bool(row["failed"]) for row in rows)
    result.figures["model"] = model
    result.figures["peak_bytes"] = peak
    report(result, found, empty, failed)
    return result


def changes(
    bench: Bench,
    found: dict[str, list[Change]],
    model: str,
    job_class: str,
    shares: Sequence[float],
) -> int:
    """Add what a job of a class saw of changes by these shares; return its memory."""
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), NO_LIMIT) as daemon,
        Script(
            *("workload.py", "--model", model),
            *("--library", str(find_program("libcommensal_empty_stop.so"))),
            launcher=daemon.launcher(job_class, JOB, "--quiet"),
            environment=daemon.environment(),
        ) as job,
    ):
        peak = int(json.loads(job.tell("memory"))["peak_device_bytes"])
        for number, share in enumerate(shares):
            down, up = bench.window(
                f"{job_class}, {share:.0%} of {peak / MiB:.0f} MiB, change {number + 1}",
                lambda share=share: there_and_back(daemon, job, peak, share),  # type: ignore[misc]
            )
            found.setdefault(f"shrink by {share:.0%}, {job_class}", []).append(down)
            found.setdefault(f"grow by {share:.0%}, {job_class}", []).append(up)
        job.finish()
    return peak


def there_and_back(daemon: Daemon, job: Script, peak: int, share: float) -> tuple[Change, Change]:
    """Lower the limit of a job while it trains, and when that is done lift it again."""
    usual = median(row["end"] - row["begin"] for row in train(job, 3))
    limit = int((1 - share) * peak)
    down = change(daemon, job, limit, usual, lambda row: row["device"] <= limit)
    up = change(daemon, job, NO_LIMIT, usual, lambda row: row["host"] == 0)
    return down, up


def train(job: Script, steps: int) -> list[Row]:
    rows: list[Row] = json.loads(job.tell(f"train {steps}"))
    return rows


def change(
    daemon: Daemon, job: Script, limit: int, usual: float, done: Callable[[Row], bool]
) -> Change:
    """Tell the job its new limit while it trains, and let it train on until that is done."""
    job.send("train 2")
    daemon.set_memory(JOB, limit)
    rows: list[Row] = json.loads(job.answer())
    while (last := carried_out(rows, done)) is None and len(rows) < MOST_STEPS:
        rows += train(job, 1)
    return Change(rows[:last], usual, last is not None)


def carried_out(rows: Sequence[Row], done: Callable[[Row], bool]) -> int | None:
    """Return after how many steps a change was carried out; None: not yet.

    The first steps may end before the job has heard of it; those after it are of another story.
    """
    heard = False
    for number, row in enumerate(rows, start=1):
        heard = heard or moved(row) > 0
        if heard and done(row):
            return number
    return None


def percentile(values: Sequence[float], part: float) -> float:
    return float(np.percentile(values, part)) if len(values) else math.nan


def report(
    result: Result, found: dict[str, list[Change]], empty: Sequence[float], failed: int
) -> None:
    """Add rows, bars and figures."""
    each: dict[str, list[float]] = {}
    for name, changes in found.items():
        waits = [wait for one in changes for wait in one.waits()]
        stops = [stop for one in changes for stop in one.stops()]
        whole = [sum(map(stood, one.rows)) for one in changes]
        if not waits:
            raise BenchmarkError(f"{name}: nothing was moved")
        which = f"{name.split()[0]}, {name.rpartition(', ')[2]}"
        each.setdefault(which, []).extend(waits)
        size = median(sum(map(moved, one.rows)) for one in changes)
        result.rows.append(
            (
                name,
                f"{size / MiB:.0f} MiB",
                *(milliseconds(percentile(whole, part)) for part in (50, 99)),
                *(milliseconds(percentile(waits, part)) for part in (50, 99)),
                milliseconds(percentile(stops, 50)),
                milliseconds(median(one.extra_seconds() for one in changes)),
            )
        )
        unsettled = sum(not one.settled for one in changes)
        if unsettled:
            result.notes.append(
                f"{name}: not done after {MOST_STEPS} steps in {unsettled} of {len(changes)} rounds"
            )
        result.figures[name] = {
            "moved_bytes": [sum(map(moved, one.rows)) for one in changes],
            "stood_seconds": whole,
            "stood_seconds_per_32_mib": waits,
            "stopped_seconds_per_32_mib": stops,
            "extra_seconds": [one.extra_seconds() for one in changes],
            "usual_step_seconds": [one.usual_seconds for one in changes],
            "steps": [list(one.rows) for one in changes],
            "settled": [one.settled for one in changes],
        }
    stop = (percentile(empty, 50), percentile(empty, 99))
    result.rows.append((f"{len(empty)} empty stops", "", *map(milliseconds, stop), "", "", "", ""))
    result.figures["empty_stop_seconds"] = list(empty)
    result.bars += [
        # Where the kernel tells what was written; by fingerprints 5 ms.
        *(
            Bar(
                f"{name}: p50 per 32 MiB",
                1e3 * median(waits),
                most=0.5 if name.startswith("shrink") else 1.0,
                unit=" ms",
            )
            for name, waits in each.items()
        ),
        Bar("steps that failed", float(failed), most=0.0),
    ]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
