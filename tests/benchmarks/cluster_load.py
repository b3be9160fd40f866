# SPDX-License-Identifier: Apache-2.0
"""The cluster's coordinator under load: reporting nodes, submissions, a long queue, a restart.

Jobs wait for a tenant's quota, which one of them has: what is measured is the coordinator.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from cluster_process import Coordinator
from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program

RATE = 50  # submissions a second
NODES = 2000  # that report each second
FLAT_SECONDS = 600
# Reports of each node before that: ZeroMQ keeps two blocks of 256 messages for each direction of a
# connection, 64 KiB in all, and touches them as messages pass. After 512 a connection has them.
WARM_REPORTS = 600
MEBI = 1 << 20
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
    heartbeats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Nodes:
    """Nodes that report to a coordinator from one process of `node_load`."""

    program: Path
    keys: Path
    count: int

    def prepare(self) -> None:
        """Give each a key. Comes before the coordinator's start."""
        self._call("prepare", str(self.keys), str(self.count))

    @contextmanager
    def reporting(
        self, address: str, seconds: int, warm: int = 0
    ) -> Iterator[Callable[[], dict[str, Any]]]:
        """Report so long; what is yielded waits for the end and returns how it went.

        Before that each node reports `warm` times, as fast as it is answered.
        """
        command = [str(self.program), "run", str(self.keys), address, str(seconds), str(warm)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline().strip() != "connected":
                    raise BenchmarkError(process.communicate()[1].strip())

                def told() -> dict[str, Any]:
                    out, errors = process.communicate()
                    if process.returncode != 0:
                        raise BenchmarkError(errors.strip())
                    answer: dict[str, Any] = json.loads(out)
                    return answer

                yield told
            finally:
                process.kill()

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            [str(self.program), *words], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip())


def run(*, quick: bool) -> Result:
    """Report and submit at fixed rates beside bare synced writes; rest; fill the queue; restart."""
    result = Result(
        "cluster_load",
        "The cluster's coordinator under load",
        ["what", "p50", "p99", "longest"],
    )
    bench = Bench(result, quick=quick)
    seconds, jobs = (3, 500) if quick else (60, 100_000)
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as name:
        folder = Path(name)
        keys = folder / "keys"
        nodes = Nodes(find_program("node_load"), keys, 20 if quick else NODES)
        coordinator = Coordinator(
            folder,
            *("--devices", "1", "--keys-dir", str(keys), "--listen", "tcp://127.0.0.1:0"),
        )
        nodes.prepare()
        try:
            coordinator.start()
            coordinator.ask("quota", tenant="waits", quota=1)
            coordinator.ask("submit", job=JOB)
            submissions(bench, coordinator, nodes, seconds)
            seconds, warm = (4, 5) if quick else (FLAT_SECONDS, WARM_REPORTS)
            heartbeats_alone(bench, coordinator, nodes, seconds, warm)
            long_queue(bench, coordinator, jobs)
        finally:
            if coordinator.pid:
                coordinator.end_jobs()
            coordinator.kill()
    return result


def submissions(bench: Bench, coordinator: Coordinator, nodes: Nodes, seconds: int) -> None:
    result = bench.result
    what = f"{RATE} submissions a second, {nodes.count} nodes"

    def window() -> Window:
        address = str(coordinator.ask("nodes")["coordinator"]["address"])
        with nodes.reporting(address, seconds + 5) as told:  # they connect in the first seconds
            time.sleep(3)
            seen = submit_at_rate(coordinator, seconds)
            seen.heartbeats = told()
        return seen

    seen = bench.window(what, window)
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
        "heartbeats": seen.heartbeats,
    }
    result.bars.append(answered(f"{what}: heartbeats answered", seen.heartbeats))


def answered(what: str, told: dict[str, Any]) -> Bar:
    return Bar(what, 100 * told["answered"] / max(1, told["sent"]), least=99, unit=" %")


def heartbeats_alone(
    bench: Bench, coordinator: Coordinator, nodes: Nodes, seconds: int, warm: int
) -> None:
    """Nodes report and nothing else happens: what the coordinator holds, each second."""
    result = bench.result
    process = psutil.Process(coordinator.pid)
    address = str(coordinator.ask("nodes")["coordinator"]["address"])
    held: list[int] = []
    cold = process.memory_info().rss
    with nodes.reporting(address, seconds + 1, warm) as told:
        begin_cpu, begin = cpu_of(process), time.monotonic()
        end = begin + seconds
        paced(end, 1.0, lambda: held.append(process.memory_info().rss))
        share = (cpu_of(process) - begin_cpu) / (time.monotonic() - begin)
        heartbeats = told()
    growth = held[-1] / held[0]
    result.bars += [
        Bar(f"{nodes.count} nodes alone: memory at the end, of the beginning", growth, most=1.01),
        answered(f"{nodes.count} nodes alone: heartbeats answered", heartbeats),
    ]
    result.figures["heartbeats_alone"] = {
        "seconds": seconds,
        "resident_bytes_before": cold,
        "resident_bytes": held,
        "core_share": share,
        "heartbeats": heartbeats,
    }
    result.notes.append(
        f"{nodes.count} nodes alone: {share:.1%} of a core, {cold / MEBI:.1f} MiB before them, "
        f"{held[0] / MEBI:.1f} MiB after {warm} reports of each, {held[-1] / MEBI:.1f} MiB "
        f"{len(held)} s later"
    )


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
