# SPDX-License-Identifier: Apache-2.0
"""What the gate costs an op, and that it costs nothing while it is off."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness import HERE, Bar, Bench, BenchmarkError, Result, run_script

from commensal.demo.processes import Daemon, end_process
from commensal.demo.statistics import Interval, paired_ratio_interval

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
    """Time ops in processes that take turns, then with a metered gate within one process."""
    result = Result(
        "gate_cost",
        "Processor time of a tiny op (torch.add of 16 numbers)",
        ["", "ns an op", "over", "added ns", "95 % interval"],
    )
    bench = Bench(result, quick=quick)
    library = ("--library", str(find_library()))
    rounds = ("--rounds", str(3 if quick else 10))
    pairs = 1 if quick else 5
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder:
        runtime = Path(folder)
        with Daemon(runtime / "off", 4096 * MiB) as off, Daemon(runtime / "on", 4096 * MiB) as on:
            sides: dict[str, Side] = {
                "as_is": Side("plain python", rounds),
                "off": Side("a guaranteed job, gate off", rounds, off, "guaranteed"),
                "empty": Side("an empty callback", (*rounds, *library)),
                "gate": Side("the gate, open in a gap", rounds, on, "opportunistic"),
            }
            with waiting_job(on, runtime):
                for pair in range(pairs):
                    # Whoever runs first meets the colder machine: take turns.
                    for name in sides if pair % 2 == 0 else reversed(sides):
                        measure_side(bench, name, sides[name])
        times, _ = bench.window(
            "a metered gate in turn",
            lambda: run_script(
                "gate_loop.py",
                *("--modes", "metered", "--rounds", str(5 if quick else 25)),
                *library,
            ),
        )
    added: dict[str, Interval] = {}
    for name, base in (("off", "as_is"), ("empty", "as_is"), ("gate", "empty")):
        added[name] = added_nanoseconds(sides[name].times, sides[base].times)
        report(result, sides[name].label, sides[name].flat(), sides[base].label, added[name])
    metered = added_nanoseconds([times["metered"]], [times["empty"]])
    report(result, "the gate, metered", times["metered"], "an empty callback", metered)
    result.rows.insert(0, ("plain python", f"{median(sides['as_is'].flat()):.0f}", "", "", ""))
    result.figures["plain_nanoseconds"] = median(sides["as_is"].flat())
    result.bars += [
        Bar("the open gate over an empty callback", added["gate"].value, most=50.0, unit=" ns"),
        Bar("the metered gate over an empty callback", metered.value, most=200.0, unit=" ns"),
        # "No difference": the interval reaches down to zero.
        Bar("gate off over plain, lower bound", added["off"].low, most=0.0, unit=" ns"),
    ]
    return result


@dataclass
class Side:
    """One kind of process, and the times of its runs."""

    label: str
    arguments: tuple[str, ...]
    daemon: Daemon | None = None
    job_class: str = ""
    times: list[list[float]] = field(default_factory=list)

    def flat(self) -> list[float]:
        return [time for run in self.times for time in run]


def measure_side(bench: Bench, name: str, side: Side) -> None:
    """Run one process of a side and keep its times."""
    launcher: list[str] = []
    environment: dict[str, str] = {}
    if side.daemon is not None:
        launcher = side.daemon.launcher(side.job_class, "ops", "--quiet", "--no-idle-class")
        environment = side.daemon.environment()
    modes = "as_is" if name == "off" else name
    times, _ = bench.window(
        side.label,
        lambda: run_script(
            *("gate_loop.py", "--modes", modes, *side.arguments),
            launcher=launcher,
            environment=environment,
        ),
    )
    side.times.append(times[modes])


@contextlib.contextmanager
def waiting_job(daemon: Daemon, folder: Path) -> Iterator[None]:
    """Keep a guaranteed job waiting for its storage, so that the gate is needed, and open.

    Raises:
        BenchmarkError: it did not come to wait.
    """
    mark = folder / "waiting"
    command = [sys.executable, str(HERE / "waiting_job.py"), "--mark", str(mark)]
    process = subprocess.Popen(
        [*daemon.launcher("guaranteed", "waiting", "--quiet"), *command],
        env=daemon.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not mark.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError("the guaranteed job that waits did not start")
            time.sleep(0.1)
        yield
    finally:
        end_process(process)


def added_nanoseconds(shared: list[list[float]], base: list[list[float]]) -> Interval:
    """Return what one side takes more than the other, with its interval, over pairs of runs."""
    ratio = paired_ratio_interval(list(zip(shared, base, strict=True)))
    typical = median(time for run in base for time in run)
    return Interval(*((value - 1) * typical for value in (ratio.value, ratio.low, ratio.high)))


def report(result: Result, label: str, times: Sequence[float], over: str, added: Interval) -> None:
    """Add a row and its figures."""
    interval = f"{added.low:+.0f} to {added.high:+.0f}"
    result.rows.append((label, f"{median(times):.0f}", over, f"{added.value:+.0f}", interval))
    result.figures[label] = {
        "nanoseconds": median(times),
        "over": over,
        "added_nanoseconds": added.value,
        "added_nanoseconds_interval": [added.low, added.high],
    }
