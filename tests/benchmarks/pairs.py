# SPDX-License-Identifier: Apache-2.0
"""Four pairs of jobs under the kernel's means, the published laws and ours.

In each way to share both jobs live, the guaranteed one works all the time, and the opportunistic
one in every second window: so each window beside it has one without it next to it, in the same
process.
A pair that was measured is kept in the output folder, and not measured again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from groups import Groups, NoGroups, two_groups
from harness import CONSOLE, Bar, Bench, BenchmarkError, Result, Script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import bootstrap_interval

MiB = 1 << 20
SLO = 0.01
CORES = len(os.sched_getaffinity(0))
DROPPED = 0.1  # of each window, at its beginning
Steps = list[tuple[float, float]]
MARKERS = "sXDPv^<o*"  # of the ways, in their order
COLORS = ("0.5", "#d64545", "#e07b39", "#b8860b", "#7a5195", "#374c80", "#bc5090", "", "")
TICKS = (-20, -5, 0, 5, 20, 100, 1000)  # of the picture: percent of slowdown


@dataclass(frozen=True)
class Pair:
    """A guaranteed job, the part of its time that it waits for storage, and its neighbour."""

    name: str
    guaranteed: str
    stalls: float
    opportunistic: str
    guaranteed_threads: int | None = None  # None: one for each core

    @property
    def serves(self) -> bool:
        return self.guaranteed == "server"


PAIRS = (
    Pair("resnet18 (30 % stalls) + transformer", "resnet18", 0.3, "char_transformer"),
    Pair("small transformer (60 % stalls) + mlp", "small_transformer", 0.6, "mlp"),
    Pair("mlp (no stalls) + bandwidth", "mlp", 0.0, "bandwidth"),
    Pair("server (20 requests a second) + transformer", "server", 0.0, "char_transformer"),
)


@dataclass(frozen=True)
class Way:
    """One way to share."""

    name: str
    launcher: tuple[str, ...] = ()  # of the opportunistic job
    commensal: bool = False
    options: tuple[str, ...] = ()  # of the opportunistic job's `commensal run`
    guaranteed_options: tuple[str, ...] = ()
    settle: float = 0.0  # windows that it is given to learn, before it is measured
    sweep: tuple[Way, ...] = field(default=(), compare=False)
    weights: tuple[int, int] | None = None  # of two control groups: the opportunistic job's first
    idle: bool = False  # the opportunistic job does nothing: what two equal windows differ by


def law(name: str, *options: str, guaranteed: tuple[str, ...] = (), settle: float = 0.5) -> Way:
    chosen = ("--law", name, *options)
    return Way(" ".join(chosen[1:] + guaranteed), (), True, chosen, guaranteed, settle)


OURS = "commensal"
NO_IDLE = "commensal, no idle class"
NOBODY = "nobody (A/A)"
WAYS = (
    Way(NOBODY, idle=True),
    Way("default"),
    Way("SCHED_IDLE", ("chrt", "-i", "0")),
    Way(
        "cgroup weight",
        sweep=tuple(Way(f"1 against {high}", weights=(1, high)) for high in (100, 10000)),
    ),
    Way(
        "duty_cycle",
        commensal=True,
        sweep=tuple(law("duty_cycle", "--share", f"0:{share}") for share in (0.1, 0.3, 0.6)),
    ),
    Way(
        "rate_aimd",
        commensal=True,
        sweep=tuple(
            law("rate_aimd", guaranteed=("--slo", slo), settle=3.0) for slo in ("1", "3", "10")
        ),
    ),
    Way(
        "token_window",
        commensal=True,
        sweep=tuple(law("token_window", "--share", share) for share in ("0:1", "0.2:1", "0:0.3")),
    ),
    Way(OURS, commensal=True, settle=0.5),
    Way(NO_IDLE, commensal=True, options=("--no-idle-class",), settle=0.5),
)
RIVALS = ("duty_cycle", "rate_aimd", "token_window")
QUICK = tuple(way for way in WAYS if way.name in (NOBODY, "default", OURS))


@dataclass(frozen=True)
class Window:
    """What both jobs did in a window without the opportunistic job, and in the one after it."""

    alone: Steps
    shared: Steps
    other: Steps
    seconds: float
    busy: float  # of the device's time alone


def run(*, quick: bool) -> Result:
    """Measure all pairs that were not measured yet."""
    result = Result(
        "pairs",
        "Guaranteed slowdown and opportunistic harvest",
        ["pair and way to share", "slowdown", "95 % interval", "p99", "harvest", "of the oracle"],
    )
    bench = Bench(result, quick=quick)
    rounds, seconds = (1, 4.0) if quick else (5, 20.0)
    for pair in PAIRS[1:2] if quick else PAIRS:
        kept = None if Bench.folder is None else Bench.folder / f"pairs-{PAIRS.index(pair)}.json"
        measured = measure(bench, pair, rounds, seconds, kept)
        result.judged = result.judged and measured["judged"]
        report(result, pair, measured["ways"])
    if Bench.folder is not None:
        draw(result.figures, Bench.folder / "pairs.png")
    return result


def measure(
    bench: Bench, pair: Pair, rounds: int, seconds: float, kept: Path | None
) -> dict[str, Any]:
    """Run every way of one pair that is not in `kept` yet, and add each to it."""
    measured: dict[str, Any] = {}
    if kept is not None and kept.exists():
        measured = json.loads(kept.read_text())
    if measured.get("quick") != bench.quick:
        measured = {"pair": pair.name, "quick": bench.quick, "judged": not bench.quick}
        measured |= {"stall": stall_seconds(pair), "ways": {}}
    bench.result.judged = measured["judged"]
    ways: dict[str, Any] = measured["ways"]
    stall = measured["stall"]
    rate = measured.get("rate")
    if rate is None:
        rate = bench.window(
            f"{pair.name}: {pair.opportunistic} alone",
            lambda: alone_rate(pair.opportunistic, seconds),
        )

    def both(way: Way, count: int, length: float) -> dict[str, Any]:
        with sharing(pair, way, stall) as (guaranteed, other):
            if way.settle > 0.0:
                work(guaranteed, other, way.settle * length)
            windows = [
                bench.window(
                    f"{pair.name}: {way.name}",
                    lambda: one(guaranteed, None if way.idle else other, length),
                )
                for _ in range(count)
            ]
        return figures(windows, rate, tail=pair.serves) | {"options": way.name}

    def keep() -> None:
        measured.update(rate=rate, judged=bench.result.judged)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(measured, indent=1))

    for way in QUICK if bench.quick else WAYS:
        if way.name in ways:
            CONSOLE.print(
                f"pairs: {pair.name}: {way.name}: as in {kept}", style="dim", markup=False
            )
            continue
        chosen = way
        if any(point.weights for point in way.sweep) and (reason := why_no_groups()):
            ways[way.name] = {"left_out": reason}
            continue
        if way.sweep:
            points = way.sweep[:1] if bench.quick else way.sweep
            tried = [(point, both(point, 1, seconds / 2)) for point in points]
            chosen = best(tried)
            ways[f"{way.name}, sweep"] = {point.name: found for point, found in tried}
        ways[way.name] = both(chosen, rounds, seconds)
        keep()
    keep()
    return measured


def why_no_groups() -> str:
    """Return why jobs cannot be put into control groups with weights here; empty: they can."""
    try:
        with two_groups(1, 100):
            return ""
    except NoGroups as error:
        return str(error)


def best(tried: Sequence[tuple[Way, dict[str, Any]]]) -> Way:
    """Return the point of the largest harvest of those that cost at most 5 %, else the cheapest."""
    cheap = [(way, found) for way, found in tried if found["slowdown"] <= 0.05]
    if cheap:
        return max(cheap, key=lambda entry: float(entry[1]["harvest"]))[0]
    return min(tried, key=lambda entry: float(entry[1]["slowdown"]))[0]


def stall_seconds(pair: Pair) -> float:
    """Return how long the storage takes, so that it is the stated part of the time alone."""
    if pair.stalls == 0.0:
        return 0.0
    with Script("paired_job.py", "--model", pair.guaranteed) as job:
        typical = median(end - begin for begin, end in observe(job, 2.0))
    return typical * pair.stalls / (1.0 - pair.stalls)


def observe(job: Script, seconds: float) -> Steps:
    """Let a job work for a while, and return its steps."""
    job.tell("go")
    time.sleep(seconds)
    job.tell("stop")
    return take(job)


def take(job: Script) -> Steps:
    return [(begin, end) for begin, end in json.loads(job.tell("take"))]


def alone_rate(model: str, seconds: float) -> float:
    """Return a job's steps a second, alone and without commensal."""
    with Script("paired_job.py", "--model", model) as job:
        observe(job, 0.2 * seconds)
        steps = observe(job, seconds)
    return (len(steps) - 1) / (steps[-1][1] - steps[0][1])


