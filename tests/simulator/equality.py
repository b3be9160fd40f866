# SPDX-License-Identifier: Apache-2.0
"""Runs every policy that has a twin in somebody else's simulator, and prints both figures.

    python tests/simulator/equality.py                    all of them
    python tests/simulator/equality.py helios_itp06       one table of tests/data/expected
    python tests/simulator/equality.py --program build/release/.../commensal-simulate

Ends with 1 if a figure differs. They are equal if ours, rounded to the digits of the other, is it.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SUITES", "Compared", "Suite", "compare"]

DATA = Path(__file__).parents[1] / "data"

# Other people's names of what is a policy of ours (docs/policies.md).
ALIASES = {"antman (Muri model)": "muri-antman"}


@dataclass(frozen=True)
class Input:
    """A trace and the cluster that it runs on."""

    file: str
    nodes: int
    gpus_per_node: int


@dataclass(frozen=True)
class Suite:
    """A table of expected figures, and how to come by ours."""

    expected: str
    semantics: str
    inputs: dict[str, Input]  # by the name in the column `trace`
    options: Sequence[str] = field(default=())


SUITES = (
    Suite(
        "tiresias",
        "tiresias",
        {
            "tiresias-60": Input("tiresias-60.csv.xz", 4, 4),
            "itp-2021 cluster06": Input("itp-cluster06.csv.xz", 16, 8),
        },
    ),
    Suite(
        "helios_itp06",
        "helios",
        {"itp-2021 cluster06": Input("itp-cluster06.csv.xz", 16, 8)},
    ),
    Suite("muri_trace1", "muri", {"muri-philly trace1": Input("muri-trace1.csv.xz", 8, 8)}),
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

    @property
    def equal(self) -> bool:
        """Whether ours rounds to theirs, in its digits."""
        if self.ours is None:
            return False
        digits = len(self.theirs.partition(".")[2])
        unit: float = 10.0**-digits
        return abs(self.ours - float(self.theirs)) <= 0.5 * unit * (1 + 1e-9)

    def __str__(self) -> str:
        digits = len(self.theirs.partition(".")[2])
        ours = "missing" if self.ours is None else f"{self.ours:.{digits}f}"
        mark = "" if self.equal else "  DIFFERS"
        where = f"{self.suite:<13} {self.trace:<19} {self.policy:<20} {self.metric:<12}"
        return f"{where} {self.theirs:>18} {ours:>18}{mark}"


def compare(program: Path, suites: Sequence[Suite] = SUITES) -> Iterator[Compared]:
    """Run what the suites need, several at a time; yield each figure in the order of the files."""
    with tempfile.TemporaryDirectory(prefix="equality-") as name:
        folder = Path(name)
        tables = [(suite, _rows(suite)) for suite in suites]
        runs = {
            (suite.expected, row["policy"], row["trace"]): (suite, row)
            for suite, rows in tables
            for row in rows
        }
        for file in {suite.inputs[row["trace"]].file for suite, row in runs.values()}:
            packed = DATA / "cluster-traces" / file
            (folder / file.removesuffix(".xz")).write_bytes(lzma.decompress(packed.read_bytes()))
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
                )


def _rows(suite: Suite) -> list[dict[str, str]]:
    with (DATA / "expected" / f"{suite.expected}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _metrics(program: Path, folder: Path, suite: Suite, row: dict[str, str]) -> dict[str, float]:
    given = suite.inputs[row["trace"]]
    command = [
        *(str(program), "--trace", str(folder / given.file.removesuffix(".xz"))),
        *("--nodes", str(given.nodes), "--gpus-per-node", str(given.gpus_per_node)),
        *("--semantics", suite.semantics, "--policy", ALIASES.get(row["policy"], row["policy"])),
        *suite.options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    metrics: dict[str, float] = json.loads(done.stdout)["results"][0]["metrics"]
    return metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a figure differs."""
    names = [suite.expected for suite in SUITES]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="TABLE", help=", ".join(names))
    parser.add_argument("--program", type=Path, help="commensal-simulate")
    given = parser.parse_args(argv)
    if unknown := set(given.suites) - set(names):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    beside = Path(sys.executable).with_name("commensal-simulate")
    program = given.program or (beside if beside.exists() else shutil.which(beside.name))
    if program is None:
        parser.error("commensal-simulate is not installed: --program PATH")
    wanted = [suite for suite in SUITES if not given.suites or suite.expected in given.suites]
    heading = f"{'table':<13} {'trace':<19} {'policy':<20} {'metric':<12} {'theirs':>18}"
    print(f"{heading} {'ours':>18}")
    different = total = 0
    for compared in compare(Path(program), wanted):
        print(compared)
        total += 1
        different += not compared.equal
    print(f"{total} figures, {different} differ")
    return 1 if different or not total else 0


if __name__ == "__main__":
    sys.exit(main())
