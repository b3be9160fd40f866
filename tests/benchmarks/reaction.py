# SPDX-License-Identifier: Apache-2.0
"""How soon opportunistic ops begin when a gap does, and end when it ends.

The gate, its law, the clock and the kernel are real; the guaranteed job is threads that compute on
every core, or wait. A gap counts as one half a millisecond after the wait began.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import numpy as np
from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program

OPS_US = (20, 1000, 5000)


def run(*, quick: bool) -> Result:
    """Measure short and long ops."""
    result = Result(
        "reaction",
        "From the begin of a gap to the first op, from its end to the end of the last",
        ["op", "gaps", "first op, p50", "p99", "last op ends, p50", "p99", "worst", "longest op"],
    )
    bench = Bench(result, quick=quick)
    program = str(find_program("gate_benchmark"))
    gaps = 50 if quick else 1000

    def measure(length: int) -> dict[str, Any]:
        done = subprocess.run(
            [program, str(gaps), str(length)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip())
        found: dict[str, Any] = json.loads(done.stdout)
        if not found["first"]:
            raise BenchmarkError(f"no op of {length} us ran in any of {gaps} gaps")
        return found

    for length in OPS_US:
        report(
            result,
            length,
            bench.window(f"ops of {length} us", lambda length=length: measure(length)),  # type: ignore[misc]
        )
    return result


def report(result: Result, length: int, found: dict[str, Any]) -> None:
    """Add a row and its bars."""
    name = f"{length} us"
    first = [float(np.quantile(found["first"], part)) for part in (0.5, 0.99)]
    last = [float(np.quantile(found["last"], part)) for part in (0.5, 0.99, 1.0)]
    longest = float(found["longest"])
    result.rows.append(
        (
            name,
            str(len(found["first"])),
            *(f"{value:.0f} us" for value in (*first, *last, longest)),
        )
    )
    result.figures[name] = {
        **{"first_op_us": first, "last_op_us": last, "longest_us": longest},
        **{"gaps": len(found["first"]), "missed": found["missed"]},
    }
    result.bars += [
        Bar(f"{name}: first op, p50", first[0], most=200, unit=" us"),
        Bar(f"{name}: first op, p99", first[1], most=2000, unit=" us"),
        Bar(f"{name}: last op, worst over the longest", last[2] - longest, most=1000, unit=" us"),
    ]
    if not found["idle_class"]:
        result.notes.append(f"{name}: the kernel refused its idle class")
    if found["missed"]:
        result.notes.append(f"{name}: no op in {found['missed']} gaps")