@contextlib.contextmanager
def sharing(pair: Pair, way: Way, stall: float) -> Iterator[tuple[Script, Script]]:
    """Start both jobs of a pair."""
    with contextlib.ExitStack() as stack:
        daemon = None
        groups: Groups | None = None
        if way.weights is not None:
            groups = stack.enter_context(two_groups(*way.weights))
        if way.commensal:
            runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-"))
            daemon = stack.enter_context(Daemon(Path(runtime), 4096 * MiB))

        def start(model: str, job_class: str, options: Sequence[str], *arguments: str) -> Script:
            launcher: Sequence[str] = way.launcher if job_class == "opportunistic" else ()
            if daemon is not None:
                launcher = daemon.launcher(job_class, job_class, "--quiet", *options)
            if groups is not None:
                group = groups.low if job_class == "opportunistic" else groups.high
                launcher = [*Groups.launcher(group), *launcher]
            environment = dict(daemon.environment()) if daemon is not None else {}
            if job_class == "guaranteed" and pair.guaranteed_threads is not None:
                environment["OMP_NUM_THREADS"] = str(pair.guaranteed_threads)
            return stack.enter_context(
                Script(
                    *("paired_job.py", "--model", model, *arguments),
                    launcher=launcher,
                    environment=environment,
                )
            )

        storage = ("--stall", repr(stall))
        guaranteed = start(pair.guaranteed, "guaranteed", way.guaranteed_options, *storage)
        other = start(pair.opportunistic, "opportunistic", way.options)
        guaranteed.tell("go")
        yield guaranteed, other


