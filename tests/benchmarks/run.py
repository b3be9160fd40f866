# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks: tables on stdout, and JSON with machine and versions into a folder."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence

from arguments import LONG, NAMES, parse
from harness import CONSOLE, Bench, BenchmarkError, Result
from traces import TraceError

from commensal.demo.figures import machine
from commensal.demo.processes import DemoError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks. A missed bar is reported; only a benchmark that cannot run fails."""
    arguments = parse(argv)
    Bench.most_repeats = arguments.repeats
    Bench.folder = arguments.out
    about = machine()
    CONSOLE.print(", ".join(f"{key} {value}" for key, value in about.items()), markup=False)
    failed = False
    for name in arguments.only or [name for name in NAMES if name not in LONG]:
        try:
            result: Result = importlib.import_module(name).run(quick=arguments.quick)
        except (BenchmarkError, DemoError, TraceError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        result.show()
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"machine": about, **result.as_json()}, indent=2)
            (arguments.out / f"{name}.json").write_text(text + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
