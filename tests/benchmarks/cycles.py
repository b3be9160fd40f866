# SPDX-License-Identifier: Apache-2.0
"""What a job keeps of the machine after many times of less memory and more again."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from harness import Bar, Bench, BenchmarkError, Result, Script

from commensal.demo.processes import Daemon

MiB = 1 << 20
NO_LIMIT = 1 << 40


def run(*, quick: bool) -> Result:
    """Take half of a job's memory and give it back, again and again; look at what it keeps."""
    model, cycles = "char_transformer", 5 if quick else 100
    result = Result(
        "cycles",
        f"What a job ({model}) keeps of the machine over {cycles} shrink and grow cycles",
        ["", "before", "first cycle", "last cycle", "most", "last : first"],
    )
    bench = Bench(result, quick=quick)
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), 4096 * MiB) as daemon,
        Script(
            *("workload.py", "--model", model),
            launcher=daemon.launcher("guaranteed", "cycles", "--quiet"),
            environment=daemon.environment(),
        ) as job,
    ):
        readings, moved = bench.window(f"{cycles} cycles", lambda: shrink_and_grow(job, cycles))
        job.finish()
    report(result, readings)
    result.figures["moved_bytes"] = moved
    return result


def shrink_and_grow(job: Script, cycles: int) -> tuple[list[dict[str, int]], int]:
    """Return what the job held before the first cycle and after each, and the bytes moved."""
    before = memory(job)
    readings = [kept(before)]
    half = int(before["device_bytes"]) // 2
    for _ in range(cycles):
        shrunk = json.loads(job.tell(f"limit {half}"))
        if shrunk["deferred_bytes"]:
            raise BenchmarkError(f"it did not shrink to {half} bytes: {shrunk['reason']}")
        job.tell("train 1")
        grown = json.loads(job.tell(f"limit {NO_LIMIT}"))
        if grown["deferred_bytes"]:
            raise BenchmarkError(f"it did not grow back: {grown['reason']}")
        job.tell("train 1")
        readings.append(kept(memory(job)))
    after = memory(job)
    return readings, int(after["moved_out_bytes_total"] - before["moved_out_bytes_total"])


def memory(job: Script) -> dict[str, Any]:
    sizes: dict[str, Any] = json.loads(job.tell("memory"))
    return sizes


def kept(sizes: dict[str, Any]) -> dict[str, int]:
    """Return the parts of a reading that must not grow."""
    return {
        "memory": int(sizes["RssAnon"] + sizes["RssShmem"] + sizes["RssFile"]),
        "spill file": int(sizes["files"]),
    }


def report(result: Result, readings: list[dict[str, int]]) -> None:
    """Add rows, bars and figures."""
    for what in readings[0]:
        before, first, *_, last = (one[what] for one in readings)
        most = max(one[what] for one in readings[1:])
        ratio = last / first if first else float(last > 0)
        sizes = (f"{size / MiB:.1f} MiB" for size in (before, first, last, most))
        result.rows.append((what, *sizes, f"{ratio:.4f}"))
        result.bars.append(Bar(f"{what}: last over first cycle", ratio, most=1.01))
        result.figures[what] = {"bytes": [one[what] for one in readings]}
