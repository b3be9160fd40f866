# SPDX-License-Identifier: Apache-2.0
"""The demo's pair of jobs under the kernel's means and ours: slowdown and harvest."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness import Bar, Bench, BenchmarkError, Result

from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    alone_rate,
    counted_steps,
    overlap,
    phases,
    settled,
    within,
)
from commensal.demo.processes import Daemon, Job, examples_folder
from commensal.demo.runs import JobRecord, Mode, Step, WindowRecord
from commensal.demo.statistics import harvest, slowdown, slowdown_interval

MiB = 1 << 20
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Way:
    """One way to share: a launcher of the opportunistic job, or options of `commensal run`."""

    name: str
    launcher: tuple[str, ...] = ()
    commensal: bool = False
    options: tuple[str, ...] = ()


WAYS = (
    Way("default"),
    Way("nice 19", ("nice", "-n", "19")),
    Way("SCHED_IDLE", ("chrt", "-i", "0")),
    Way(
        "duty_cycle, no idle class",
        commensal=True,
        options=("--law", "duty_cycle", "--share", "0.4", "--no-idle-class"),
    ),
    Way("commensal", commensal=True),
    Way("commensal, no idle class", commensal=True, options=("--no-idle-class",)),
)


def run(*, quick: bool) -> Result:
    """Run every way of sharing, each beside windows alone."""
    result = Result(
        "sharing",
        "Guaranteed slowdown and opportunistic harvest of the demo's pair",
        ["way to share", "slowdown", "95 % interval", "rounds", "99th pct / median", "harvest"],
    )
    bench = Bench(result, quick=quick)
    rounds, steps = (1, 40) if quick else (3, 120)
    found: dict[str, list[tuple[float, float]]] = {way.name: [] for way in WAYS}
    alone: list[Step] = []
    shared: dict[str, list[Step]] = {way.name: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder:
        place = Path(folder)
        for number in range(rounds):
            guaranteed = bench.window("guaranteed alone", lambda: one(GUARANTEED, steps, place))
            opportunistic = bench.window(
                "opportunistic alone", lambda: one(OPPORTUNISTIC, steps, place)
            )
            alone += settled(guaranteed)
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                window = bench.window(way.name, lambda way=way: both(way, steps, place))  # type: ignore[misc]
                begin, end = overlap(window)
                ours = within(settled(window.jobs[GUARANTEED]), begin, end)
                shared[way.name] += ours
                done = counted_steps(window.jobs[OPPORTUNISTIC], begin, end)
                found[way.name].append(
                    (
                        slowdown(phases(settled(guaranteed), ours, waits=False)),
                        harvest(done, end - begin, alone_rate(opportunistic)),
                    )
                )
    report(result, found, alone, shared)
    return result


def script(job: str, steps: int) -> list[str]:
    name = {GUARANTEED: "digits_cnn.py", OPPORTUNISTIC: "char_transformer.py"}[job]
    return [str(examples_folder() / name), "--steps", str(steps)]


def one(job: str, steps: int, place: Path) -> JobRecord:
    with Job(job, script(job, steps), place) as running:
        return running.record()


def both(way: Way, steps: int, place: Path) -> WindowRecord:
    """Run both jobs until the guaranteed one ends; it starts when the other one trains."""
    with contextlib.ExitStack() as stack:
        daemon = None
        if way.commensal:
            runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-"))
            daemon = stack.enter_context(Daemon(Path(runtime), 4096 * MiB))

        def start(job: str, count: int, launcher: Sequence[str], options: Sequence[str]) -> Job:
            if daemon is not None:
                launcher = daemon.launcher(job, job, "--quiet", *options)
            environment = daemon.environment() if daemon is not None else None
            return stack.enter_context(
                Job(job, script(job, count), place, launcher=launcher, environment=environment)
            )

        opportunistic = start(OPPORTUNISTIC, ENDLESS, way.launcher, way.options)
        deadline = time.monotonic() + 60
        while opportunistic.steps_done() < 3:
            if time.monotonic() > deadline or not opportunistic.running():
                raise BenchmarkError(f"{way.name}: the opportunistic job did not start to train")
            time.sleep(0.1)
        guaranteed = start(GUARANTEED, steps, (), ()).record()
        return WindowRecord(
            Mode.COMMENSAL if way.commensal else Mode.DEFAULT,
            0,
            {OPPORTUNISTIC: opportunistic.stop(), GUARANTEED: guaranteed},
        )


def report(
    result: Result,
    found: dict[str, list[tuple[float, float]]],
    alone: list[Step],
    shared: dict[str, list[Step]],
) -> None:
    """Add rows, bars and figures."""
    slow: dict[str, float] = {}
    kept: dict[str, float] = {}
    typical = median(step.busy_seconds for step in alone)
    for name, rounds in found.items():
        slow[name] = median(r[0] for r in rounds)
        kept[name] = median(r[1] for r in rounds)
        interval = slowdown_interval(phases(alone, shared[name], waits=False))
        ordered = sorted(step.busy_seconds for step in shared[name])
        tail = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] / typical
        result.rows.append(
            (
                name,
                f"{slow[name]:+.1%}",
                f"{interval.low:+.1%} to {interval.high:+.1%}",
                " ".join(f"{r[0]:+.1%}" for r in rounds),
                f"{tail:.2f}",
                f"{kept[name]:.1%}",
            )
        )
        result.figures[name] = {
            "slowdown": slow[name],
            "slowdown_interval": [interval.low, interval.high],
            "slowdown_rounds": [r[0] for r in rounds],
            "p99_ratio": tail,
            "harvest": kept[name],
            "harvest_rounds": [r[1] for r in rounds],
        }
    result.bars += [
        Bar(
            "commensal: slowdown",
            slow["commensal"],
            most=round(slow["SCHED_IDLE"] + 0.02, 4),
        ),
        Bar(
            "commensal: harvest",
            kept["commensal"],
            least=round(0.8 * kept["SCHED_IDLE"], 4),
        ),
        Bar(
            "commensal, no idle class: slowdown",
            slow["commensal, no idle class"],
            most=round(slow["default"] / 4, 4),
        ),
    ]
