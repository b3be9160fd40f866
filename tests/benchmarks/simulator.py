# SPDX-License-Identifier: Apache-2.0
"""How long the simulator of policies takes: real and drawn traces, one decision, and its growth.

Programs of one thread: their seconds are processor time (user and system), which neighbours on the
machine change less than the clock's.
"""

from __future__ import annotations

import csv
import json
import lzma
import math
import os
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, Bar, Bench, BenchmarkError, Result

from allocator import find_program
from commensal.simulation import SimulatorFailed, find_simulator

DATA = HERE.parent / "data"
ITP = "COMMENSAL_ITP_TRACES"  # a folder with clusterNN.csv of microsoft/elasticflow-traces
ITP_JOBS = 69_351
ITP_BARS = {"fifo": 1.0, "2d-las": 2.0, "srtf": 2.0, "2d-gittins": 5.0}  # seconds
NODES = 1000
GPUS_PER_NODE = 8
GROWTH = (10_000, 31_623, 100_000, 316_228, 1_000_000)  # jobs
GROWTH_REPEATS = 3  # of all but the largest; the quickest counts
LOAD = 0.95  # of the GPUs, by guaranteed and auto jobs


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    user_seconds: float
    system_seconds: float
    wall_seconds: float
    peak_bytes: int  # not less than what this process had when it started the other

    @property
    def seconds(self) -> float:
        return self.user_seconds + self.system_seconds

    def cells(self) -> tuple[str, ...]:
        peak = f"{self.peak_bytes / 2**20:.0f} MiB"
        return f"{self.seconds:.2f} s", f"{self.wall_seconds:.2f} s", peak


def run(*, quick: bool) -> Result:
    """Run the traces, then the decisions, then drawn traces of growing length."""
    result = Result(
        "simulator",
        "The simulator: seconds of one core, reading included",
        ["run", "processor", "clock", "peak memory"],
    )
    bench = Bench(result, quick=quick)
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as name:
        folder = Path(name)
        real_trace(bench, folder)
        packing(bench, folder)
        growth(bench, folder)
    decisions(bench)
    return result


def real_trace(bench: Bench, folder: Path) -> None:
    """All clusters of ITP in one; of those committed here one, if the others are not there."""
    merged, nodes = folder / "itp.csv", 160
    whole = os.environ.get(ITP)
    if whole is not None:
        jobs = merge(sorted(Path(whole).glob("cluster*.csv")), merged)
        if jobs != ITP_JOBS:
            raise BenchmarkError(f"{ITP}={whole} has {jobs} jobs, not {ITP_JOBS}")
    else:
        with lzma.open(DATA / "cluster-traces" / "itp-cluster06.csv.xz") as packed:
            (folder / "cluster06.csv").write_bytes(packed.read())
        jobs, nodes = merge([folder / "cluster06.csv"], merged), 16
        bench.result.notes.append(
            f"{ITP} names no folder with the ITP traces (microsoft/elasticflow-traces): "
            f"cluster06 alone ({jobs} jobs) was run, and these bars are left out"
        )
    for policy, most in ITP_BARS.items():
        what = f"ITP, {jobs} jobs, {nodes} x 8, {policy}"
        cost = simulate(bench, what, merged, policy, "tiresias", nodes)
        if whole is not None:
            bench.result.bars.append(Bar(what, cost.seconds, most=most, unit=" s"))


