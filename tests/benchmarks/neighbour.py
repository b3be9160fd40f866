# SPDX-License-Identifier: Apache-2.0
"""A guaranteed job's steps while its neighbour's memory goes to the slower tier."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from harness import Bar, Bench, BenchmarkError, Result, Script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import Interval, bootstrap_interval

MiB = 1 << 20
DEVICE = 8192 * MiB
SPILLING = "spilling"
MOST_SECONDS = 15.0  # for a move; what is left then is told
ASK_SECONDS = 0.25  # to ask how far it is takes a part of a core, too
CASES = ("alone", "spill")


@dataclass
class Window:
    """Step times of the guaranteed job: nothing beside it, or memory on its way."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    moved_bytes: int = 0
    moving_seconds: float = 0.0


class Training(threading.Thread):
    """Lets a job train step after step until it is told to stop."""

    def __init__(self, job: Script) -> None:
        super().__init__()
        self._job = job
        self._end = threading.Event()
        self._rows: list[dict[str, Any]] = []
        self._error: BenchmarkError | None = None

    def run(self) -> None:
        try:
            while not self._end.is_set():
                self._rows += json.loads(self._job.tell("train 1"))
        except BenchmarkError as error:
            self._error = error

    def wait(self, seconds: float) -> None:
        """Let it train for a while, and for two steps at least."""
        end, steps = time.monotonic() + seconds, len(self._rows) + 2
        while self.is_alive() and (time.monotonic() < end or len(self._rows) < steps):
            time.sleep(0.01)

    def stop(self) -> list[dict[str, Any]]:
        """End it; return what its steps saw.

        Raises:
            BenchmarkError: the job failed.
        """
        self._end.set()
        self.join()
        if self._error is not None:
            raise self._error
        return self._rows


def run(*, quick: bool) -> Result:
    """Let one job train while a coordinator takes the memory of the other, which does not compute.

    The other is in the kernel's idle class, as opportunistic jobs are.
    """
    mib, rounds = (64, 1) if quick else (2048, 4)
    # Its few ops need not wait for gaps; and on a busy machine, where a quick run may be, it would
    # not get as far as that in the idle class.
    options = ("--quiet", "--law", "open", *(("--no-idle-class",) if quick else ()))
    result = Result(
        "neighbour",
        f"Steps of a guaranteed job while another job's {mib} MiB move",
        ["", "steps", "median", "", "95th pct", "", "MiB/s"],
    )
    bench = Bench(result, quick=quick)
    windows: list[Window] = []
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), DEVICE) as daemon,
        Script(
            *("workload.py", "--model", "char_transformer"),
            launcher=daemon.launcher("guaranteed", "neighbour", "--quiet"),
            environment=daemon.environment(),
        ) as neighbour,
        Script(
            *("workload.py", "--model", "mlp_tiny", "--cold-mib", str(mib + 64)),
            launcher=daemon.launcher("opportunistic", SPILLING, *options),
            environment=daemon.environment(),
        ) as spilling,
    ):
        for number in range(rounds):
            windows.append(
                bench.window(
                    f"round {number + 1} of {rounds}",
                    lambda: observe(daemon, neighbour, spilling, mib, 0.5 if quick else 2.0),
                )
            )
        spilling.finish()
        neighbour.finish()
    report(result, windows, mib)
    return result


def observe(
    daemon: Daemon, neighbour: Script, spilling: Script, mib: int, quiet_seconds: float
) -> Window:
    """Train, and meanwhile move memory out; sort the steps by whether they overlap that."""
    held = bring_back(daemon, spilling)
    window = Window()
    training = Training(neighbour)
    training.start()
    try:
        training.wait(quiet_seconds)
        begin = time.monotonic()
        window.moved_bytes = move_out(daemon, held - mib * MiB)
        end = time.monotonic()
        training.wait(quiet_seconds)
    finally:
        rows = training.stop()
    for row in rows:
        case = "spill" if row["begin"] < end and begin < row["end"] else "alone"
        window.seconds[case].append(row["end"] - row["begin"])
    window.moving_seconds = end - begin
    return window


def memory(daemon: Daemon) -> dict[str, Any]:
    """Return what the coordinator knows of the memory of the job that spills."""
    jobs: Any = daemon.status()["jobs"]
    found: dict[str, Any] = next(job for job in jobs if job["job"]["name"] == SPILLING)["memory"]
    return found


def bring_back(daemon: Daemon, job: Script) -> int:
    """Lift the limit, wait, and return the bytes; what no step uses comes back once touched."""
    daemon.set_memory(SPILLING, DEVICE)
    job.tell("touch")
    end = time.monotonic() + MOST_SECONDS
    while (now := json.loads(job.tell("memory")))["host_bytes"] > 0:
        if time.monotonic() > end:
            raise BenchmarkError(f"memory was not back within {MOST_SECONDS:.0f} s")
        job.tell("train 1")
        time.sleep(0.1)
    return int(now["device_bytes"])


def move_out(daemon: Daemon, limit: int) -> int:
    """Let the coordinator lower the limit; return the bytes that are out when it holds."""
    before = memory(daemon)["moved_out_bytes_total"]
    daemon.set_memory(SPILLING, limit)
    end = time.monotonic() + MOST_SECONDS
    now = memory(daemon)
    while now["device_bytes"] > limit and time.monotonic() < end:
        time.sleep(ASK_SECONDS)
        now = memory(daemon)
    return int(now["moved_out_bytes_total"] - before)


def report(result: Result, windows: list[Window], mib: int) -> None:
    """Add rows, bars and figures."""
    pooled = {case: [time for one in windows for time in one.seconds[case]] for case in CASES}
    for case in CASES:
        if not pooled[case]:
            raise BenchmarkError(f"no step of the neighbour in the part {case!r}")
    added = {part: added_share(pooled["spill"], pooled["alone"], part) for part in (50, 95)}
    rate = median(one.moved_bytes / MiB / one.moving_seconds for one in windows)
    for case, what in (("alone", "nothing moves"), ("spill", "memory moves out")):
        row = [what, str(len(pooled[case]))]
        for part, one in added.items():
            row.append(f"{np.percentile(pooled[case], part) * 1e3:.1f} ms")
            row.append(f"{one.value:+.1%}" if case == "spill" else "")
        result.rows.append((*row, f"{rate:.0f}" if case == "spill" else ""))
    least = min(one.moved_bytes for one in windows)
    if least < 0.99 * mib * MiB:
        result.notes.append(f"in one round only {least / MiB:.0f} of {mib} MiB moved")
    result.bars += [
        Bar("median step", 100 * added[50].value, most=2.0, unit=" %"),
        Bar("95th percentile", 100 * added[95].value, most=10.0, unit=" %"),
    ]
    result.figures = {
        "step_seconds": {case: [one.seconds[case] for one in windows] for case in CASES},
        "moved_bytes": [one.moved_bytes for one in windows],
        "moving_seconds": [one.moving_seconds for one in windows],
        "added": {str(part): [one.value, one.low, one.high] for part, one in added.items()},
    }


def added_share(beside: list[float], alone: list[float], part: int) -> Interval:
    """Return how much longer a percentile of the steps is, as a share, with its interval."""
    ratio = bootstrap_interval(
        [beside, alone],
        lambda drawn: float(np.percentile(drawn[0], part) / np.percentile(drawn[1], part)),
    )
    return ratio.shifted(-1.0)
