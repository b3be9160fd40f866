# SPDX-License-Identifier: Apache-2.0
"""Runs a job of jobs.py as it is told to, a line for each turn; reports times and memory.

    go                  trains `--steps` steps
    train STEPS         trains, and answers with a JSON list of what each step saw
    limit BYTES         sets the memory limit at once, between two steps
    memory              answers with the sizes of its memory
    touch               reads the tensor that no step uses

`go` knows nothing of commensal; the others need it to be active. Every line is answered with one:
so two processes can train in turn, and what the machine does meanwhile hits both alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jobs
import torch

# Totals of `commensal.stats()["memory"]` whose change since the last step `train` reports.
TOTALS = (
    "safe_point_wait_seconds_total",
    "pause_seconds_total",
    "moves_total",
    "moved_out_bytes_total",
    "moved_in_bytes_total",
)


def memory() -> dict[str, Any]:
    import commensal

    sizes: dict[str, Any] = commensal.stats()["memory"]
    return sizes


def limit(bytes_: int) -> dict[str, Any]:
    """Set the limit; return what came of it within the time that a call takes at most."""
    import commensal

    ticket = commensal.set_memory_limit(bytes_)
    return {
        "done_bytes": ticket.done_bytes,
        "deferred_bytes": ticket.deferred_bytes,
        "reason": ticket.reason,
    }


def resident() -> dict[str, int]:
    """Return what this process keeps of the machine: memory, and blocks of unnamed files."""
    status = Path("/proc/self/status").read_text()
    parts = re.findall(r"^(RssAnon|RssFile|RssShmem):\s+(\d+) kB$", status, re.M)
    found = {name: int(value) * 1024 for name, value in parts}
    files = {}
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            about = os.stat(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # the list itself
        if about.st_nlink == 0 and about.st_blocks:
            files[about.st_dev, about.st_ino] = about.st_blocks * 512
    return {**found, "files": sum(files.values())}


class EmptyStop:
    """Stops all threads and moves nothing, by a library of the benchmarks."""

    def __init__(self, library: Path) -> None:
        self._stop = ctypes.CDLL(str(library)).commensal_empty_stop
        self._stop.restype = ctypes.c_double

    def seconds(self) -> float:
        """Return how long a stop took.

        Raises:
            RuntimeError: the threads could not be stopped.
        """
        seconds = float(self._stop())
        if seconds < 0:
            raise RuntimeError("the threads could not be stopped")
        return seconds


class Observed:
    """Trains, and tells what each step saw, with what happened since the one before it."""

    def __init__(self, step: jobs.Step, empty: EmptyStop | None) -> None:
        self._step = step
        self._empty = empty
        self._before: dict[str, Any] = {}

    def train(self, count: int) -> list[dict[str, Any]]:
        """Return a row for each step; `failed`: it raised, or its loss is no number."""
        self._before = self._before or memory()
        return [self._row() for _ in range(count)]

    def _row(self) -> dict[str, Any]:
        begin = time.monotonic()
        try:
            failed = "" if math.isfinite(self._step()) else "the loss is no number"
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            failed = str(error)
        end = time.monotonic()
        after = memory()
        row = {"begin": begin, "end": end, "failed": failed, "device": after["device_bytes"]}
        row["host"] = after["host_bytes"]
        row |= {name: after[name] - self._before[name] for name in TOTALS}
        self._before = after
        if self._empty is not None:
            row["empty_stop"] = self._empty.seconds()
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=jobs.JOBS, required=True)
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--cold-mib", type=int, default=0, help="of a tensor that no step uses")
    parser.add_argument("--library", type=Path, help="measure an empty stop after each step, too")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    ready = time.monotonic()
    step = jobs.start(arguments.model)
    cold = torch.arange(arguments.cold_mib << 17)  # of 8 bytes each
    losses = [step() for _ in range(arguments.warm_up)]
    empty = EmptyStop(arguments.library) if arguments.library else None
    observed = Observed(step, empty)
    turns: list[list[float]] = []

    def go() -> str:
        turns.append([])
        for _ in range(arguments.steps):
            begin = time.perf_counter()
            losses.append(step())
            turns[-1].append(time.perf_counter() - begin)
        return "done"

    answers: dict[str, Callable[[str], Any]] = {
        "train": lambda count: observed.train(int(count)),
        "limit": lambda size: limit(int(size)),
        "touch": lambda _: int(cold.sum()),
        "memory": lambda _: {**memory(), **resident()},
    }
    print("ready", flush=True)
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        print(go() if command == "go" else json.dumps(answers[command](value)), flush=True)
    result = {
        "ready": ready,
        "turns": turns,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "losses": [loss.hex() for loss in losses],
        "cold_bytes": cold.nbytes,
    }
    arguments.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
