# SPDX-License-Identifier: Apache-2.0
"""A job whose memory limit is below its working set: what each step moves, reads and writes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import Bench, Result

from allocator import find_program

COLUMNS = {
    "disk_read_mib": "MiB read",
    "disk_written_mib": "MiB written",
    "moved_mib": "MiB moved",
    "fences": "fences",
    "paused_ms": "ms paused",
    "safe_point_ms": "ms at the safe point",
}


def run(*, quick: bool) -> Result:
    """Run the C++ benchmark: a working set of 128 MiB, used in five ways, under three limits."""
    result = Result(
        "pressure",
        "A step under a limit below the working set",
        ["case", "working set / limit", "ms", *COLUMNS.values()],
    )
    bench = Bench(result, quick=quick)
    program = find_program("pressure_benchmark")
    cases = bench.window("all cases", lambda: run_program(program))
    for case in cases:
        use, ratio = case["name"].split("/")[:2]
        figures = (f"{case[column]:.1f}" for column in COLUMNS)
        result.rows.append((use, ratio, f"{case['real_time']:.1f}", *figures))
    result.figures = {"cases": cases}
    return result


def run_program(program: Path) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run(
            [str(program), f"--benchmark_out={out}", "--benchmark_out_format=json"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rows: list[dict[str, Any]] = json.loads(out.read_text())["benchmarks"]
    return rows
