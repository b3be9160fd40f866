# SPDX-License-Identifier: Apache-2.0
"""How fast each job trains with a part of its memory: ours, and as AntMan did it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jobs
from harness import Bar, Bench, Result, Script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import Interval, paired_ratio_interval

MiB = 1 << 20
LEVELS = (0.9, 0.7, 0.5, 0.3)
TURN_SECONDS = 0.5
# A job below its limit finds out what rests: at most so many steps, or so long. Nothing is measured
# meanwhile, of either policy.
SETTLE_STEPS = 100
SETTLE_SECONDS = 10.0
RESTS_SECONDS = 1.0
# Read off figure 10 of "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning" (OSDI 2020):
# part of its memory that a job has -> its speed over that with all of it. Other jobs, on a GPU.
ANTMAN_FIGURE_10 = {
    "SuperResolution": {0.9: 0.94, 0.1: 0.77},
    "VGG16": {0.5: 0.97, 0.4: 0.07},
    "ResNet-50": {0.9: 0.34, 0.8: 0.13, 0.7: 0.04},
}
Policy = Literal["elastic", "antman"]
POLICIES: tuple[Policy, ...] = ("elastic", "antman")


@dataclass
class Side:
    """A job under one policy and limit: step times of its turns, and how many bytes it held."""

    turns: list[list[float]] = field(default_factory=list)
    most_bytes: int = 0
    failed: int = 0

    def train(self, job: Script, steps: int) -> None:
        rows = json.loads(job.tell(f"train {steps}"))
        self.turns.append([row["end"] - row["begin"] for row in rows])
        self.most_bytes = max(self.most_bytes, *(row["device"] for row in rows))
        self.failed += sum(bool(row["failed"]) for row in rows)

    def settle(self, job: Script, steps: int, seconds: float) -> None:
        """Train for so many steps, or as many as fit into the time."""
        begin = time.monotonic()
        for _ in range(steps // 2):
            self.train(job, 2)
            if time.monotonic() - begin > seconds:
                break
        del self.turns[:-1]

    def steps_in(self, seconds: float) -> int:
        """Return how many steps fill a turn, by the newest ones."""
        newest = self.turns[-1]
        return max(1, round(seconds * len(newest) / sum(newest)))


@dataclass(frozen=True)
class Cell:
    """A job's speed with a part of its memory, over that with all of it in the same turns."""

    speed: Interval
    limit_bytes: int
    most_bytes: int
    failed: int
    given_back: float  # anonymous memory less than the free job's, over what the limit asks for


def run(*, quick: bool) -> Result:
    """Train each job with and without a limit in turn, policy by policy, level by level."""
    levels, turns, settle = ((0.9,), 1, 2) if quick else (LEVELS, 3, SETTLE_STEPS)
    result = Result(
        "less_memory",
        "Speed of a job with a part of its memory, over its speed with all of it "
        "(in brackets: how much less memory it has, of what the limit asks for)",
        ["job", "memory", "policy", *(f"{level:.0%}" for level in levels)],
    )
    bench = Bench(result, quick=quick)
    with (
        tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder,
        Daemon(Path(folder), 8192 * MiB) as daemon,
    ):
        for name in ("digits_cnn",) if quick else jobs.FIVE:
            peak, cells = bench.window(
                name,
                lambda name=name: measure(  # type: ignore[misc]
                    daemon, name, levels, POLICIES, turns, settle
                ),
            )
            report(result, name, peak, cells)
    for name, speeds in ANTMAN_FIGURE_10.items():
        others = (f"{level:.0%}: {speeds[level]:.2f}" for level in speeds if level not in levels)
        shown = [f"{speeds[level]:.2f}" if level in speeds else "" for level in levels]
        result.rows.append((f"(AntMan) {name}", "", ", ".join(others), *shown))
    result.figures["antman_figure_10"] = ANTMAN_FIGURE_10
    return result


