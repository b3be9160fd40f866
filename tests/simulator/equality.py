# SPDX-License-Identifier: Apache-2.0
"""Runs every policy that has a twin in somebody else's simulator, and prints both figures.

    python tests/simulator/equality.py                    all of them
    python tests/simulator/equality.py helios_itp06       one table of tests/data/expected
    python tests/simulator/equality.py --only fgd         the same
    python tests/simulator/equality.py --seeds 2          fewer seeds for those that draw (fgd)
    python tests/simulator/equality.py --program build/release/.../commensal-simulate

A figure is `equal` if ours, rounded to the digits of the other, is it; `within` if it is as near
as its table allows (5 % for Gavel's, whose linear programs have many best answers; 0.3 points for
FGD's, means of ten seeds); `loose` if the original's own figure changes by more than that with the
solver, and ours is within what is stated for it; else `OFF`. Ends with 1 if one is off.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import fgd_equality

__all__ = ["SUITES", "Compared", "Suite", "compare"]

DATA = Path(__file__).parents[1] / "data"
FGD = "fgd"

# Other people's names of what is a policy of ours (docs/policies.md), with its options.
ALIASES: dict[str, tuple[str, ...]] = {
    "antman (Muri model)": ("muri-antman",),
    "fifo agnostic": ("fifo", "--option", "types=agnostic"),
    "fifo aware": ("fifo", "--option", "types=aware"),
    **{
        objective: ("gavel", "--option", f"objective={objective}")
        for objective in (
            *("isolated", "las agnostic", "las gavel", "max throughput"),
            *("makespan agnostic", "makespan gavel"),
        )
    },
}


@dataclass(frozen=True)
class Input:
    """A trace, packed as it is in tests/data, and the cluster that it runs on."""

    packed: str
    cluster: Sequence[str]  # options of the program
    file: str = ""  # inside of what was packed, if that is a folder
    beside: str = ""  # packed, what the trace needs in its folder


@dataclass(frozen=True)
class Suite:
    """A table of expected figures, and how to come by ours."""

    expected: str
    semantics: str
    inputs: Mapping[str, Input]  # by the name in the column `trace`
    trace_format: str = ""
    tolerance: float = 0.0  # how far from theirs, as a part of it
    loose: Mapping[str, float] = field(default_factory=dict)  # by policy, where theirs scatters
    left_out: Sequence[str] = ()  # policies that we do not have


def _equal(nodes: int, gpus: int) -> tuple[str, ...]:
    return ("--nodes", str(nodes), "--gpus-per-node", str(gpus))


def _gavel(name: str) -> Input:
    return Input(
        f"gavel/{name}.csv.gz",
        ("--cluster", "{folder}/gavel-cluster.json"),
        beside="gavel/physical_cluster_throughputs.json.gz",
    )


GAVEL_CLUSTER = {
    "gpu_types": ["v100", "p100", "k80"],
    "nodes": [
        {"gpus": 8, "gpu_type": "v100"},
        {"gpus": 16, "gpu_type": "p100"},
        {"gpus": 24, "gpu_type": "k80"},
    ],
}

SUITES = (
    Suite(
        "tiresias",
        "tiresias",
        {
            "tiresias-60": Input("cluster-traces/tiresias-60.csv.xz", _equal(4, 4)),
            "itp-2021 cluster06": Input("cluster-traces/itp-cluster06.csv.xz", _equal(16, 8)),
        },
    ),
    Suite(
        "helios_itp06",
        "helios",
        {"itp-2021 cluster06": Input("cluster-traces/itp-cluster06.csv.xz", _equal(16, 8))},
    ),
    Suite(
        "muri_trace1",
        "muri",
        {"muri-philly trace1": Input("cluster-traces/muri-trace1.csv.xz", _equal(8, 8))},
    ),
    Suite(
        "pollux",
        "pollux",
        {
            f"pollux workload-{number} load 1.0": Input(
                "pollux/pollux.tar.xz", _equal(16, 4), file=f"workloads/workload-{number}.csv"
            )
            for number in (1, 2, 3)
        },
        trace_format="pollux",
        left_out=("pollux",),
    ),
    Suite(
        "gavel_physical",
        "gavel",
        {
            "gavel physical/minimize_makespan": _gavel("minimize_makespan"),
            "gavel physical/max_min_fairness": _gavel("max_min_fairness"),
        },
        trace_format="gavel",
        tolerance=0.05,
        loose={"las agnostic": 0.08, "makespan agnostic": 0.15, "makespan gavel": 0.1},
    ),
)


@dataclass(frozen=True)
class Compared:
    """One figure, theirs and ours."""

    suite: str
    policy: str
    trace: str
    metric: str
    theirs: str
    ours: float | None
    tolerance: float = 0.0
    loose: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether ours rounds to theirs, in its digits."""
        if self.ours is None:
            return False
        digits = len(self.theirs.partition(".")[2])
        unit: float = 10.0**-digits
        return abs(self.ours - float(self.theirs)) <= 0.5 * unit * (1 + 1e-9)

    @property
    def apart(self) -> float:
        """How far ours is from theirs, as a part of it."""
        return 0.0 if self.ours is None else self.ours / float(self.theirs) - 1

    @property
    def verdict(self) -> str:
        """equal, within, loose or OFF."""
        if self.equal:
            return "equal"
        if self.ours is None:
            return "OFF"
        if abs(self.apart) <= self.tolerance:
            return "within"
        return "loose" if abs(self.apart) <= self.loose else "OFF"

    def __str__(self) -> str:
        digits = len(self.theirs.partition(".")[2])
        ours = "missing" if self.ours is None else f"{self.ours:.{digits}f}"
        how_far = "" if self.equal or self.ours is None else f" {100 * self.apart:+6.1f} %"
        where = f"{self.suite:<14} {self.trace:<32} {self.policy:<19} {self.metric:<11}"
        return f"{where} {self.theirs:>16} {ours:>16}  {self.verdict}{how_far}"


