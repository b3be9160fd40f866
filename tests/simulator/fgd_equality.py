# SPDX-License-Identifier: Apache-2.0
"""Runs FGD's experiments, and prints the mean allocation beside the published one.

    python tests/simulator/fgd_equality.py                        all workloads, ten seeds
    python tests/simulator/fgd_equality.py default --seeds 2      one of them, two seeds
    python tests/simulator/fgd_equality.py --program build/release/.../commensal-simulate

A part of equality.py (`--only fgd`). Ends with 1 if a mean is further than 0.3 points from the
published mean of ten seeds; with fewer seeds, four standard errors of their mean are added to that.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["main", "run"]

DATA = Path(__file__).parents[1] / "data"
FIRST_SEED = 42
ALL_SEEDS = 10
TOLERANCE = 0.3  # points

Run = tuple[str, str, int]  # workload, policy, seed


def read_expected() -> dict[tuple[str, str], dict[str, float]]:
    """Return their means by workload and policy, and by metric."""
    expected: dict[tuple[str, str], dict[str, float]] = {}
    with (DATA / "expected" / "fgd.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["trace"].removeprefix("openb-2023 "), row["policy"])
            expected.setdefault(key, {})[row["metric"]] = float(row["value"])
    return expected


def simulate(program: str, folder: Path, run: Run) -> dict[str, float]:
    """Return the metrics of one run."""
    workload, policy, seed = run
    answer = subprocess.run(
        [
            *(program, "--trace", str(folder / f"openb_pod_list_{workload}.csv")),
            *("--format", "openb", "--cluster", str(folder / "openb_node_list_gpu_node.csv")),
            *("--semantics", "fgd", "--policy", policy, "--seed", str(seed)),
        ],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    metrics: dict[str, float] = json.loads(answer.stdout)["results"][0]["metrics"]
    return metrics


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="default: all")
    parser.add_argument("--seeds", type=int, default=ALL_SEEDS, help="from 42 on (default: 10)")
    parser.add_argument("--program", default=shutil.which("commensal-simulate"))
    return parser


def run(program: str, workloads: Sequence[str], seeds: int) -> tuple[int, int]:
    """Print both means of all workloads, or of some; return how many are too far, of how many."""
    expected = read_expected()
    keys = [key for key in expected if not workloads or key[0] in workloads]
    runs = [(*key, FIRST_SEED + seed) for key in keys for seed in range(seeds)]
    with tempfile.TemporaryDirectory(prefix="fgd-") as name:
        with tarfile.open(DATA / "openb" / "openb.tar.xz") as archive:
            archive.extractall(name, filter="data")
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            metrics = dict(
                zip(
                    runs,
                    pool.map(lambda run: simulate(program, Path(name), run), runs),
                    strict=True,
                )
            )
    print(f"{'workload':<12} {'policy':<15} {'demand %':>8} {'theirs':>7} {'ours':>7}  spread")
    far = total = 0
    for key in keys:
        for metric, theirs in expected[key].items():
            ours = [metrics[run][metric] for run in runs if run[:2] == key]
            mean, spread = statistics.mean(ours), statistics.pstdev(ours)
            fewer = max(0.0, 1 / len(ours) - 1 / ALL_SEEDS)
            is_far = abs(mean - theirs) > TOLERANCE + 4 * max(spread, 0.25) * math.sqrt(fewer)
            far += is_far
            total += 1
            demand = metric.removeprefix("gpu_allocation_ratio_at_demand_").removesuffix("pct")
            print(
                f"{key[0]:<12} {key[1]:<15} {demand:>8} {theirs:>7.2f} {mean:>7.2f} {spread:>7.2f}"
                + ("  TOO FAR" if is_far else "")
            )
    return far, total


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a mean is too far from theirs."""
    parser = build_parser()
    args = parser.parse_args(argv)
    unknown = set(args.workloads) - {workload for workload, _ in read_expected()}
    if unknown or args.seeds < 1 or args.program is None:
        parser.error(f"no such workload {unknown}, no seeds {args.seeds}, or no commensal-simulate")
    far, _ = run(args.program, args.workloads, args.seeds)
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
