# SPDX-License-Identifier: Apache-2.0
"""Memory given back and brought back, against what the kernel and the disk take for the bytes."""

from __future__ import annotations

import json
import subprocess
from statistics import median
from typing import Any

import numpy as np
from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program
from commensal.demo.processes import plain_environment
from commensal.demo.statistics import paired_ratio_interval

FOLDER = "/var/tmp"  # where commensal's spill file is by default
CASES = {
    "cached": ("free memory given back", "one madvise", 1.1),
    "down": ("live memory moved out", "an O_DIRECT write", 1.3),
    "up": ("live memory brought back", "an O_DIRECT read into fresh pages", 1.3),
}
# Copied while the job runs: how writes are found, and what the pauses may come to, over an O_DIRECT
# write of the same bytes, and for each 32 MiB.
AHEAD = {
    "watched": ("the kernel notes writes", 0.1, 0.5e-3),
    "hashed": ("by fingerprints", 0.4, 5e-3),
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
    for way, (how, most, most_piece) in AHEAD.items():
        add_ahead(result, found, way, how, most, most_piece)
    stops = np.array([stop for one in found for stop in one["stops"]])
    result.figures["bytes"] = mib << 20
    result.figures["stops_seconds"] = stops.tolist()
    pauses = result.figures["pauses"] = [one["pauses"] for one in found]
    typical = median(pause["seconds"] / pause["count"] for pause in pauses)
    result.notes.append(
        f"at a safe point threads stood still {pauses[0]['count']} times a round,"
        f" {milliseconds(typical)} each time"
    )
    result.notes.append(
        f"an empty stop of 9 threads: median {milliseconds(float(np.median(stops)))},"
        f" 99th percentile {milliseconds(float(np.percentile(stops, 99)))}"
    )
    if not all(one["watches"] for one in found):
        result.notes.append("this kernel does not note writes: both ways used fingerprints")
    return result


def add_ahead(
    result: Result,
    found: list[dict[str, Any]],
    way: str,
    how: str,
    most: float,
    most_piece: float,
) -> None:
    """Add what is moved while the job runs: all of it over the raw call, and its pauses."""
    figures: dict[str, Any] = {}
    for case, by_hand in (("down", "an O_DIRECT write"), ("up", "an O_DIRECT read")):
        runs = [one["ahead"][way][case] for one in found]
        raw = [float(one[case]["raw"]) for one in found]
        seconds = [float(one["seconds"]) for one in runs]
        pieces = np.array([pause for one in runs for pause in one["pauses"]])
        ratio = paired_ratio_interval([([a], [b]) for a, b in zip(seconds, raw, strict=True)])
        standing = median(sum(one["pauses"]) / a for one, a in zip(runs, raw, strict=True))
        p50, p99 = (float(np.percentile(pieces, share)) for share in (50, 99))
        what = f"while the job runs, {how}: {'out' if case == 'down' else 'back'}"
        result.rows.append(
            (
                what,
                milliseconds(median(seconds)),
                milliseconds(median(raw)),
                by_hand,
                f"{ratio.value:.2f}",
                f"{ratio.low:.2f} to {ratio.high:.2f}",
            )
        )
        result.rows.append(
            (
                "  its pauses, for each 32 MiB",
                f"{milliseconds(p50)}, p99 {milliseconds(p99)}",
                "",
                "all of them, over the same",
                f"{standing:.3f}",
                "",
            )
        )
        figures[case] = {
            "seconds": seconds,
            "ratio": [ratio.value, ratio.low, ratio.high],
            "pauses_seconds": pieces.tolist(),
            "pauses_over_raw": standing,
        }
        if case == "down":
            result.bars.append(Bar(f"pauses {how}, over {by_hand}", standing, most=most))
        limit = most_piece if case == "down" else 1e-3
        result.bars.append(Bar(f"{what}: median pause, ms", p50 * 1e3, most=limit * 1e3))
    result.figures[f"ahead_{way}"] = figures


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
