# SPDX-License-Identifier: Apache-2.0
"""What a guaranteed job notices of an opportunistic one that arrives, and for how long.

The job arrives when its coordinator knows it: that is before its first op. The second of the pairs
of `pairs`; beside a job that never waits one of the idle class hardly starts.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from harness import Bar, Bench, BenchmarkError, Result, Script
from pairs import PAIRS, SLO, MiB, Steps, stall_seconds, take

from commensal.demo.processes import Daemon

PIECE_S = 0.5  # step times are compared by the median of such pieces
FIRST_STEPS = 2  # that may take any time
FAR = 2.0  # times a usual step
PAIR = PAIRS[1]
WAYS = {"commensal": (), "no idle class": ("--no-idle-class",)}


def pieces(steps: Steps, begin: float, end: float, usual: float) -> list[float]:
    """Return the slowdown of each whole piece of a time; a piece without a step has that before."""
    found: list[float] = []
    while begin + PIECE_S <= end:
        lengths = [e - b for b, e in steps if begin <= e < begin + PIECE_S]
        found.append(median(lengths) / usual - 1 if lengths else (found or [0.0])[-1])
        begin += PIECE_S
    return found


def settled_after(slowdowns: list[float], allowed: float) -> float:
    """Return after how many seconds all pieces stay within what is allowed."""
    last = max((i for i, slow in enumerate(slowdowns) if slow > allowed), default=-1)
    return (last + 1) * PIECE_S


def run(*, quick: bool) -> Result:
    """Let a job arrive a few times, in the kernel's idle class and outside of it."""
    result = Result(
        "arrival",
        f"{PAIR.name}: while the latter arrives",
        ["way to share", "within the SLO after", "worst round", "noise alone", "steps over 2x"],
    )
    bench = Bench(result, quick=quick)
    rounds, seconds = (1, 3.0) if quick else (5, 10.0)
    stall = stall_seconds(PAIR)
    for way, options in WAYS.items():
        found = [
            bench.window(
                f"{way}, round {number + 1}",
                lambda options=options: arrive(options, stall, seconds),
            )
            for number in range(rounds)
        ]
        after = [settled_after(slow, allowed) for slow, allowed, _ in found]
        far = sum(count for _, _, count in found)
        noise = max(allowed for _, allowed, _ in found)
        result.figures[way] = {
            "slowdowns": [slow for slow, _, _ in found],
            "allowed": [allowed for _, allowed, _ in found],
            "settled_after": after,
            "steps_over_2x": [count for _, _, count in found],
        }
        result.rows.append(
            (way, f"{median(after):.1f} s", f"{max(after):.1f} s", f"{noise:.1%}", str(far))
        )
        result.bars += [
            Bar(f"{way}: within the SLO after", median(after), most=2.0, unit=" s"),
            Bar(f"{way}: steps over 2x", float(far), most=0.0),
        ]
    return result


def arrive(
    options: tuple[str, ...], stall: float, seconds: float
) -> tuple[list[float], float, int]:
    """Return the slowdown of each piece after an arrival, what is allowed, and how many steps were
    far longer than usual."""
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-"))
        daemon = stack.enter_context(Daemon(Path(runtime), 4096 * MiB))

        def start(job_class: str, model: str, *more: str, stall: float = 0.0) -> Script:
            launcher = daemon.launcher(job_class, job_class, "--quiet", *more)
            script = Script(
                *("paired_job.py", "--model", model, "--stall", repr(stall)),
                launcher=launcher,
                environment=dict(daemon.environment()),
            )
            return stack.enter_context(script)

        guaranteed = start("guaranteed", PAIR.guaranteed, stall=stall)
        guaranteed.tell("go")
        time.sleep(1.0)
        take(guaranteed)
        begin = time.monotonic()
        time.sleep(seconds / 2)
        alone = take(guaranteed)
        usual = median(end - begin for begin, end in alone)
        quiet = pieces(alone, begin, time.monotonic(), usual)

        arrived: list[float] = []
        watcher = threading.Thread(target=watch_for, args=(daemon, arrived.append))
        watcher.start()
        other = start("opportunistic", PAIR.opportunistic, *options)
        other.tell("go")
        time.sleep(seconds)
        steps = take(guaranteed)
        watcher.join()
    if not arrived:
        raise BenchmarkError("the coordinator never knew the opportunistic job")
    after = [step for step in steps if step[1] > arrived[0]]
    far = sum(e - b > FAR * usual for b, e in after[FIRST_STEPS:])
    slow = pieces(after, arrived[0], arrived[0] + seconds, usual)
    return slow, max(SLO, *quiet), far


def watch_for(daemon: Daemon, arrived: Callable[[float], None]) -> None:
    """Tell when the coordinator lists the opportunistic job; give up after a while."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        jobs = daemon.status()["jobs"]
        assert isinstance(jobs, list)
        if any(job["job"]["name"] == "opportunistic" for job in jobs):
            arrived(time.monotonic())
            return
        time.sleep(0.02)
