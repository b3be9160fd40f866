# SPDX-License-Identifier: Apache-2.0
"""AntMan's comparison on 64 GPUs, with real traces: against YARN's capacity scheduler, Gandiva and
Tiresias (docs/results/simulator_antman.md).

    python tests/simulator/antman_comparison.py                         tables in Markdown
    python tests/simulator/antman_comparison.py --picture antman.png    and a picture
    python tests/simulator/antman_comparison.py --program build/release/.../commensal-simulate

All on 8 nodes of 8 GPUs with our co-execution model: `antman` shares GPUs behind our gate, Gandiva
(by Gavel's model, rounds of 360 s) in pairs, by the driver's time slices and, as if it had our
gate's gain, by a second table. The traces are those of tests/data/cluster-traces, as recorded and
with their submissions stretched until the work fits. ITP does not say who is guaranteed: half of
its jobs are, drawn with a seed, as in Muri's traces.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["Case", "Figures", "Job", "Way", "compare", "main", "read_cases"]

DATA = Path(__file__).parents[1] / "data" / "cluster-traces"
NODES, GPUS_PER_NODE = 8, 8
GPUS = NODES * GPUS_PER_NODE
HOUR = 3600.0
SEED = 1
FITTING_LOAD = 0.9  # of the GPUs, of a trace that is stretched

# coordinator/engines/simulator/coexecution.h: a guaranteed job is slower by the SLO at most, the
# other one has the efficiency of what is left; two by time slices have half each.
SLO, EFFICIENCY, BUSY = 0.01, 0.84, 0.6
GATE_SPEED = (1 / (1 + SLO) + EFFICIENCY * (1 - BUSY / (1 + SLO)) / BUSY) / 2
SLICED_SPEED = 0.5

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"


@dataclass(frozen=True)
class Job:
    """A row of a trace."""

    name: str
    submit: float
    duration: float
    gpus: int
    job_class: str

    @property
    def work(self) -> float:
        return self.duration * self.gpus


@dataclass(frozen=True)
class Case:
    """Jobs in the order of their submissions."""

    name: str
    jobs: tuple[Job, ...]

    @property
    def load(self) -> float:
        """Of the GPUs, while jobs arrive."""
        span = self.jobs[-1].submit - self.jobs[0].submit
        return sum(job.work for job in self.jobs) / (GPUS * span)

    def stretched(self, load: float) -> Case:
        """Return the same jobs, submitted so much slower that they ask for `load`."""
        factor = self.load / load
        jobs = tuple(replace(job, submit=job.submit * factor) for job in self.jobs)
        return Case(f"{self.name}, stretched", jobs)

    def guaranteed_only(self) -> Case:
        return Case(self.name, tuple(job for job in self.jobs if job.job_class == GUARANTEED))


@dataclass(frozen=True)
class Way:
    """How the jobs are run."""

    name: str
    policy: str
    pair_speed: float | None = None  # of each of two on a GPU: by Gavel's model
    alone: bool = False  # without the opportunistic jobs


WAYS = (
    Way("capacity (YARN)", "capacity"),
    Way("Gandiva, time slices", "gandiva", SLICED_SPEED),
    Way("Gandiva, our gate's gain", "gandiva", GATE_SPEED),
    Way("Tiresias (2D-LAS)", "2d-las"),
    Way("antman", "antman"),
    Way("antman, guaranteed jobs alone", "antman", alone=True),
)


@dataclass(frozen=True)
class Figures:
    """What came out, in hours."""

    jcts: tuple[float, ...]  # sorted
    guaranteed_jct: float
    guaranteed_queue: float
    span: float  # from the first submission to the last end
    preemptions: int
    work: float  # GPU-hours
    harvested: float  # GPU-hours of work that jobs did without a quota

    @property
    def mean(self) -> float:
        return sum(self.jcts) / len(self.jcts)

    def quantile(self, q: float) -> float:
        return self.jcts[int(q * len(self.jcts))]


def read_rows(file: str) -> list[dict[str, str]]:
    with lzma.open(DATA / file, "rt", newline="") as text:
        return list(csv.DictReader(text))


def read_cases(most: int | None = None) -> list[Case]:
    """Return both traces, as recorded and stretched; `most`: so many first jobs of each."""
    draw = random.Random(SEED)
    itp = [
        Job(
            row["job_id"],
            float(row["submission_time"]),
            max(1.0, float(row["duration"])),
            int(row["num_gpu"]),
            draw.choice((GUARANTEED, OPPORTUNISTIC)),
        )
        for row in read_rows("itp-cluster06.csv.xz")
    ]
    muri = [
        Job(
            row["job_id"],
            float(row["submit_time"]) / 1000,
            max(1.0, float(row["duration"]) / 1000),
            int(row["num_gpu"]),
            (GUARANTEED, OPPORTUNISTIC)[int(row["priority"])],
        )
        for row in read_rows("muri-trace1.csv.xz")
    ]
    recorded = [
        Case(name, tuple(sorted(jobs, key=lambda job: job.submit)[:most]))
        for name, jobs in (("ITP cluster06", itp), ("Muri trace1", muri))
    ]
    return [*recorded, *(case.stretched(FITTING_LOAD) for case in recorded)]


def write_trace(path: Path, case: Case, way: Way) -> list[str]:
    """Write a trace; return the options with which it is read."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        if way.pair_speed is None:
            out.writerow(("job", "submit", "duration", "gpus", "class"))
            out.writerows((j.name, j.submit, j.duration, j.gpus, j.job_class) for j in case.jobs)
            return ["--format", "commensal", "--semantics", "commensal"]
        # A step takes a second alone.
        out.writerow(
            ("job_type", "total_steps", "num_gpu", "priority_weight", "extra", "arrival_s")
        )
        out.writerows(("job", round(j.duration), j.gpus, 1, "", j.submit) for j in case.jobs)
    pair = [way.pair_speed, way.pair_speed]
    keys = [f"('job', {gpus})" for gpus in sorted({job.gpus for job in case.jobs})]
    table = {"gpu": {key: {"null": 1.0, key: pair} for key in keys}}
    speeds = path.with_suffix(".json")
    speeds.write_text(json.dumps(table))
    return ["--format", "gavel", "--semantics", "gavel", "--profiles", str(speeds)]


