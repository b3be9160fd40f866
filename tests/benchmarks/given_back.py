# SPDX-License-Identifier: Apache-2.0
"""Whether memory that a training job reports as given back is there for a second process."""

from __future__ import annotations

import re
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import Bar, Bench, BenchmarkError, Result, Script

from commensal.demo.processes import Daemon

MiB = 1 << 20
NO_LIMIT = 1 << 40
STEPS = 20
SECOND = 1.0


@dataclass(frozen=True)
class Observation:
    """What this process, which is not the job, saw of one shrink; bytes."""

    reported: int
    seen_within_a_second: int
    seconds: float  # until 90 % was there; infinite if it never was
    least_in_later_steps: int


def run(*, quick: bool) -> Result:
    """Shrink a training job's free and live memory; look at the machine's available memory."""
    mib, rounds = (128, 1) if quick else (512, 5)
    result = Result(
        "given_back",
        f"Memory that a job gives back, as another process sees it ({rounds} rounds)",
        ["what", "reported", "seen within 1 s", "90 % after", f"least in {STEPS} steps"],
    )
    bench = Bench(result, quick=quick)
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder) / "run", 8192 * MiB) as daemon,
        Script(
            *("given_back_job.py", "--text-mib", str(2 * mib)),
            launcher=daemon.launcher("guaranteed", "shrinking", "--quiet"),
            environment=daemon.environment(),
        ) as job,
    ):
        for what in ("free memory", "live memory"):
            seen = [
                bench.window(what, lambda what=what: observe(job, what, mib))  # type: ignore[misc]
                for _ in range(rounds)
            ]
            report(result, what, seen)
        job.finish()
    return result


def observe(job: Script, what: str, mib: int) -> Observation:
    """Take `mib` MiB from the job, watch, let it train on, and give them back to it."""
    job.turn()
    held = int(job.tell(f"hold {mib if what == 'free memory' else 0}"))
    before = available()
    reported = int(job.tell(f"limit {held - mib * MiB}"))
    if reported < mib * MiB // 2:
        raise BenchmarkError(f"the job gave back {reported} bytes, not {mib} MiB")
    begin = time.monotonic()
    reached = float("inf")
    while (passed := time.monotonic() - begin) < SECOND:
        if reached == float("inf") and available() - before >= 0.9 * reported:
            reached = passed
        time.sleep(0.01)
    within = available() - before
    least = within
    for _ in range(STEPS):
        job.turn()
        least = min(least, available() - before)
    job.tell(f"limit {NO_LIMIT}")
    return Observation(reported, within, reached, least)


def available() -> int:
    """Return the machine's available memory, in bytes: the median of some readings.

    MemAvailable leaves out free pages that the kernel keeps on lists of single processors. Since
    Linux 6.7 these grow to an eighth of the memory when much is freed at once, so they are added.
    """
    readings = []
    for _ in range(5):
        memory = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
        if memory is None:
            raise BenchmarkError("/proc/meminfo has no MemAvailable")
        kept = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.M)
        readings.append(int(memory[1]) * 1024 + sum(map(int, kept)) * resource.getpagesize())
        time.sleep(0.002)
    return int(median(readings))


def report(result: Result, what: str, seen: list[Observation]) -> None:
    """Add a row, bars and figures; the worst round counts."""
    reported = median(one.reported for one in seen)
    within = min(one.seen_within_a_second / one.reported for one in seen)
    least = min(one.least_in_later_steps / one.reported for one in seen)
    seconds = max(one.seconds for one in seen)
    result.rows.append(
        (
            what,
            f"{reported / MiB:.0f} MiB",
            f"{within:.1%}",
            f"{seconds * 1e3:.0f} ms" if seconds < SECOND else "never",
            f"{least:.1%}",
        )
    )
    result.bars += [
        Bar(f"{what}: seen within 1 s", 100 * within, least=90.0, unit=" %"),
        Bar(f"{what}: least in {STEPS} further steps", 100 * least, least=90.0, unit=" %"),
    ]
    result.figures[what] = {
        "reported_bytes": [one.reported for one in seen],
        "seen_bytes": [one.seen_within_a_second for one in seen],
        "seconds": [one.seconds if one.seconds < SECOND else None for one in seen],
        "least_bytes": [one.least_in_later_steps for one in seen],
    }
