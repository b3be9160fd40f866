# SPDX-License-Identifier: Apache-2.0
"""The elastic allocator against malloc and against mapping anew, as a table."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness import HERE, Bench, BenchmarkError, Result

PROGRAM = "allocator_benchmark"


def find_program(name: str) -> Path:
    """Return a C++ benchmark, from COMMENSAL_BENCHMARK_DIR or a build folder.

    Raises:
        BenchmarkError: it was not built.
    """
    folder = os.environ.get("COMMENSAL_BENCHMARK_DIR")
    builds = HERE.parents[1] / "build"
    places = [Path(folder)] if folder else sorted(builds.glob("*/tests/benchmarks"))
    found = [place / name for place in places if (place / name).exists()]
    if not found:
        raise BenchmarkError(
            f"{name} is not built: cmake --preset release && cmake --build --preset release"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def run(*, quick: bool) -> Result:
    """Run the C++ benchmark and show the median of its repetitions."""
    result = Result(
        "allocator",
        "Allocate, touch and free",
        ["case", "elastic", "malloc", "mmap each time"],
    )
    bench = Bench(result, quick=quick)
    program = find_program(PROGRAM)
    times = bench.window("all cases", lambda: run_program(program, quick=quick))
    cases: dict[str, dict[str, float]] = {}
    for name, nanoseconds in times.items():
        kind, _, case = name.partition("/")
        cases.setdefault(case, {})[kind] = nanoseconds
    for case, kinds in cases.items():
        result.rows.append(
            (case, *(readable(kinds.get(kind)) for kind in ("elastic", "malloc", "mmap")))
        )
    result.figures = {"nanoseconds": cases}
    return result


def run_program(program: Path, *, quick: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        subprocess.run(
            [
                str(program),
                f"--benchmark_min_time={0.02 if quick else 0.2}",
                f"--benchmark_repetitions={3 if quick else 5}",
                "--benchmark_enable_random_interleaving=true",
                "--benchmark_report_aggregates_only=true",
                f"--benchmark_out={out}",
                "--benchmark_out_format=json",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rows: list[dict[str, Any]] = json.loads(out.read_text())["benchmarks"]
    return {
        row["run_name"].removesuffix("/real_time"): float(row["real_time"])
        for row in rows
        if row.get("aggregate_name") == "median"
    }


def readable(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return ""
    return f"{nanoseconds:.0f} ns" if nanoseconds < 1e4 else f"{nanoseconds / 1e3:.1f} us"
