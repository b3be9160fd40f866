# SPDX-License-Identifier: Apache-2.0
"""SJF with predicted durations against SJF with true ones, on generated jobs that recur.

    python tests/simulator/prediction.py                      table; 6 shares, 4 noises, ten seeds
    python tests/simulator/prediction.py --seeds 2 --jobs 2000
    python tests/simulator/prediction.py --json FILE --picture FILE

The gain is what a policy takes off the mean completion time of FIFO, in percent of what SJF with
true durations takes off. Ends with 1 if the mean gain of the finest predictor at 65 % recurrence is
below 90 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

__all__ = ["Case", "gains", "main"]

RECURRENCES = (0.0, 0.25, 0.5, 0.65, 0.8, 0.95)
NOISES = (0.0, 0.2, 0.5, 1.0)
RECURRENCE, NOISE = 0.65, 0.2  # while the other changes
PREDICTORS = ("group-request", "group", "qssf", "user")
BAR = 90.0
NODES = GPUS_PER_NODE = 8

# By name: the policy and who predicts for it.
RUNS = {
    "fifo": ("fifo", "truth"),
    "sjf truth": ("sjf", "truth"),
    **{f"sjf {name}": ("sjf", name) for name in PREDICTORS},
    "qssf": ("qssf", "qssf"),
}


@dataclass(frozen=True)
class Case:
    """One trace."""

    recurrence: float
    noise: float
    seed: int


Figures = dict[str, dict[str, Any]]  # by the names of RUNS: metrics, and prediction if any


def run_case(program: str, jobs: int, case: Case) -> Figures:
    """Generate the trace of a case and put it through all runs."""
    with tempfile.TemporaryDirectory(prefix="prediction-") as folder:
        trace = str(Path(folder) / "jobs.csv")
        options = [f"jobs={jobs}", f"gpus={NODES * GPUS_PER_NODE}"]
        options += [f"recurrence={case.recurrence}", f"noise={case.noise}"]
        made = [word for option in options for word in ("--option", option)]
        _ask(program, "--generate", "recurrent", "--out", trace, "--seed", str(case.seed), *made)
        figures = {}
        for name, (policy, predictor) in RUNS.items():
            answer = _ask(
                *(program, "--trace", trace, "--policy", policy, "--predict", predictor),
                *("--nodes", str(NODES), "--gpus-per-node", str(GPUS_PER_NODE)),
            )
            result = answer["results"][0]
            figures[name] = {k: result[k] for k in ("metrics", "prediction") if k in result}
        return figures


def gains(figures: Figures) -> dict[str, float]:
    """Return the gain of each run in percent of that of true durations."""
    times = {name: figure["metrics"]["avg_jct"] for name, figure in figures.items()}
    most = times["fifo"] - times["sjf truth"]
    return {name: 100 * (times["fifo"] - time) / most for name, time in times.items()}


def _ask(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def summarised(cases: dict[Case, Figures]) -> list[dict[str, Any]]:
    """Return means over the seeds, with least and most gains."""
    rows = []
    for recurrence, noise in dict.fromkeys((case.recurrence, case.noise) for case in cases):
        of = [f for c, f in cases.items() if (c.recurrence, c.noise) == (recurrence, noise)]
        row: dict[str, Any] = {"recurrence": recurrence, "noise": noise, "seeds": len(of)}
        row["runs"] = {}
        for name in RUNS:
            gain = [gains(figures)[name] for figures in of]
            metrics = [figures[name]["metrics"] for figures in of]
            row["runs"][name] = run = {
                "gain_percent": statistics.fmean(gain),
                "gain_least_percent": min(gain),
                "gain_most_percent": max(gain),
                "avg_jct": statistics.fmean(one["avg_jct"] for one in metrics),
                "median_jct": statistics.fmean(one["median_jct"] for one in metrics),
                "p99_jct": statistics.fmean(one["p99_jct"] for one in metrics),
            }
            errors = [
                figures[name]["prediction"] for figures in of if "prediction" in figures[name]
            ]
            for key in ("coverage_percent", "mape_percent", "median_error_percent"):
                if errors:
                    run[key] = statistics.fmean(error[key] for error in errors)
        rows.append(row)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line a trace and run."""
    heading = f"{'recurrence':>10} {'noise':>5}  {'run':<18} {'mean JCT, s':>11} {'gain, %':>8}"
    print(f"{heading} {'least':>6} {'most':>6} {'coverage':>8} {'mean err':>8} {'median':>7}")
    for row in rows:
        for name, run in row["runs"].items():
            line = f"{row['recurrence']:>10.2f} {row['noise']:>5.1f}  {name:<18}"
            line += f" {run['avg_jct']:>11,.0f} {run['gain_percent']:>8.1f}"
            line += f" {run['gain_least_percent']:>6.1f} {run['gain_most_percent']:>6.1f}"
            if "mape_percent" in run:
                line += f" {run['coverage_percent']:>8.1f} {run['mape_percent']:>8.1f}"
                line += f" {run['median_error_percent']:>7.1f}"
            print(line)


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write the picture: gains by recurrence, and times at 65 %."""
    from matplotlib.figure import Figure

    colours = dict(zip(PREDICTORS, ("#0f8b8d", "#334e68", "#d99a0b", "#d64545"), strict=True))
    by_share = [row for row in rows if row["noise"] == NOISE]
    by_share.sort(key=lambda row: float(row["recurrence"]))
    shares = [100 * row["recurrence"] for row in by_share]
    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for name, colour in colours.items():
        runs = [row["runs"][f"sjf {name}"] for row in by_share]
        mean = [run["gain_percent"] for run in runs]
        style = "--" if name == "group" else "-"  # it lies upon the finest
        left.plot(shares, mean, style, marker="o", color=colour, label=name, linewidth=1.8)
        least = [run["gain_least_percent"] for run in runs]
        most = [run["gain_most_percent"] for run in runs]
        left.fill_between(shares, least, most, color=colour, alpha=0.12, linewidth=0)
    left.axhline(BAR, color="#7b8794", linestyle="--", linewidth=1)
    left.axvline(100 * RECURRENCE, color="#7b8794", linestyle=":", linewidth=1)
    left.set(xlabel="jobs of groups that recur, %", ylim=(-25, 105))
    left.set_title("SJF by predictions: gain over FIFO, % of SJF by true durations")
    seeds = f"mean of {by_share[0]['seeds']} seeds, least to most"
    left.legend(loc="lower right", edgecolor="white", framealpha=1, title=f"predicted by ({seeds})")
    at = next(row["runs"] for row in by_share if row["recurrence"] == RECURRENCE)
    names = ["fifo", *(f"sjf {name}" for name in reversed(PREDICTORS)), "sjf truth"]
    hours = [at[name]["avg_jct"] / 3600 for name in names]
    tints = ["#7b8794", *reversed(list(colours.values())), "#5a9e3f"]
    bars = right.barh(names, hours, color=tints)
    right.bar_label(bars, fmt="%.1f h", padding=3)
    right.set(xlim=(0, 1.15 * max(hours)), xlabel="hours")
    right.invert_yaxis()
    right.set_title(f"mean completion time at {100 * RECURRENCE:.0f} %")
    for axes in (left, right):
        axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--program", default=shutil.which("commensal-simulate"))
    parser.add_argument("--seeds", type=int, default=10, help="1 to so many (default: 10)")
    parser.add_argument("--jobs", type=int, default=10_000, help="of each trace (default: 10000)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    given = parser.parse_args(argv)
    if given.program is None:
        parser.error("commensal-simulate is not installed: --program PATH")
    kinds = chain(((r, NOISE) for r in RECURRENCES), ((RECURRENCE, n) for n in NOISES))
    seeds = range(1, given.seeds + 1)
    cases = [Case(*kind, seed) for kind in dict.fromkeys(kinds) for seed in seeds]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = pool.map(lambda case: run_case(given.program, given.jobs, case), cases)
        rows = summarised(dict(zip(cases, done, strict=True)))
    print_table(rows)
    if given.json is not None:
        text = json.dumps({"jobs": given.jobs, "seeds": given.seeds, "rows": rows}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    if given.picture is not None:
        draw(given.picture, rows)
    at = next(r for r in rows if (r["recurrence"], r["noise"]) == (RECURRENCE, NOISE))
    gain = at["runs"]["sjf group-request"]["gain_percent"]
    print(f"gain by group-request at {100 * RECURRENCE:.0f} %: {gain:.1f} % (bar: {BAR:.0f} %)")
    return 0 if gain >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
