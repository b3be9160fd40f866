# SPDX-License-Identifier: Apache-2.0
"""How densely live blocks lie in chunks: recorded traces in one arena, and apart by lifetime."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traces
from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program

PROGRAM = "replay_benchmark"
ARENAS = {"one arena": "one", "by lifetime": "lifetimes"}
MIB = 1 << 20
LEARNED = 2  # steps before the lifetimes of a job's blocks are known
MOST_RATIO = 1.10
MOST_MORE = 8 * MIB


@dataclass(frozen=True)
class Use:
    """Bytes that hold something, and the bytes that they hold."""

    held: int
    live: int

    @property
    def ratio(self) -> float:
        return self.held / self.live

    @property
    def more(self) -> int:
        return self.held - self.live

    @property
    def of_allowed(self) -> float:
        """Over the bar: a tenth more than is live, or 8 MiB more."""
        return self.held / max(self.live * MOST_RATIO, self.live + MOST_MORE)

    def __str__(self) -> str:
        return f"{self.ratio:.3f} (+{self.more / MIB:.1f})"


@dataclass(frozen=True)
class Density:
    """Of one trace in one arrangement."""

    steps: tuple[Use, ...]  # chunks with live blocks at the end of each step
    reserved: Use  # peaks over the run, the first steps included

    @property
    def worst(self) -> Use:
        return max(self.steps, key=lambda step: step.of_allowed)

    @property
    def typical(self) -> Use:
        return sorted(self.steps, key=lambda step: step.of_allowed)[len(self.steps) // 2]


def run(*, quick: bool) -> Result:
    """Replay each trace once, as the job ran; nothing is timed."""
    result = Result(
        "density",
        "Memory held over live bytes (and MiB more), in recorded traces",
        ["job", "arenas", "chunks, median step", "chunks, worst step", "reserved peak"],
    )
    bench = Bench(result, quick=quick)
    program = find_program(PROGRAM)
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder:
        for job in traces.names():
            packed = traces.pack(traces.load(traces.FOLDER / f"{job}.trace.xz"), "all")
            path = Path(folder) / job
            path.write_bytes(packed.words.tobytes())
            for arenas, mode in ARENAS.items():
                density = measure(program, path, mode)
                report(result, job, arenas, density)
    result.judged = not bench.quick
    return result


def measure(program: Path, trace: Path, mode: str) -> Density:
    """Replay a trace.

    Raises:
        BenchmarkError: the program failed.
    """
    done = subprocess.run(
        [str(program), "density", str(trace), mode], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{PROGRAM} density failed: {done.stderr[-1000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    steps = [Use(step["chunks"], step["live"]) for step in told["steps"]]
    return Density(tuple(steps[LEARNED:]), Use(told["reserved_peak"], told["live_peak"]))


def report(result: Result, job: str, arenas: str, density: Density) -> None:
    """Add a row and figures, and bars for what the product does."""
    result.rows.append(
        (job, arenas, str(density.typical), str(density.worst), str(density.reserved))
    )
    result.figures[f"{job}, {arenas}"] = {
        "chunks_over_live": [step.ratio for step in density.steps],
        "chunks_more_bytes": [step.more for step in density.steps],
        "reserved_peak_over_live_peak": density.reserved.ratio,
        "reserved_peak_more_bytes": density.reserved.more,
    }
    if arenas != "by lifetime":
        return
    for what, use in (("chunks at a safe point", density.worst), ("reserved", density.reserved)):
        # In parts of what the bar allows, which is a ratio or a number of bytes.
        result.bars.append(Bar(f"{job}: {what}, of what is allowed", use.of_allowed, most=1.0))
