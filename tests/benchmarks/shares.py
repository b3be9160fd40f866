# SPDX-License-Identifier: Apache-2.0
"""Whether a maximum share holds alone, and what minimum shares are worth beside a guaranteed job.

What a job uses is taken from outside, from the kernel's clock of its training thread: the part of
the time in which that thread is on a core. Its ops run on that thread, with helpers.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean

from harness import Bar, Bench, Result, Script

from commensal.demo.processes import Daemon

MiB = 1 << 20
MODEL = "mlp"
LAWS = ("gap", "duty_cycle", "token_window")
MINIMA = (0.3, 0.1)
EVERY = 0.1  # seconds between two samples
Clock = list[tuple[float, float]]  # when, and how long the thread was on a core until then


def run(*, quick: bool) -> Result:
    """Measure both."""
    result = Result(
        "shares",
        "Shares of the device's time, asked for and used",
        ["job", "asked for", "10 s windows", "worst by", "1 s windows", "worst by"],
    )
    bench = Bench(result, quick=quick)
    shares = (0.3,) if quick else (0.1, 0.3, 0.6)
    seconds = 6.0 if quick else 40.0
    for law in LAWS[:1] if quick else LAWS:
        for share in shares:
            clock = bench.window(
                f"{law}, at most {share}",
                lambda law=law, share=share: alone(law, share, seconds),  # type: ignore[misc]
            )
            tell_maximum(result, law, share, clock)
    clocks = bench.window("two minima", lambda: beside(MINIMA, seconds))
    tell_minima(result, clocks)
    return result


def alone(law: str, share: float, seconds: float) -> Clock:
    """Let a job with a maximum work alone, and return its clock."""
    with contextlib.ExitStack() as stack:
        daemon = start_daemon(stack)
        job = start(stack, daemon, "opportunistic", "--law", law, "--share", f"0:{share}")
        job.tell("go")
        time.sleep(2.0)  # what it saved while it rested is spent
        [clock] = watch([job], seconds)
        return clock


def beside(minima: Sequence[float], seconds: float) -> list[Clock]:
    """Let jobs with minimum shares work beside a guaranteed one; return their clocks."""
    with contextlib.ExitStack() as stack:
        daemon = start_daemon(stack)
        guaranteed = start(stack, daemon, "guaranteed")
        jobs = [
            start(stack, daemon, "opportunistic", "--share", f"{least}:1", "--no-idle-class")
            for least in minima
        ]
        for job in (guaranteed, *jobs):
            job.tell("go")
        time.sleep(3.0)  # the controller finds its shares
        return watch(jobs, seconds)


def start_daemon(stack: contextlib.ExitStack) -> Daemon:
    runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-"))
    return stack.enter_context(Daemon(Path(runtime), 4096 * MiB))


def start(stack: contextlib.ExitStack, daemon: Daemon, job_class: str, *options: str) -> Script:
    launcher = daemon.launcher(job_class, job_class, "--quiet", *options)
    return stack.enter_context(
        Script(
            *("paired_job.py", "--model", MODEL),
            launcher=launcher,
            environment=daemon.environment(),
        )
    )


def watch(jobs: Sequence[Script], seconds: float) -> list[Clock]:
    """Read the clocks of the jobs' training threads for a while."""
    clocks: list[Clock] = [[] for _ in jobs]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for job, clock in zip(jobs, clocks, strict=True):
            clock.append((time.monotonic(), on_core(job.pid)))
        time.sleep(EVERY)
    return clocks


def on_core(pid: int) -> float:
    """Return how long a process's first thread was on a core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def used(clock: Clock, length: float) -> list[float]:
    """Return the part of the time on a core in each whole window of a length."""
    parts = []
    begin = clock[0]
    for sample in clock[1:]:
        if sample[0] - begin[0] >= length:
            parts.append((sample[1] - begin[1]) / (sample[0] - begin[0]))
            begin = sample
    return parts or [(clock[-1][1] - clock[0][1]) / (clock[-1][0] - clock[0][0])]


def tell_maximum(result: Result, law: str, share: float, clock: Clock) -> None:
    long, short = used(clock, 10.0), used(clock, 1.0)
    over = [max(abs(part - share) for part in parts) for parts in (long, short)]
    result.rows.append(
        (
            f"alone, {law}",
            f"at most {share:.0%}",
            f"{mean(long):.1%}",
            f"{100 * over[0]:.1f} points",
            f"{min(short):.1%} to {max(short):.1%}",
            f"{100 * over[1]:.1f} points",
        )
    )
    result.figures[f"{law} {share}"] = {"asked": share, "long": long, "short": short}
    result.bars += [
        Bar(f"{law}, at most {share}, 10 s windows", 100 * over[0], most=2.0, unit=" points"),
        # Its longest op is a millisecond or two: what it adds to five points is left out.
        Bar(f"{law}, at most {share}, 1 s windows", 100 * over[1], most=5.0, unit=" points"),
    ]


def tell_minima(result: Result, clocks: Sequence[Clock]) -> None:
    shares = [used(clock, 10.0) for clock in clocks]
    for least, clock, long in zip(MINIMA, clocks, shares, strict=True):
        short = used(clock, 1.0)
        result.rows.append(
            (
                "beside a guaranteed job",
                f"at least {least:.0%}",
                f"{mean(long):.1%}",
                f"{100 * max(0.0, least - min(long)):.1f} points",
                f"{min(short):.1%} to {max(short):.1%}",
                f"{100 * max(0.0, least - min(short)):.1f} points",
            )
        )
        result.figures[f"minimum {least}"] = {"asked": least, "long": long, "short": short}
        result.bars.append(
            Bar(f"at least {least}", 100 * mean(long), least=100 * least - 2.0, unit=" %")
        )
    for (more, first), (less, second) in pairwise(zip(MINIMA, shares, strict=True)):
        result.bars.append(
            Bar(f"{more} over {less}", mean(first) / max(1e-9, mean(second)), least=1.0)
        )
