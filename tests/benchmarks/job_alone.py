# SPDX-License-Identifier: Apache-2.0
"""A job alone: `commensal run --guaranteed` against plain `python`, in turn."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness import Bar, Bench, Result, Script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import paired_ratio_interval

# Steps of a turn: about a third of a second.
STEPS = {
    "mlp_tiny": 600,
    "digits_cnn": 7,
    "char_transformer": 5,
    "gpt": 2,
    "resnet18": 2,
    "loader": 3,
}
QUICK = ("mlp_tiny",)
MiB = 1 << 20
Pair = tuple[dict[str, Any], dict[str, Any]]  # what ours and plain reported


def run(*, quick: bool) -> Result:
    """Compare step times, peak memory and start-up.

    Both processes of a pair live at the same time and train in turn, so that a machine that grows
    slower or faster does it to both. Several pairs, because where the memory of a process happens
    to lie matters, too.
    """
    result = Result(
        "job_alone",
        "A job alone under commensal run --guaranteed, over plain python",
        ["model", "plain step", "ratio", "95 % interval", "peak memory", "start-up added"],
    )
    bench = Bench(result, quick=quick)
    pairs, turns = (1, 2) if quick else (5, 6)
    added: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), 4096 * MiB) as daemon,
    ):
        for model in QUICK if quick else STEPS:
            done = [
                bench.window(
                    f"{model}, pair {number + 1} of {pairs}",
                    lambda model=model, number=number: train_in_turn(  # type: ignore[misc]
                        daemon, model, turns, ours_first=number % 2 == 0
                    ),
                )
                for number in range(pairs)
            ]
            report(result, model, done, added)
    result.bars.append(Bar("start-up added", median(added), most=0.5, unit=" s"))
    return result


def train_in_turn(daemon: Daemon, model: str, turns: int, *, ours_first: bool) -> Pair:
    """Start both sides, let them train in turn, and return what they report."""
    arguments = ("workload.py", "--model", model, "--steps", str(STEPS[model]))
    with contextlib.ExitStack() as stack:
        sides: dict[str, Script] = {}
        for name in ("ours", "plain") if ours_first else ("plain", "ours"):
            under = name == "ours"
            sides[name] = stack.enter_context(
                Script(
                    *arguments,
                    launcher=daemon.launcher("guaranteed", model, "--quiet") if under else (),
                    environment=daemon.environment() if under else {},
                )
            )
        for turn in range(turns):
            for name in ("ours", "plain") if turn % 2 else ("plain", "ours"):
                sides[name].turn()
        told = {name: side.finish() for name, side in sides.items()}
        for name, side in sides.items():
            told[name]["startup"] = told[name]["ready"] - side.started
        return told["ours"], told["plain"]


def report(result: Result, model: str, done: list[Pair], added: list[float]) -> None:
    """Add a model's row, bars and figures; collect its start-up times."""
    ratio = paired_ratio_interval(
        [turn for ours, plain in done for turn in zip(ours["turns"], plain["turns"], strict=True)]
    )
    memory = median(ours["peak_bytes"] / plain["peak_bytes"] for ours, plain in done)
    startup = [ours["startup"] - plain["startup"] for ours, plain in done]
    added.extend(startup)
    same = len({tuple(side["losses"]) for pair in done for side in pair}) == 1
    plain_step = median(second for _, plain in done for turn in plain["turns"] for second in turn)
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
        result.notes.append(f"{model}: the losses differ between the two sides")
    result.figures[model] = {
        "plain_step_seconds": plain_step,
        "step_time_ratio": ratio.value,
        "step_time_ratio_interval": [ratio.low, ratio.high],
        "peak_memory_ratio": memory,
        "startup_added_seconds": startup,
        "same_losses": same,
        "pairs": len(done),
        "pair_ratios": [
            median(map(median, ours["turns"])) / median(map(median, plain["turns"]))
            for ours, plain in done
        ],
    }
