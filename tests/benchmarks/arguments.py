# SPDX-License-Identifier: Apache-2.0
"""The command line of the benchmarks. Imports nothing that has to be built or installed first.

Run as a program, it only checks: a mistake, or a question for help, costs no build.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

# Each is a module beside this one, with a function `run(*, quick: bool) -> Result`.
NAMES = (
    *("job_alone", "sharing", "gate_cost", "allocator", "pressure"),
    *("replay", "density", "limits", "given_back", "messages"),
    *("pauses", "less_memory", "neighbour", "cycles", "pairs"),
    *("shares", "cores", "reaction", "arrival", "simulator", "cluster_load"),
    *("live_and_simulated", "minimum", "virtual_card"),
)
# Minutes to hours: only when they are named.
LONG = ("pairs", "shares", "cores", "minimum")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./scripts/benchmark",
        description="Set up, build and run the benchmarks: tables on stdout. A missed bar is "
        "reported; only a benchmark that cannot run fails.",
        epilog="tests/benchmarks/README.md says what each of them compares.",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"one of {', '.join(NAMES)}; may be repeated; default: all but {', '.join(LONG)}",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for NAME.json files")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        choices=range(4),
        help="how often a part is repeated while the machine is disturbed (default: 3)",
    )
    parser.add_argument("--quick", action="store_true", help="little of everything; not judged")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse()