def simulate(program: Path, case: Case, way: Way) -> Figures:
    """Run one way on one case."""
    if way.alone:
        case = case.guaranteed_only()
    with tempfile.TemporaryDirectory(prefix="antman-comparison-") as name:
        trace, ended = Path(name) / "trace.csv", Path(name) / "jobs.csv"
        options = write_trace(trace, case, way)
        subprocess.run(
            [
                *(str(program), "--trace", str(trace), *options, "--policy", way.policy),
                *("--nodes", str(NODES), "--gpus-per-node", str(GPUS_PER_NODE)),
                *("--jobs-out", str(ended)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        with ended.open(newline="") as file:
            rows = list(csv.DictReader(file))
    by_name = {job.name: job for job in case.jobs}
    by_name |= {f"row {number}": job for number, job in enumerate(case.jobs)}
    jobs = [by_name[row["job"]] for row in rows]
    sure = [row for row, job in zip(rows, jobs, strict=True) if job.job_class == GUARANTEED]
    free = [job.work for job in jobs if job.job_class == OPPORTUNISTIC]
    return Figures(
        jcts=tuple(sorted(float(row["jct"]) / HOUR for row in rows)),
        guaranteed_jct=sum(float(row["jct"]) for row in sure) / len(sure) / HOUR,
        guaranteed_queue=sum(float(row["waited"]) for row in sure) / len(sure) / HOUR,
        span=(max(float(row["end"]) for row in rows) - case.jobs[0].submit) / HOUR,
        preemptions=sum(int(row["preemptions"]) for row in rows),
        work=sum(job.work for job in jobs) / HOUR,
        harvested=sum(free) / HOUR if way.policy == "antman" else 0.0,
    )


def compare(program: Path, cases: Sequence[Case]) -> dict[str, dict[str, Figures]]:
    """Run every way on every case: by case, then by way."""
    runs = [(case, way) for case in cases for way in WAYS]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        done = pool.map(lambda run: simulate(program, *run), runs)
        figures = iter(list(done))
    return {case.name: {way.name: next(figures) for way in WAYS} for case in cases}


HEADING = (
    *(
        "policy",
        "mean JCT, h",
        "over antman's",
        "median",
        "p95",
        "p99",
        "makespan, h",
        "over antman's",
    ),
    *("guaranteed: mean JCT", "queueing", "preemptions", "work a GPU-hour", "harvested, GPU-h"),
)


def table(ways: dict[str, Figures]) -> str:
    """Return a Markdown table."""
    ours = ways["antman"]
    lines = [f"| {' | '.join(HEADING)} |", f"|{'---|' * len(HEADING)}"]
    for name, one in ways.items():
        alone = name.endswith("alone")
        cells = (
            name,
            f"{one.mean:,.1f}",
            "" if alone or one is ours else f"{one.mean / ours.mean:.2f}",
            *(f"{one.quantile(q):,.1f}" for q in (0.5, 0.95, 0.99)),
            f"{one.span:,.0f}",
            "" if alone or one is ours else f"{one.span / ours.span:.2f}",
            f"{one.guaranteed_jct:,.1f}",
            f"{one.guaranteed_queue:,.1f}",
            f"{one.preemptions:,}",
            f"{one.work / (GPUS * one.span):.2f}",
            f"{one.harvested:,.0f}" if one.harvested else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(path: Path, cases: Sequence[Case], compared: dict[str, dict[str, Figures]]) -> None:
    """Draw completion times: a panel a case, a curve a way."""
    from matplotlib.figure import Figure

    colours = ("#d64545", "#d99a0b", "#7b5ea7", "#334e68", "#0f8b8d")
    ways = [way for way in WAYS if not way.alone]
    figure = Figure(figsize=(10, 7), dpi=110, layout="constrained")
    for axes, case in zip(figure.subplots(2, 2).flat, cases, strict=True):
        for way, colour in zip(ways, colours, strict=True):
            jcts = compared[case.name][way.name].jcts
            shares = [100 * (i + 1) / len(jcts) for i in range(len(jcts))]
            width = 2.6 if way.name == "antman" else 1.6
            label = way.name if case is cases[0] else None
            axes.plot(jcts, shares, color=colour, linewidth=width, label=label)
        axes.set(xscale="log", xlim=(0.05, None), ylim=(0, 101))
        axes.set(xlabel="completion time, hours", ylabel="jobs done, %")
        axes.set_title(f"{case.name}: jobs for {case.load:.0%} of {GPUS} GPUs", fontsize=11)
        axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found = shutil.which("commensal-simulate")
    parser.add_argument("--program", type=Path, default=found and Path(found), metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    parser.add_argument("--jobs", type=int, metavar="N", help="the first N of each trace only")
    args = parser.parse_args(argv)
    if args.program is None:
        parser.error("commensal-simulate is not on the PATH: name it by --program")
    cases = read_cases(args.jobs)
    compared = compare(args.program, cases)
    for case in cases:
        print(f"{case.name}: {len(case.jobs):,} jobs for {case.load:.0%} of {GPUS} GPUs\n")
        print(table(compared[case.name]), end="\n\n")
    if args.picture is not None:
        draw(args.picture, cases, compared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
