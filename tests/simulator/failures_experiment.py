# SPDX-License-Identifier: Apache-2.0
"""What retries, a blacklist of corrupt inputs and pre-runs save of the GPU-seconds that are wasted.

    python tests/simulator/failures_experiment.py

Writes results/simulator_failures.json and images/simulator_failures.png below --out (docs), and
prints the tables of results/simulator_failures.md. 2,396 jobs of Microsoft's ITP cluster06 on 16
nodes of 8 GPUs, `fit-first` under Tiresias' semantics, five seeds; every handling meets the same
failures.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from experiment import given, markdown, run_all, unpacked, write_json
from matplotlib.figure import Figure

__all__ = ["HANDLINGS", "main", "tables"]

HOUR = 3600.0
TRACE = "itp-cluster06.csv.xz"
CLUSTER = ("--nodes", "16", "--gpus-per-node", "8")
HANDLINGS = {
    "no retry": "retry=none",
    "up to 3 retries of everything": "retry=all",
    "the same, with pre-runs": "retry=all,prerun=4",
    "retries by class": "retry=class",
    "by class, blacklist": "retry=class,blacklist=on",
    "by class, blacklist, pre-runs": "retry=class,blacklist=on,prerun=4",
}
CLASSES = {
    "user": "#0f8b8d",
    "infrastructure": "#334e68",
    "semantic": "#d99a0b",
    "input": "#7b5ea7",
    "pre-runs": "#d64545",
}
# From how many GPUs on gangs are tried, and how many seconds that takes.
FROM = (2, 8, 16, 32)
SECONDS = (30, 120, 600)


def measure(program: Path, small: bool) -> dict[str, Any]:
    """Run all handlings and pre-runs with all seeds; return means."""
    seeds = range(1, 2 if small else 6)
    pre_runs = {
        (least, seconds): f"{HANDLINGS['by class, blacklist']},prerun=8,prerun-from={least},"
        f"prerun-seconds={seconds}"
        for least in FROM[: 1 if small else None]
        for seconds in SECONDS[: 1 if small else None]
    }
    words = [*HANDLINGS.values(), *pre_runs.values()]
    with tempfile.TemporaryDirectory(prefix="failures-") as name:
        trace = unpacked(TRACE, Path(name))
        common = (
            *("--trace", str(trace), *CLUSTER, "--policy", "fit-first"),
            *("--semantics", "tiresias"),
        )
        runs = [(w, seed) for w in words for seed in seeds]
        answers = run_all(
            program, [(*common, "--failures", w, "--seed", str(seed)) for w, seed in runs]
        )
    of = {w: [a for (v, _), a in zip(runs, answers, strict=True) if v == w] for w in words}
    return {
        "trace": TRACE.removesuffix(".xz"),
        "seeds": list(seeds),
        "handlings": [
            {"name": name, "options": w, **figures(of[w])} for name, w in HANDLINGS.items()
        ],
        "pre_runs": [
            {"from": least, "seconds": seconds, **figures(of[w])}
            for (least, seconds), w in pre_runs.items()
        ],
    }


def figures(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds, times in hours."""

    def over(metric: str, unit: float = 1) -> float:
        return float(mean(result["metrics"][metric] for result in results)) / unit

    wasted = {
        one["name"]: mean(
            next(c for c in result["failures"]["classes"] if c["name"] == one["name"])[
                "wasted_gpu_seconds"
            ]
            for result in results
        )
        / HOUR
        for one in results[0]["failures"]["classes"]
    }
    totals = [result["metrics"]["wasted_gpu_seconds"] / HOUR for result in results]
    return {
        "wasted_gpu_hours": {**wasted, "pre-runs": over("prerun_gpu_seconds", HOUR)},
        "wasted": over("wasted_gpu_seconds", HOUR),
        "wasted_range": [min(totals), max(totals)],
        "wasted_percent": over("wasted_percent"),
        "completed": over("completed"),
        "found_by_pre_run": mean(result["failures"]["found_by_pre_run"] for result in results),
        "jct_hours": over("avg_jct", HOUR),
        "first_report_hours": over("avg_first_report", HOUR),
    }


def tables(content: dict[str, Any]) -> str:
    """Return the tables of the page."""
    heading = (
        *("handling", "wasted, GPU-hours (seeds)", "of all held", "jobs completed"),
        *("mean completion", "first report of a failure"),
    )
    rows = [
        (
            one["name"],
            "{:,.0f} ({:,.0f} to {:,.0f})".format(one["wasted"], *one["wasted_range"]),
            f"{one['wasted_percent']:.2f} %",
            f"{one['completed']:,.1f}",
            f"{one['jct_hours']:.2f} h",
            f"{one['first_report_hours']:.2f} h",
        )
        for one in content["handlings"]
    ]
    base = next(o for o in content["handlings"] if o["name"] == "by class, blacklist")
    pre_runs = [
        (
            f"{one['from']} or more",
            f"{one['seconds']} s",
            f"{one['found_by_pre_run']:.1f}",
            f"{one['wasted_gpu_hours']['pre-runs']:,.1f}",
            f"{saved(base, one):,.1f}",
            f"{base['first_report_hours'] - one['first_report_hours']:.2f} h",
        )
        for one in content["pre_runs"]
    ]
    more = (
        *("tried: gangs of", "first step", "jobs found", "pool, GPU-hours"),
        *("saved on the cluster, GPU-hours", "first report sooner by"),
    )
    return f"{markdown(heading, rows)}\n\n{markdown(more, pre_runs)}\n"


def saved(base: dict[str, Any], one: dict[str, Any]) -> float:
    """GPU-hours of users' errors that the cluster did not see."""
    difference: float = base["wasted_gpu_hours"]["user"] - one["wasted_gpu_hours"]["user"]
    return difference


def draw(file: Path, content: dict[str, Any]) -> None:
    """Draw what is wasted, by class, and when a failure is told."""
    handlings = content["handlings"]
    names = [one["name"] for one in handlings]
    figure = Figure(figsize=(11, 4.1), dpi=110, layout="constrained")
    wasted, times = figure.subplots(1, 2, sharey=True)
    left = [0.0] * len(names)
    for kind, colour in CLASSES.items():
        values = [one["wasted_gpu_hours"][kind] for one in handlings]
        wasted.barh(names, values, left=left, color=colour, label=kind)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for at, value in enumerate(left):
        wasted.text(value, at, f" {value:,.0f}", va="center", fontsize=9)
    wasted.invert_yaxis()
    wasted.set(xlabel="GPU-hours", xlim=(0, 1.12 * max(left)))
    wasted.set_title("wasted")
    places = range(len(names))
    for shift, key, label, colour in (
        (-0.2, "jct_hours", "completion of a job", "#7b8794"),
        (0.2, "first_report_hours", "first report of a failure", "#c2649a"),
    ):
        values = [one[key] for one in handlings]
        times.barh([p + shift for p in places], values, height=0.38, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            times.text(value, place + shift, f" {value:.1f}", va="center", fontsize=9)
    times.set(xlabel="hours after the submission, mean", xlim=(0, 12))
    times.set_title("time")
    for axes in (wasted, times):
        axes.grid(visible=True, axis="x", color="#e4e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=7, frameon=False)
    figure.savefig(file)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment."""
    options = given(__doc__, argv)
    content = measure(options.program, options.small)
    write_json(options.out / "results" / "simulator_failures.json", content)
    draw(options.out / "images" / "simulator_failures.png", content)
    print(tables(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())
