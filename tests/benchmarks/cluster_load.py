# SPDX-License-Identifier: Apache-2.0
"""The cluster's coordinator under load: submissions, a long queue, and a restart with it.

Jobs wait for a tenant's quota, which one of them has: what is measured is the coordinator.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cluster_process import Coordinator
from harness import Bar, Bench, BenchmarkError, Result

RATE = 50  # submissions a second
SUBMITTERS = 8
WRITE = 4096  # bytes: a bare synced write, to compare with
JOB = {
    **{"name": "train", "tenant": "waits", "class": "guaranteed", "gpus": 1, "cpu_milli": 0},
    **{"host_memory_mib": 0, "environment": {}, "directory": "/"},
    "command": ["/bin/sleep", "100000"],
}


@dataclass
class Window:
    """What was seen while jobs were submitted."""

    submits: list[float] = field(default_factory=list)  # seconds
    writes: list[float] = field(default_factory=list)
    core_share: float = 0.0
    before_bytes: int = 0
    after_bytes: int = 0


def run(*, quick: bool) -> Result:
    """Submit at a fixed rate beside bare synced writes; then fill the queue, ask, and restart."""
    result = Result(
        "cluster_load",
        "The cluster's coordinator under load",
        ["what", "p50", "p99", "longest"],
    )
    bench = Bench(result, quick=quick)
    seconds, jobs = (3, 500) if quick else (60, 100_000)
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as name:
        coordinator = Coordinator(Path(name), "--devices", "1")
        try:
            coordinator.start()
            coordinator.ask("quota", tenant="waits", quota=1)
            coordinator.ask("submit", job=JOB)
            submissions(bench, coordinator, seconds)
            long_queue(bench, coordinator, jobs)
        finally:
            if coordinator.pid:
                coordinator.end_jobs()
            coordinator.kill()
    return result


def submissions(bench: Bench, coordinator: Coordinator, seconds: int) -> None:
    result = bench.result
    what = f"{RATE} submissions a second"
    seen = bench.window(what, lambda: submit_at_rate(coordinator, seconds))
    row(result, "submit", seen.submits)
    row(result, f"synced write of {WRITE} bytes", seen.writes)
    submit, write = (float(np.percentile(times, 99)) for times in (seen.submits, seen.writes))
    most = 10 + 3 * write * 1e3
    result.bars += [
        Bar(f"submit, p99 (10 ms + 3 x {write * 1e3:.2f} ms)", submit * 1e3, most=most, unit=" ms"),
        Bar(f"{what}: share of a core", seen.core_share * 100, most=50, unit=" %"),
    ]
    result.figures["submissions"] = {
        "seconds": seconds,
        "jobs": len(seen.submits),
        "submit_p99_ms": submit * 1e3,
        "write_p99_ms": write * 1e3,
        "core_share": seen.core_share,
        "resident_bytes_before": seen.before_bytes,
        "resident_bytes_after": seen.after_bytes,
    }
    result.notes.append("No nodes send heartbeats in this run: 2,000 of them are owed.")


def submit_at_rate(coordinator: Coordinator, seconds: int) -> Window:
    """Submit from several clients, each at its share of the rate, and write beside them."""
    seen = Window()
    process = psutil.Process(coordinator.pid)
    seen.before_bytes = process.memory_info().rss
    begin_cpu, begin = cpu_of(process), time.monotonic()
    end = begin + seconds

    def submitter() -> None:
        paced(end, SUBMITTERS / RATE, lambda: seen.submits.append(timed(submit)))

    def submit() -> None:
        coordinator.ask("submit", job=JOB)

    def writer() -> None:
        with (coordinator.folder / "write").open("wb", buffering=0) as file:

            def write() -> None:
                file.write(bytes(WRITE))
                os.fdatasync(file.fileno())

            paced(end, 0.1, lambda: seen.writes.append(timed(write)))

    in_threads([submitter] * SUBMITTERS + [writer])
    seen.core_share = (cpu_of(process) - begin_cpu) / (time.monotonic() - begin)
    seen.after_bytes = process.memory_info().rss
    return seen


def long_queue(bench: Bench, coordinator: Coordinator, jobs: int) -> None:
    """Fill the queue as fast as it goes; then ask for it, and kill and start the coordinator."""
    result = bench.result
    there = len(json.loads(coordinator.frame("queue"))["jobs"])
    clients = 64
    left = -(-(jobs - there) // clients)

    def fill() -> None:
        for _ in range(left):
            coordinator.ask("submit", job=JOB)

    in_threads([fill] * clients)
    times = bench.window(
        f"queue of {jobs} jobs",
        lambda: [timed(lambda: coordinator.frame("queue")) for _ in range(5)],
    )
    row(result, f"queue of {jobs} jobs", times)
    resident = psutil.Process(coordinator.pid).memory_info().rss
    queued = len(json.loads(coordinator.frame("queue"))["jobs"])
    coordinator.kill()
    restart = coordinator.start()
    again = len(json.loads(coordinator.frame("queue"))["jobs"])
    if again != queued:
        raise BenchmarkError(f"{queued} jobs were queued before the restart, {again} after it")
    row(result, "restart until an answer", [restart])
    result.bars += [
        Bar(f"queue of {jobs} jobs, median", float(np.median(times)), most=1.0, unit=" s"),
        Bar("restart", restart, most=10.0, unit=" s"),
    ]
    result.figures["long_queue"] = {
        "jobs": queued,
        "queue_s": times,
        "restart_s": restart,
        "resident_bytes": resident,
    }


def row(result: Result, what: str, seconds: list[float]) -> None:
    p50, p99 = (float(value) for value in np.percentile(seconds, (50, 99)))
    cells = (f"{value * 1e3:.2f} ms" for value in (p50, p99, max(seconds)))
    result.rows.append((what, *cells))


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def paced(end: float, period: float, work: Callable[[], None]) -> None:
    """Work once a period, in the rhythm of the clock however long it takes."""
    due = time.monotonic()
    while due < end:
        time.sleep(max(0.0, due - time.monotonic()))
        work()
        due += period


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def in_threads(work: list[Callable[[], None]]) -> None:
    """Run each in a thread of its own. @raises BenchmarkError: the first of theirs."""
    failed: list[BenchmarkError] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BenchmarkError as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
