# SPDX-License-Identifier: Apache-2.0
"""What an idle coordinator costs: the time of an answer, and its share of a core beside 8 jobs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, Bar, Bench, BenchmarkError, Result

from allocator import find_program
from commensal.demo.processes import Daemon, end_process, plain_environment

JOBS = 8
MiB = 1 << 20


def run(*, quick: bool) -> Result:
    """Ask a coordinator without jobs and one with idle jobs; then watch the latter's threads."""
    result = Result(
        "messages",
        "Asking an idle coordinator for its status",
        ["coordinator", "line", "p50", "p99", "longest"],
    )
    bench = Bench(result, quick=quick)
    jobs = 2 if quick else JOBS
    count, pause_ms = (50, 5) if quick else (500, 10)
    seconds = 2.0 if quick else 30.0
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder:
        runtime = Path(folder) / "run"
        with Daemon(runtime, 4096 * MiB) as daemon:
            for there in (0, jobs):
                label = f"{there} idle jobs"
                with idle_jobs(daemon, Path(folder), there):
                    times = bench.window(label, lambda: ask(daemon, count, pause_ms))
                    report(result, label, times)
                    if there:
                        share = bench.window(
                            "the coordinator's threads", lambda: core_share(daemon, seconds)
                        )
    result.figures["core_share"] = share
    result.figures["jobs"] = jobs
    result.bars.append(
        Bar(
            f"the coordinator's share of a core, {jobs} idle jobs", share * 100, most=1.0, unit=" %"
        )
    )
    return result


def ask(daemon: Daemon, count: int, pause_ms: int) -> dict[str, list[float]]:
    """Return microseconds of each answer, by the kind of line."""
    done = subprocess.run(
        [str(find_program("message_benchmark")), daemon.socket, str(count), str(pause_ms)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(done.stderr.strip())
    times: dict[str, list[float]] = json.loads(done.stdout)
    return times


def report(result: Result, label: str, times: dict[str, list[float]]) -> None:
    """Add rows, bars and figures of one coordinator."""
    for line, microseconds in times.items():
        p50, p99 = (float(value) for value in np.percentile(microseconds, (50, 99)))
        longest = max(microseconds)
        cells = (f"{value / 1e3:.3f} ms" for value in (p50, p99, longest))
        result.rows.append((label, line, *cells))
        result.figures[f"{label}, {line}"] = {
            "count": len(microseconds),
            "p50_us": p50,
            "p99_us": p99,
            "longest_us": longest,
        }
        if line == "open line":  # the other one connects first, which is no message's round trip
            result.bars.append(Bar(f"{label}: p99", p99 / 1e3, most=2.0, unit=" ms"))


@contextlib.contextmanager
def idle_jobs(daemon: Daemon, folder: Path, count: int) -> Iterator[None]:
    """Keep registered jobs waiting for a storage that never answers.

    Raises:
        BenchmarkError: they did not come to wait.
    """
    with contextlib.ExitStack() as stack:
        marks = [folder / f"waiting-{number}" for number in range(count)]
        processes = []
        for number, mark in enumerate(marks):
            job_class = "guaranteed" if number % 2 == 0 else "opportunistic"
            command = [sys.executable, str(HERE / "waiting_job.py"), "--mark", str(mark)]
            process = subprocess.Popen(
                [*daemon.launcher(job_class, f"idle-{number}", "--quiet"), *command],
                env=daemon.environment() | {"OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(end_process, process)
            processes.append(process)
        deadline = time.monotonic() + 180
        while not all(mark.exists() for mark in marks):
            if any(process.poll() is not None for process in processes):
                raise BenchmarkError("a job that was to be idle ended")
            if time.monotonic() > deadline:
                raise BenchmarkError("the idle jobs did not start within three minutes")
            time.sleep(0.1)
        if count:
            time.sleep(2.0)  # what a start leaves behind is over
        registered = daemon.status()["jobs"]
        if not isinstance(registered, list) or len(registered) != count:
            raise BenchmarkError(f"{registered!r} are registered, not {count} jobs")
        yield


def core_share(daemon: Daemon, seconds: float) -> float:
    """Return how much of one core the coordinator uses, by the kernel's own count."""
    coordinator: Any = daemon.status()["coordinator"]
    pid = int(coordinator["pid"])

    def used() -> int:
        return sum(
            int(path.read_text().split()[0])
            for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )

    before = used()
    begin = time.monotonic()
    time.sleep(seconds)
    return (used() - before) / 1e9 / (time.monotonic() - begin)
