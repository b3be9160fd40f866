# SPDX-License-Identifier: Apache-2.0
"""A job alone: `commensal run --guaranteed` against plain `python`, in turn."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import Bar, Bench, Result, run_script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import paired_ratio_interval

STEPS = {"mlp_tiny": 3000, "digits_cnn": 60, "transformer": 60}
MiB = 1 << 20


def run(*, quick: bool) -> Result:
    """Compare step times, peak memory and start-up."""
    result = Result(
        "job_alone",
        "A job alone under commensal run --guaranteed, over plain python",
        ["model", "plain step", "ratio", "95 % interval", "peak memory", "start-up added"],
    )
    bench = Bench(result, quick=quick)
    pairs = 1 if quick else 5
    added: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), 4096 * MiB) as daemon,
    ):
        for model, full_steps in STEPS.items():
            steps = str(max(10, full_steps // (5 if quick else 1)))
            sides: dict[str, list[tuple[dict[str, Any], float]]] = {"plain": [], "ours": []}
            for pair in range(pairs):
                # Whoever runs first meets the colder machine: take turns.
                for side in ("plain", "ours") if pair % 2 == 0 else ("ours", "plain"):
                    under = side == "ours"
                    sides[side].append(
                        bench.window(
                            f"{model}, {side}",
                            lambda under=under, model=model, steps=steps: run_script(  # type: ignore[misc]
                                "workload.py",
                                *("--model", model, "--steps", steps),
                                launcher=daemon.launcher("guaranteed", model, "--quiet")
                                if under
                                else [],
                                environment=daemon.environment() if under else {},
                            ),
                        )
                    )
            report(result, model, sides, added)
    result.bars.append(Bar("start-up added", median(added), most=0.5, unit=" s"))
    return result


def report(
    result: Result,
    model: str,
    sides: dict[str, list[tuple[dict[str, Any], float]]],
    added: list[float],
) -> None:
    """Add a model's row, bars and figures; collect its start-up times."""
    paired = list(zip(sides["ours"], sides["plain"], strict=True))
    ratio = paired_ratio_interval(
        [(ours["seconds"], plain["seconds"]) for (ours, _), (plain, _) in paired]
    )
    memory = median(o["peak_bytes"] / p["peak_bytes"] for (o, _), (p, _) in paired)
    startup = [(o["ready"] - o_at) - (p["ready"] - p_at) for (o, o_at), (p, p_at) in paired]
    added.extend(startup)
    same = len({one["loss"] for side in sides.values() for one, _ in side}) == 1
    plain_step = median(median(p["seconds"]) for p, _ in sides["plain"])
    result.rows.append(
        (
            model,
            f"{plain_step * 1e3:.2f} ms",
            f"{ratio.value:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            f"{memory:.3f}",
            f"{median(startup):+.2f} s",
        )
    )
    result.bars += [
        Bar(f"{model}: step time ratio, upper bound", ratio.high, most=1.02),
        Bar(f"{model}: peak memory ratio", memory, most=1.05),
    ]
    if not same:
        result.notes.append(f"{model}: the last loss differs between the two sides")
    result.figures[model] = {
        "plain_step_seconds": plain_step,
        "step_time_ratio": ratio.value,
        "step_time_ratio_interval": [ratio.low, ratio.high],
        "peak_memory_ratio": memory,
        "startup_added_seconds": startup,
        "same_loss": same,
        "pairs": len(paired),
    }