def start(daemon: Daemon, name: str, policy: Policy, limit_bytes: int | None = None) -> Script:
    """Start a job that has its limit from the beginning, and lets no step go unnoticed."""
    options = ["--quiet"]
    if limit_bytes is not None:
        options += ["--memory", f"0:{limit_bytes}"]
    return Script(
        *("workload.py", "--model", name, "--warm-up", "3"),
        launcher=daemon.launcher("guaranteed", name, *options),
        environment={**daemon.environment(), "COMMENSAL_MEMORY_POLICY": policy},
    )


def measure(
    daemon: Daemon,
    name: str,
    levels: tuple[float, ...],
    compared: tuple[Policy, ...],
    turns: int,
    settle: int,
) -> tuple[int, dict[tuple[Policy, float], Cell]]:
    """Return the job's memory, the most that it holds without a limit, and its speeds."""
    cells: dict[tuple[Policy, float], Cell] = {}
    with start(daemon, name, "elastic") as free:
        whole = Side()
        whole.train(free, 4)
        peak = int(json.loads(free.tell("memory"))["peak_device_bytes"])
        for level in levels:
            limit = int(level * peak)
            with contextlib.ExitStack() as stack:
                limited: list[tuple[Policy, Script, Side]] = []
                for policy in compared:
                    job = stack.enter_context(start(daemon, name, policy, limit))
                    limited.append((policy, job, Side()))
                    limited[-1][2].settle(job, settle, SETTLE_SECONDS)
                base = Side()
                for _ in range(turns):
                    base.train(free, whole.steps_in(TURN_SECONDS))
                    for _, job, side in limited:
                        side.train(job, side.steps_in(TURN_SECONDS))
                whole_bytes = anonymous(free)
                for policy, job, side in limited:
                    speed = paired_ratio_interval(
                        list(zip(base.turns, side.turns[1:], strict=True))
                    )
                    given_back = (whole_bytes - anonymous(job)) / (peak - limit)
                    cells[policy, level] = Cell(
                        speed, limit, side.most_bytes, side.failed, given_back
                    )
                    job.finish()
        free.finish()
    return peak, cells


def anonymous(job: Script) -> int:
    """Return the bytes of a job's own memory, as the kernel counts it while it rests.

    A step that begins with a fetch ends with the next one, or when nothing happens for a while.
    """
    time.sleep(RESTS_SECONDS)
    return int(json.loads(job.tell("memory"))["RssAnon"])


def report(result: Result, name: str, peak: int, cells: dict[tuple[Policy, float], Cell]) -> None:
    """Add a job's rows, bars and figures."""
    figures: dict[str, Any] = {"peak_bytes": peak}
    for policy in dict.fromkeys(policy for policy, _ in cells):
        row = {level: cell for (of, level), cell in cells.items() if of == policy}
        shown = (f"{cell.speed.value:.2f} ({cell.given_back:.2f})" for cell in row.values())
        result.rows.append((name, f"{peak / MiB:.0f} MiB", policy, *shown))
        figures[policy] = {
            f"{level:g}": {
                "speed": cell.speed.value,
                "speed_interval": [cell.speed.low, cell.speed.high],
                "limit_bytes": cell.limit_bytes,
                "most_bytes_after_a_step": cell.most_bytes,
                "failed_steps": cell.failed,
                "given_back_over_asked": cell.given_back,
            }
            for level, cell in row.items()
        }
        held = max(cell.most_bytes / cell.limit_bytes for cell in row.values())
        if held > 1.0:
            result.notes.append(f"{name}, {policy}: held up to {held:.2f} of its limit")
        failed = sum(cell.failed for cell in row.values())
        if failed:
            result.notes.append(f"{name}, {policy}: {failed} steps failed")
    ours = {level: cell.speed.value for (of, level), cell in cells.items() if of == "elastic"}
    result.bars.append(Bar(f"{name}: ours at 90 %", ours[0.9], least=0.9))
    for level, speed in ours.items():
        if ("antman", level) in cells:
            ahead = speed / cells["antman", level].speed.value
            result.bars.append(Bar(f"{name}: ours over antman at {level:.0%}", ahead, least=1.0))
    result.figures[name] = figures
