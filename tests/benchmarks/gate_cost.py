# SPDX-License-Identifier: Apache-2.0
"""What the gate costs an op, and that it costs nothing while it is off."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from statistics import median

from harness import HERE, Bar, Bench, BenchmarkError, Result, run_script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import bootstrap_interval, paired_ratio_interval

MiB = 1 << 20
LIBRARY = "libcommensal_empty_callback.so"


def find_library() -> Path:
    """Return the empty callback's library, from COMMENSAL_BENCHMARK_DIR or a build folder.

    Raises:
        BenchmarkError: it was not built.
    """
    root = HERE.parents[1]
    folder = os.environ.get("COMMENSAL_BENCHMARK_DIR")
    places = [Path(folder)] if folder else sorted((root / "build").glob("*/tests/benchmarks"))
    found = [place / LIBRARY for place in places if (place / LIBRARY).exists()]
    if not found:
        raise BenchmarkError(
            f"{LIBRARY} is not built: cmake --preset release && cmake --build --preset release"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def run(*, quick: bool) -> Result:
    """Time ops with and without callbacks in one process, then with the gate off in two."""
    result = Result(
        "gate_cost",
        "Processor time of a tiny op (torch.add of 16 numbers)",
        ["", "ns an op", "added ns", "95 % interval"],
    )
    bench = Bench(result, quick=quick)
    rounds = 5 if quick else 25
    library = find_library()
    times, _ = bench.window(
        "callbacks in turn",
        lambda: run_script("gate_loop.py", "--rounds", str(rounds), "--library", str(library)),
    )
    base = median(times["none"])
    result.rows.append(("no callback", f"{base:.0f}", "", ""))
    for mode, over, label in (
        ("empty", "none", "an empty callback, over none"),
        ("ours", "empty", "the gate, metered and open, over the empty one"),
    ):
        # The modes of a round are neighbours in time: differences of neighbours.
        differences = [a - b for a, b in zip(times[mode], times[over], strict=True)]
        added = bootstrap_interval(
            [differences], lambda drawn: float(sorted(drawn[0])[len(drawn[0]) // 2])
        )
        result.rows.append(
            (
                label,
                f"{median(times[mode]):.0f}",
                f"{added.value:+.0f}",
                f"{added.low:+.0f} to {added.high:+.0f}",
            )
        )
        result.figures[mode] = {
            "nanoseconds": median(times[mode]),
            "added_nanoseconds": added.value,
            "added_nanoseconds_interval": [added.low, added.high],
        }
    result.figures["none"] = {"nanoseconds": base}
    result.bars.append(
        Bar(
            "the gate over an empty callback",
            result.figures["ours"]["added_nanoseconds"],
            most=50.0,
            unit=" ns",
        )
    )
    gate_off(result, bench, rounds=3 if quick else 10, pairs=1 if quick else 5)
    return result


def gate_off(result: Result, bench: Bench, *, rounds: int, pairs: int) -> None:
    """Compare a plain process with a guaranteed job, whose gate is off."""
    sides: dict[str, list[list[float]]] = {"plain": [], "off": []}
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), 4096 * MiB) as daemon,
    ):
        for pair in range(pairs):
            for side in ("plain", "off") if pair % 2 == 0 else ("off", "plain"):
                off = side == "off"
                launcher = daemon.launcher("guaranteed", "ops", "--quiet") if off else []
                environment = daemon.environment() if off else {}
                times, _ = bench.window(
                    f"gate {side}" if off else "plain",
                    lambda launcher=launcher, environment=environment: run_script(  # type: ignore[misc]
                        *("gate_loop.py", "--rounds", str(rounds)),
                        launcher=launcher,
                        environment=environment,
                    ),
                )
                sides[side].append(times["as_is"])
    ratio = paired_ratio_interval(list(zip(sides["off"], sides["plain"], strict=True)))
    plain = median(median(times) for times in sides["plain"])
    off_time = median(median(times) for times in sides["off"])
    result.rows.append(("plain python", f"{plain:.0f}", "", ""))
    result.rows.append(
        (
            "a guaranteed job, gate off",
            f"{off_time:.0f}",
            f"{(ratio.value - 1) * plain:+.0f}",
            f"{(ratio.low - 1) * plain:+.0f} to {(ratio.high - 1) * plain:+.0f}",
        )
    )
    result.figures["off"] = {
        "nanoseconds": off_time,
        "plain_nanoseconds": plain,
        "ratio": ratio.value,
        "ratio_interval": [ratio.low, ratio.high],
    }
    # "No difference": the interval reaches down to one.
    result.bars.append(Bar("gate off over plain, lower bound of the ratio", ratio.low, most=1.0))
