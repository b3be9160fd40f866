# SPDX-License-Identifier: Apache-2.0
"""Philly with quotas: waiting split into fair share and fragmentation
(docs/results/simulator_philly.md).

    python tests/simulator/philly_quotas.py                             tables in Markdown
    python tests/simulator/philly_quotas.py --json FILE --picture FILE  figures and a picture too
    python tests/simulator/philly_quotas.py --program build/release/.../commensal-simulate

The jobs of Microsoft's Philly, whose virtual clusters are tenants with a quota each: the servers of
8 GPUs that Helios' artifact gives them, eight to a rack. The trace is a condensed one and light, so
that it is also run on a cluster and quotas that are several times smaller.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Figures", "Split", "Way", "cluster_of", "main", "measure"]

TRACE = Path(__file__).parents[1] / "data" / "cluster-traces" / "philly.csv.xz"
GPUS_PER_SERVER = 8
SERVERS_PER_RACK = 8
# Servers of each virtual cluster (S-Lab-System-Group/HeliosArtifact); others have one.
SERVERS = {
    "6214e9": 64,
    "7f04ca": 32,
    "11cb48": 16,
    "b436b2": 64,
    "ee9e8c": 64,
    "e13805": 16,
    "6c71a0": 32,
    "2869ce": 16,
    "ed69ec": 8,
    "103959": 8,
    "0e4a51": 32,
}
SIZES = (("1", 1), ("2 to 4", 4), ("5 to 8", 8), ("more than 8", 1 << 30))
MINUTE = 60.0


@dataclass(frozen=True)
class Way:
    """A policy with its options."""

    name: str
    policy: str
    options: tuple[str, ...] = ()


WAYS = (
    Way("philly", "philly"),
    Way("philly, locality never relaxed", "philly", ("tries=1000000000",)),
    Way("philly, nobody stopped", "philly", ("stop-above=100",)),
    Way("antman, all jobs guaranteed", "antman"),
)


@dataclass(frozen=True)
class Split:
    """How some jobs waited; means in seconds over all of them."""

    name: str
    jobs: int
    delayed: float  # of them, for a minute and more
    fair_share: float
    fragmentation: float

    @property
    def waited(self) -> float:
        return self.fair_share + self.fragmentation


@dataclass(frozen=True)
class Figures:
    """One run."""

    way: str
    shrink: int
    gpus: int
    avg_jct: float
    preemptions: int
    all: Split
    sizes: tuple[Split, ...]
    tenants: tuple[Split, ...]


def cluster_of(rows: Iterable[dict[str, str]], shrink: int) -> dict[str, object]:
    """Return a cluster file: quotas `shrink` times smaller, but with room for each job."""
    largest: dict[str, int] = {}
    for row in rows:
        largest[row["cluster"]] = max(largest.get(row["cluster"], 1), int(row["num_gpus"]))
    servers = {
        tenant: max(-(-SERVERS.get(tenant, 1) // shrink), -(-largest[tenant] // GPUS_PER_SERVER))
        for tenant in sorted(largest)
    }
    left = sum(servers.values())
    nodes: list[dict[str, int]] = []
    while left > 0:
        count = min(left, SERVERS_PER_RACK)
        nodes.append({"count": count, "gpus": GPUS_PER_SERVER, "rack": len(nodes)})
        left -= count
    tenants = [{"name": name, "quota": GPUS_PER_SERVER * n} for name, n in servers.items()]
    return {"nodes": nodes, "tenants": tenants}


def measure(program: Path, trace: Path, way: Way, shrink: int) -> Figures:
    """Run one way on a cluster that is `shrink` times smaller."""
    with trace.open(newline="", encoding="utf-8") as file:
        cluster = cluster_of(csv.DictReader(file), shrink)
    with tempfile.TemporaryDirectory(prefix="philly-") as name:
        folder = Path(name)
        (folder / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
        command = [
            *(str(program), "--trace", str(trace), "--format", "philly"),
            *("--semantics", "commensal", "--cluster", str(folder / "cluster.json")),
            *("--policy", way.policy, "--jobs-out", str(folder / "jobs.csv")),
            *(part for option in way.options for part in ("--option", option)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        answer = json.loads(done.stdout)
        with (folder / "jobs.csv").open(newline="", encoding="utf-8") as file:
            jobs = list(csv.DictReader(file))
    metrics = answer["results"][0]["metrics"]
    names = sorted({job["tenant"] for job in jobs})
    by_tenant = (_split(name, [job for job in jobs if job["tenant"] == name]) for name in names)
    return Figures(
        way.name,
        shrink,
        answer["cluster"]["gpus"],
        round(metrics["avg_jct"], 2),
        int(metrics["preemptions"]),
        _split("all", jobs),
        tuple(_split(size, _of_size(jobs, number)) for number, (size, _) in enumerate(SIZES)),
        tuple(sorted(by_tenant, key=lambda split: -split.jobs * split.waited)),
    )


def _of_size(jobs: list[dict[str, str]], number: int) -> list[dict[str, str]]:
    least = SIZES[number - 1][1] if number > 0 else 0
    return [job for job in jobs if least < int(job["gpus"]) <= SIZES[number][1]]


def _split(name: str, jobs: list[dict[str, str]]) -> Split:
    n = max(1, len(jobs))
    waited = [float(job["waited"]) for job in jobs]
    quota = [float(job["waited_for_quota"]) for job in jobs]
    delayed = sum(one >= MINUTE for one in waited) / n
    fragmentation = (sum(waited) - sum(quota)) / n
    return Split(
        name, len(jobs), round(delayed, 5), round(sum(quota) / n, 2), round(fragmentation, 2)
    )


def _table(figures: Sequence[Figures]) -> str:
    lines = [
        "| GPUs | policy | mean completion | stops | GPUs of the job | jobs | waited 1 min "
        "| mean wait | of it fair share | fragmentation |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in figures:
        first = f"{one.gpus} | {one.way} | {one.avg_jct / 3600:.2f} h | {one.preemptions}"
        for split in (one.all, *one.sizes):
            lines.append(
                f"| {first} | {split.name} | {split.jobs} | {split.delayed:.1%} "
                f"| {split.waited / MINUTE:.1f} min | {split.fair_share / MINUTE:.1f} "
                f"| {split.fragmentation / MINUTE:.1f} |"
            )
            first = " | | | "
    return "\n".join(lines)


def _draw(path: Path, figures: Sequence[Figures]) -> None:
    from matplotlib.figure import Figure

    smallest = [one for one in figures if one.gpus == min(f.gpus for f in figures)]
    figure = Figure(figsize=(11, 4.2), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    colours = ("#0f8b8d", "#d64545", "#d99a0b", "#334e68")
    for number, one in enumerate(smallest):
        colour = colours[number % len(colours)]
        rows = [i + (number - (len(smallest) - 1) / 2) * 0.2 for i in range(len(SIZES))]
        _dots(left, rows, one.sizes, colour, one.way)
        if number == 0:
            shown = one.tenants[:8]
            _dots(right, list(range(len(shown))), shown, colour, one.way)
            right.set_yticks(range(len(shown)), [split.name for split in shown])
    left.set_yticks(range(len(SIZES)), [name for name, _ in SIZES])
    left.set_ylabel("GPUs of the job")
    left.set_title(f"mean wait by size of the job ({smallest[0].gpus} GPUs)")
    right.set_title("philly: by tenant")
    for axes in (left, right):
        axes.set(xscale="log", xlabel="minutes")
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x", color="#e4e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    figure.suptitle(
        "filled: the quota had no room (fair share); hollow: it had (fragmentation), "
        "at 0.01 if less",
        fontsize=10,
    )
    figure.savefig(path)


def _dots(
    axes: Axes,
    rows: Sequence[float],
    splits: Sequence[Split],
    colour: str,
    label: str,
) -> None:
    least = 0.01  # minutes: what is below is drawn there
    full = [max(split.fair_share / MINUTE, least) for split in splits]
    hollow = [max(split.fragmentation / MINUTE, least) for split in splits]
    axes.scatter(full, rows, s=42, color=colour, label=label)
    axes.scatter(hollow, rows, s=42, facecolors="white", edgecolors=colour, linewidths=1.6)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, help="commensal-simulate")
    parser.add_argument("--trace", type=Path, default=TRACE, help="philly.csv, or compressed")
    parser.add_argument("--jobs", type=int, help="only so many, from the first")
    parser.add_argument("--shrink", type=int, nargs="+", default=[1, 4], help="the cluster")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--picture", type=Path, help="write a picture there")
    given = parser.parse_args(argv)
    beside = Path(sys.executable).with_name("commensal-simulate")
    program = given.program or (beside if beside.exists() else shutil.which(beside.name))
    if program is None:
        parser.error("commensal-simulate is not installed: --program PATH")
    packed = given.trace.read_bytes()
    text = (lzma.decompress(packed) if given.trace.suffix == ".xz" else packed).decode()
    lines = text.strip().splitlines()
    if given.jobs:
        lines = [lines[0], *sorted(lines[1:])[: given.jobs]]
    runs = [(way, shrink) for shrink in given.shrink for way in WAYS]
    with tempfile.TemporaryDirectory(prefix="philly-") as name:
        trace = Path(name) / "philly.csv"
        trace.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            figures = list(pool.map(lambda run: measure(Path(program), trace, *run), runs))
    print(_table(figures))
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in figures], indent=1) + "\n")
    if given.picture:
        _draw(given.picture, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