def packing(bench: Bench, folder: Path) -> None:
    """One seed of FGD on Alibaba's pods."""
    with tarfile.open(DATA / "openb" / "openb.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    cluster = ("--cluster", str(folder / "openb_node_list_gpu_node.csv"), "--seed", "42")
    trace = folder / "openb_pod_list_default.csv"
    cost = simulate(bench, "fgd, default workload, one seed", trace, "fgd", "fgd", 0, cluster)
    bench.result.bars.append(Bar("fgd", cost.seconds, most=10.0, unit=" s"))


def growth(bench: Bench, folder: Path) -> None:
    """Drawn traces of more and more jobs, by antman."""
    sizes = GROWTH[:3] if bench.quick else GROWTH
    costs: dict[int, Cost] = {}
    for jobs in sizes:
        trace = draw_trace(folder / f"drawn-{jobs}.csv", jobs)
        what = f"{jobs} drawn jobs, {NODES} x 8, antman"
        repeats = 1 if jobs == sizes[-1] else GROWTH_REPEATS
        tries = [
            simulate(bench, what, trace, "antman", "commensal", NODES, shown=False)
            for _ in range(repeats)
        ]
        costs[jobs] = min(tries, key=lambda cost: cost.seconds)
        bench.result.rows.append((what, *costs[jobs].cells()))
        trace.unlink()
    bench.result.figures["growth"] = {str(jobs): asdict(cost) for jobs, cost in costs.items()}
    last = costs[sizes[-1]]
    name = f"antman, {sizes[-1]} jobs"
    bench.result.bars.append(Bar(name, last.seconds, most=60.0, unit=" s"))
    bench.result.bars.append(Bar(name, last.peak_bytes / 2**30, most=2.0, unit=" GiB"))
    seconds = [cost.seconds for cost in costs.values()]
    exponent = fitted([n * math.log2(n) for n in sizes], seconds)
    bench.result.figures["exponent of n log n"] = exponent
    bench.result.figures["exponent of n"] = fitted(list(sizes), seconds)
    bench.result.bars.append(Bar("cost as a power of n log n", exponent, most=1.1))
    if bench.folder is not None:
        bench.folder.mkdir(parents=True, exist_ok=True)
        draw_growth(bench.folder / "simulator_growth.png", sizes, seconds, exponent)


def decisions(bench: Bench) -> None:
    """Decisions of antman on a large cluster: the first of all, and those after many changes."""
    nodes, queued, changes, count = (
        (100, 1000, 50, 20) if bench.quick else (10000, 100000, 1000, 300)
    )
    program = str(find_program("decision_benchmark"))
    command = [program, "antman", str(nodes), str(queued), str(changes), str(count)]
    told = bench.window("decisions", lambda: answer_of(command)[0])
    seconds = [one["decide_cpu_ms"] + one["commit_cpu_ms"] for one in told["others"]]
    p50, p99 = (float(value) for value in np.percentile(seconds, (50, 99)))
    wall = np.percentile([one["wall_ms"] for one in told["others"]], (50, 99))
    what = f"an antman decision, {nodes} x 8, {queued} queued, {changes} changes"
    bench.result.rows.append((f"{what}: median", f"{p50:.1f} ms", f"{wall[0]:.1f} ms", ""))
    bench.result.rows.append((f"{what}: p99", f"{p99:.1f} ms", f"{wall[1]:.1f} ms", ""))
    first = told["first"]
    cpu = first["decide_cpu_ms"] + first["commit_cpu_ms"]
    bench.result.rows.append(
        (
            f"the first, which starts {first['decisions']} jobs",
            f"{cpu:.0f} ms",
            f"{first['wall_ms']:.0f} ms",
            "",
        )
    )
    bench.result.figures["decision"] = {
        "p50_ms": p50,
        "p99_ms": p99,
        "wall_p50_ms": float(wall[0]),
        "wall_p99_ms": float(wall[1]),
        "first_ms": cpu,
        "first_starts": first["decisions"],
        "running": told["running"],
        "queued": told["queued"],
        "starts": float(np.mean([one["decisions"] for one in told["others"]])),
        "decisions": len(seconds),
    }
    bench.result.bars.append(Bar("a decision, p99", p99, most=100.0, unit=" ms"))


def simulate(
    bench: Bench,
    what: str,
    trace: Path,
    policy: str,
    semantics: str,
    nodes: int,
    more: Sequence[str] = (),
    *,
    shown: bool = True,
) -> Cost:
    """Run the simulator; its cost goes into the table, if `shown`."""
    command = [
        str(simulator()),
        "--trace",
        str(trace),
        "--semantics",
        semantics,
        "--policy",
        policy,
    ]
    if nodes:
        command += ["--nodes", str(nodes), "--gpus-per-node", str(GPUS_PER_NODE)]
    answer, cost = bench.window(what, lambda: answer_of([*command, *more]))
    if shown:
        bench.result.rows.append((what, *cost.cells()))
        metrics = answer["results"][0]["metrics"]
        bench.result.figures[what] = {**asdict(cost), "avg_jct": metrics.get("avg_jct")}
    return cost


def simulator() -> Path:
    """Return the program that is installed, or that of COMMENSAL_BENCHMARK_DIR.

    Raises:
        BenchmarkError: there is none.
    """
    given = Path(os.environ.get("COMMENSAL_BENCHMARK_DIR", "")) / "commensal-simulate"
    if given.is_file():
        return given
    try:
        return find_simulator()
    except SimulatorFailed as error:
        raise BenchmarkError(str(error)) from None


def answer_of(command: Sequence[str]) -> tuple[dict[str, Any], Cost]:
    """Run a program that prints JSON; return that, and what it took.

    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            text = errors.read().decode(errors="replace")[-2000:]
            raise BenchmarkError(f"{' '.join(command)} failed:\n{text}")
        out.seek(0)
        answer: dict[str, Any] = json.load(out)
    return answer, Cost(used.ru_utime, used.ru_stime, wall, used.ru_maxrss * 1024)


def merge(files: Sequence[Path], out: Path) -> int:
    """Write the rows of several files as one, by submission, else in the order of the files."""
    rows: list[dict[str, str]] = []
    for path in files:
        with path.open(newline="") as file:
            rows += csv.DictReader(file)
    if not rows:
        raise BenchmarkError(f"no jobs in {', '.join(map(str, files)) or 'no file'}")
    rows.sort(key=lambda row: float(row["submission_time"]))
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def draw_trace(path: Path, jobs: int) -> Path:
    """Write a trace in our own format: log-normal durations, mostly of one GPU, 20 tenants."""
    random = np.random.default_rng(1)
    gpus = random.choice([1, 2, 4, 8, 16, 32], jobs, p=[0.70, 0.08, 0.07, 0.12, 0.02, 0.01])
    durations = np.minimum(np.rint(random.lognormal(7.0, 1.6, jobs)) + 1, 5 * 86400)
    classes = random.choice(["guaranteed", "opportunistic", "auto"], jobs, p=[0.6, 0.3, 0.1])
    tenants = random.integers(0, 20, jobs)
    work = float((gpus * durations)[classes != "opportunistic"].sum())
    submits = np.sort(random.random(jobs)) * work / (NODES * GPUS_PER_NODE * LOAD)
    with path.open("w") as file:
        file.write("job,submit,duration,gpus,tenant,class\n")
        file.writelines(
            f"{i},{submits[i]:.0f},{durations[i]:.0f},{gpus[i]},t{tenants[i]},{classes[i]}\n"
            for i in range(jobs)
        )
    return path


def fitted(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the power of `sizes` that `seconds` follow, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def draw_growth(
    path: Path, sizes: Sequence[int], seconds: Sequence[float], exponent: float
) -> None:
    """Draw what was measured beside n log n through the last point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    n_log_n = np.array([n * math.log2(n) for n in sizes])
    axes.plot(sizes, n_log_n / n_log_n[-1] * seconds[-1], "--", color="#7b8794", label="n log n")
    label = f"measured: (n log n) to the power of {exponent:.2f}"
    axes.plot(sizes, seconds, "o-", color="#0f8b8d", label=label)
    for n, value in zip(sizes, seconds, strict=True):
        axes.annotate(
            f"{value:.2g} s", (n, value), textcoords="offset points", xytext=(6, -14), fontsize=9
        )
    axes.set(xscale="log", yscale="log", xlabel="jobs of the trace")
    axes.set_ylabel("processor time, seconds")
    axes.set_title(f"commensal simulate: antman, {NODES:,} nodes x {GPUS_PER_NODE} GPUs")
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path)
