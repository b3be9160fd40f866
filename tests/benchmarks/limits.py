# SPDX-License-Identifier: Apache-2.0
"""Memory given back and brought back, against what the kernel and the disk take for the bytes."""

from __future__ import annotations

import json
import subprocess
from statistics import median
from typing import Any

from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program
from commensal.demo.processes import plain_environment
from commensal.demo.statistics import paired_ratio_interval

FOLDER = "/var/tmp"  # where commensal's spill file is by default
CASES = {
    "cached": ("free memory given back", "one madvise", 1.2),
    "down": ("live memory moved out", "an O_DIRECT write", 1.5),
    "up": ("live memory brought back", "an O_DIRECT read into fresh pages", 1.5),
}


def run(*, quick: bool) -> Result:
    """Set a limit below what is held, and lift it again; each time do the same by hand."""
    mib, rounds = (64, 2) if quick else (1024, 9)
    result = Result(
        "limits",
        f"A memory limit down and up again by {mib} MiB",
        ["what", "ours", "by hand", "", "ours : by hand", "95 % interval"],
    )
    bench = Bench(result, quick=quick)
    found = bench.window(f"{rounds} rounds", lambda: run_program(mib, rounds))
    for case, (what, by_hand, most) in CASES.items():
        ours = [float(one[case]["ours"]) for one in found]
        raw = [float(one[case]["raw"]) for one in found]
        # Each round is one pair: what the disk does in other rounds does not count.
        ratio = paired_ratio_interval([([a], [b]) for a, b in zip(ours, raw, strict=True)])
        result.rows.append(
            (
                what,
                milliseconds(median(ours)),
                milliseconds(median(raw)),
                by_hand,
                f"{ratio.value:.2f}",
                f"{ratio.low:.2f} to {ratio.high:.2f}",
            )
        )
        result.bars.append(Bar(f"{what}, over {by_hand}", ratio.value, most=most))
        result.figures[case] = {
            "ours_seconds": ours,
            "raw_seconds": raw,
            "ratio": [ratio.value, ratio.low, ratio.high],
        }
    pauses = [one["pauses"] for one in found]
    result.figures["bytes"] = mib << 20
    result.figures["pauses"] = pauses
    typical = median(pause["seconds"] / pause["count"] for pause in pauses)
    result.notes.append(
        f"threads stood still {pauses[0]['count']} times a round, {milliseconds(typical)} each time"
    )
    return result


def run_program(mib: int, rounds: int) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(find_program("limit_benchmark")), FOLDER, str(mib), str(rounds)],
        env=plain_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(done.stderr.strip())
    return [json.loads(line) for line in done.stdout.splitlines()]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