def compare(program: Path, suites: Sequence[Suite] = SUITES) -> Iterator[Compared]:
    """Run what the suites need, several at a time; yield each figure in the order of the files."""
    with tempfile.TemporaryDirectory(prefix="equality-") as name:
        folder = Path(name)
        (folder / "gavel-cluster.json").write_text(json.dumps(GAVEL_CLUSTER), encoding="utf-8")
        tables = [(suite, _rows(suite)) for suite in suites]
        runs = {
            (suite.expected, row["policy"], row["trace"]): (suite, row)
            for suite, rows in tables
            for row in rows
        }
        for given in {
            suite.inputs[row["trace"]].packed: suite.inputs[row["trace"]]
            for suite, row in runs.values()
        }.values():
            for packed in filter(None, (given.packed, given.beside)):
                _unpack(packed, folder)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            answers = dict(
                zip(
                    runs,
                    pool.map(lambda run: _metrics(program, folder, run[0], run[1]), runs.values()),
                    strict=True,
                )
            )
        for suite, rows in tables:
            for row in rows:
                metrics = answers[suite.expected, row["policy"], row["trace"]]
                yield Compared(
                    suite.expected,
                    row["policy"],
                    row["trace"],
                    row["metric"],
                    row["value"],
                    metrics.get(row["metric"]),
                    suite.tolerance,
                    suite.loose.get(row["policy"], 0.0),
                )


def _rows(suite: Suite) -> list[dict[str, str]]:
    with (DATA / "expected" / f"{suite.expected}.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["policy"] not in suite.left_out]


def _unpack(packed: str, folder: Path) -> None:
    """Put a packed file, or what a packed folder holds, into `folder`."""
    source = DATA / packed
    if packed.endswith(".tar.xz"):
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        return
    unpacked = lzma.decompress if source.suffix == ".xz" else gzip.decompress
    (folder / source.stem).write_bytes(unpacked(source.read_bytes()))


def _metrics(program: Path, folder: Path, suite: Suite, row: dict[str, str]) -> dict[str, float]:
    given = suite.inputs[row["trace"]]
    file = given.file or Path(given.packed).stem
    command = [
        *(str(program), "--trace", str(folder / file)),
        *(word.format(folder=folder) for word in given.cluster),
        *("--semantics", suite.semantics),
        *(("--format", suite.trace_format) if suite.trace_format else ()),
        *("--policy", *ALIASES.get(row["policy"], (row["policy"],))),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    metrics: dict[str, float] = json.loads(done.stdout)["results"][0]["metrics"]
    return metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a figure is off."""
    names = [*(suite.expected for suite in SUITES), FGD]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="TABLE", help=", ".join(names))
    parser.add_argument("--only", action="append", default=[], metavar="TABLE", help="the same")
    parser.add_argument("--seeds", type=int, default=fgd_equality.ALL_SEEDS, help="of fgd")
    parser.add_argument("--program", type=Path, help="commensal-simulate")
    given = parser.parse_args(argv)
    asked = {*given.suites, *given.only}
    if unknown := asked - set(names):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    beside = Path(sys.executable).with_name("commensal-simulate")
    program = given.program or (beside if beside.exists() else shutil.which(beside.name))
    if program is None:
        parser.error("commensal-simulate is not installed: --program PATH")
    wanted = [suite for suite in SUITES if not asked or suite.expected in asked]
    verdicts: Counter[str] = Counter()
    if wanted:
        heading = f"{'table':<14} {'trace':<32} {'policy':<19} {'metric':<11} {'theirs':>16}"
        print(f"{heading} {'ours':>16}")
    for compared in compare(Path(program), wanted):
        print(compared, flush=True)
        verdicts[compared.verdict] += 1
    if not asked or FGD in asked:
        far, total = fgd_equality.run(str(program), [], given.seeds)
        verdicts["OFF"] += far
        verdicts["within"] += total - far
    print(
        f"{verdicts.total()} figures: {verdicts['equal']} equal, {verdicts['within']} within what "
        f"their table allows, {verdicts['loose']} loose, {verdicts['OFF']} off"
    )
    return 1 if verdicts["OFF"] or not verdicts.total() else 0


if __name__ == "__main__":
    sys.exit(main())