def work(guaranteed: Script, other: Script, seconds: float) -> None:
    """Let both work, and forget what they did."""
    other.tell("go")
    time.sleep(seconds)
    other.tell("stop")
    take(guaranteed), take(other)


def one(guaranteed: Script, other: Script | None, seconds: float) -> Window:
    """Measure a window without the other job, then one beside it; None: without it again."""
    used = cpu_seconds(guaranteed.pid)
    take(guaranteed)
    time.sleep(seconds)
    alone = take(guaranteed)
    busy = (cpu_seconds(guaranteed.pid) - used) / (CORES * seconds)
    if other is not None:
        other.tell("go")
    begin = time.monotonic()
    time.sleep(seconds)
    shared = take(guaranteed)
    end = time.monotonic()
    beside: Steps = []
    if other is not None:
        other.tell("stop")  # may take a while where it is held back
        beside = take(other)
    first = begin + DROPPED * seconds
    return Window(
        alone[int(DROPPED * len(alone)) :],
        [step for step in shared if step[0] >= first],
        [(b, e) for b, e in beside if first <= e <= end],
        end - first,
        busy,
    )


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(windows: Sequence[Window], rate: float, *, tail: bool) -> dict[str, Any]:
    """Turn windows into slowdown, harvest and what could be had."""

    def quantile(steps: Steps, part: float) -> float:
        if not steps:
            raise BenchmarkError("the guaranteed job took no step in a whole window")
        return float(np.quantile([end - begin for begin, end in steps], part))

    typical = 0.99 if tail else 0.5
    slow = [quantile(w.shared, typical) / quantile(w.alone, typical) - 1 for w in windows]
    tails = [quantile(w.shared, 0.99) / quantile(w.alone, 0.99) - 1 for w in windows]
    got = [len(w.other) / w.seconds / rate for w in windows]
    busy = median(w.busy for w in windows)
    oracle = max(0.0, 1.0 - busy / (1.0 + SLO))
    interval = bootstrap_interval([np.asarray(slow)], lambda drawn: float(np.median(drawn[0])))
    return {
        "slowdown": median(slow),
        "slowdown_interval": [interval.low, interval.high],
        "slowdown_windows": slow,
        "p99": median(tails),
        "harvest": median(got),
        "harvest_windows": got,
        "busy": busy,
        "oracle": oracle,
        "efficiency": median(got) / oracle if oracle > 0 else 0.0,
    }


