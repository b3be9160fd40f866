# SPDX-License-Identifier: Apache-2.0
"""How soon opportunistic ops begin in a guaranteed job's gap, and end when the gap does.

The guaranteed job is an MLP whose storage takes 30 ms for each batch: a step is where it needs the
device, the wait between two steps is its gap. Both sides tell times of the same clock.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from harness import Bar, Bench, BenchmarkError, Result, Script
from pairs import MiB, Steps, take

from commensal.demo.processes import Daemon

STALL_S = 0.03
OPS_MS = (0, 1, 5)
Holds = Sequence[tuple[float, float]]  # end of the op before, begin of the op that was held


@dataclass(frozen=True)
class Reactions:
    """What was seen of gaps; seconds."""

    opened: list[float]  # from the begin of a gap to its first op
    missed: int  # gaps without an op that was held until then
    closed: list[float]  # from the end of a gap to the end of the last op; below 0: before
    leaked: int  # of them ran on through a whole step, and count with its length


def reactions(steps: Steps, holds: Holds) -> Reactions:
    """Bring together a guaranteed job's steps and when an opportunistic job's ops were held."""
    found = Reactions([], 0, [], 0)
    missed = leaked = 0
    begins = [start for _, start in holds]
    for (begin, end), (following, _) in pairwise(steps):
        first = bisect_left(begins, begin)  # the hold that the end of the gap before brought
        if first == len(holds):
            break
        before = holds[first][0]
        if before >= end:
            leaked += 1
            found.closed.append(end - begin)
            continue
        found.closed.append(before - begin)
        released = bisect_left(begins, end)
        if released == len(holds):
            break
        if begins[released] < following:
            found.opened.append(begins[released] - end)
        else:
            missed += 1
    return Reactions(found.opened, missed, found.closed, leaked)


def run(*, quick: bool) -> Result:
    """Measure tiny ops, and ops of one and of five milliseconds."""
    result = Result(
        "reaction",
        "From the begin of a gap to the first op, from its end to the end of the last",
        ["op", "gaps", "first op, p50", "p99", "last op ends, p50", "p99", "worst", "longest op"],
    )
    bench = Bench(result, quick=quick)
    seconds = 3.0 if quick else 30.0
    for milliseconds in OPS_MS[:1] if quick else OPS_MS:
        name = f"{milliseconds} ms" if milliseconds else "tiny"
        with contextlib.ExitStack() as stack:
            runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-"))
            daemon = stack.enter_context(Daemon(Path(runtime), 4096 * MiB))

            def start(
                job_class: str,
                *arguments: str,
                daemon: Daemon = daemon,
                stack: contextlib.ExitStack = stack,
            ) -> Script:
                launcher = daemon.launcher(job_class, job_class, "--quiet")
                environment = dict(daemon.environment())
                job = Script(*arguments, launcher=launcher, environment=environment)
                return stack.enter_context(job)

            storage = ("--stall", repr(STALL_S))
            guaranteed = start("guaranteed", "paired_job.py", "--model", "mlp", *storage)
            other = start("opportunistic", "reaction_job.py", "--milliseconds", str(milliseconds))
            guaranteed.tell("go")
            other.tell("go")
            time.sleep(seconds / 3)  # it learns how long gaps are

            def watch(
                guaranteed: Script = guaranteed, other: Script = other
            ) -> tuple[Reactions, float]:
                take(guaranteed), other.tell("take")
                time.sleep(seconds)
                steps, seen = take(guaranteed), json.loads(other.tell("take"))
                return reactions(steps, seen["holds"]), seen["longest"]

            report(result, name, *bench.window(f"ops: {name}", watch))
    return result


def report(result: Result, name: str, seen: Reactions, longest: float) -> None:
    """Add a row and its bars."""
    if not seen.opened or not seen.closed:
        raise BenchmarkError(f"ops ({name}) were never held and released")
    first = [float(np.quantile(seen.opened, part)) for part in (0.5, 0.99)]
    last = [float(np.quantile(seen.closed, part)) for part in (0.5, 0.99, 1.0)]
    result.rows.append(
        (
            name,
            str(len(seen.opened)),
            *(f"{1e6 * value:.0f} us" for value in (*first, *last)),
            f"{1e3 * longest:.2f} ms",
        )
    )
    result.figures[name] = {
        "first_op": first,
        "last_op": last,
        "longest": longest,
        "gaps": len(seen.opened),
        "missed_gaps": seen.missed,
        "leaked_steps": seen.leaked,
    }
    if name == "tiny":
        result.bars += [
            Bar("first op, p50", 1e6 * first[0], most=200, unit=" us"),
            Bar("first op, p99", 1e6 * first[1], most=2000, unit=" us"),
        ]
    over = 1e3 * (last[2] - longest)
    result.bars.append(Bar(f"{name}: last op ends, over the longest", over, most=1, unit=" ms"))
    result.notes.append(
        f"{name}: {seen.missed} gaps without an op, {seen.leaked} steps with ops all through"
    )