def report(result: Result, pair: Pair, ways: dict[str, Any]) -> None:
    """Add a pair's rows and bars."""
    result.figures[pair.name] = ways
    result.rows.append((pair.name, *[""] * 5))
    for name, found in ways.items():
        if "left_out" in found:
            result.rows.append((f"  {name}: left out, {found['left_out']}", *[""] * 5))
        if "slowdown" not in found:
            continue
        low, high = found["slowdown_interval"]
        result.rows.append(
            (
                f"  {name}",
                f"{found['slowdown']:+.1%}",
                f"{low:+.1%} to {high:+.1%}",
                f"{found['p99']:+.1%}",
                f"{found['harvest']:.1%}",
                f"{found['efficiency']:.2f}",
            )
        )
    ours, plain = ways[OURS], ways["default"]
    low, high = ways[NOBODY]["slowdown_interval"]
    result.bars.append(Bar(f"{pair.name}: A/A, interval to 0", max(low, -high, 0.0), most=0.0))
    low, high = ours["slowdown_interval"]
    result.bars.append(Bar(f"{pair.name}: A/A", abs(ways[NOBODY]["slowdown"]), most=0.02))
    if pair.serves:
        result.bars.append(Bar(f"{pair.name}: p99 latency", ours["p99"], most=0.1))
    else:
        result.bars.append(Bar(f"{pair.name}: slowdown", ours["slowdown"], most=SLO))
    if pair.stalls > 0:
        result.bars += [
            Bar(f"{pair.name}: upper bound", high, most=0.03),
            Bar(f"{pair.name}: harvest of the oracle", ours["efficiency"], least=0.85),
        ]
    else:
        result.bars.append(Bar(f"{pair.name}: harvest", ours["harvest"], least=0.0001))
    if "SCHED_IDLE" in ways:
        kept = ours["harvest"] / max(1e-9, ways["SCHED_IDLE"]["harvest"])
        result.bars.append(Bar(f"{pair.name}: harvest of SCHED_IDLE's", kept, least=0.85))
        worse = max(0.0, low - ways["SCHED_IDLE"]["slowdown_interval"][1])
        name = f"{pair.name}: slowdown, its interval beyond SCHED_IDLE's"
        result.bars.append(Bar(name, worse, most=0.0))
    if NO_IDLE in ways:
        part = ways[NO_IDLE]["slowdown"] / max(1e-9, plain["slowdown"])
        name = f"{pair.name}: no idle class, of default sharing's slowdown"
        result.bars.append(Bar(name, part, most=0.25))
    for rival in (name for name in RIVALS if name in ways):
        theirs = ways[rival]
        result.bars += [
            Bar(
                f"{pair.name}: slowdown less {rival}'s",
                ours["slowdown"] - theirs["slowdown"],
                most=0.0,
            ),
            Bar(
                f"{pair.name}: harvest over {rival}'s",
                ours["harvest"] / max(1e-9, theirs["harvest"]),
                least=1.0,
            ),
        ]


def draw(found: dict[str, Any], file: Path) -> None:
    """Draw slowdown and harvest of each way, a panel a pair, two in a row."""
    from matplotlib import pyplot

    rows = (len(found) + 1) // 2
    figure, axes = pyplot.subplots(rows, 2, figsize=(11, 4.2 * rows + 0.8), squeeze=False)
    looks = {
        way.name: {"marker": marker, "color": "#0f8b8d" if way.name.startswith(OURS) else color}
        for way, marker, color in zip(WAYS, MARKERS, COLORS, strict=True)
    }
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (name, ways) in zip(axes.flat, found.items(), strict=False):
        shown = {way: one for way, one in ways.items() if "slowdown" in one}
        for way, one_way in shown.items():
            at = (100 * one_way["slowdown"], 100 * one_way["harvest"])
            low, high = (100 * bound for bound in one_way["slowdown_interval"])
            axis.plot([low, high], [at[1], at[1]], color=looks[way]["color"], alpha=0.4, zorder=1)
            axis.scatter(*at, zorder=2, s=60, label=way, **looks[way])
        oracle = 100 * shown[OURS]["oracle"]
        axis.axhline(oracle, linestyle=":", color="0.4", label="to be had without harm")
        axis.axvline(100 * SLO, linestyle="--", color="0.4", label=f"allowed: {100 * SLO:.0f} %")
        axis.set_xscale("symlog", linthresh=5)
        axis.set_xticks(TICKS, [f"{tick:+d}" if tick else "0" for tick in TICKS])
        axis.minorticks_off()
        axis.margins(0.1)
        axis.set_title(name, fontsize=11)
        axis.set_xlabel("slowdown of the guaranteed job, % (line: 95 % interval)")
        axis.set_ylabel("harvest of the opportunistic job, %")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=9)
    figure.tight_layout(rect=(0, 0.8 / figure.get_figheight(), 1, 1))
    figure.savefig(file, dpi=100)
    pyplot.close(figure)
