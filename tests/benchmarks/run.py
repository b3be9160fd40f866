# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks: tables on stdout, and JSON with machine and versions into a folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import gate_cost
import job_alone
import pressure
import replay
import sharing
import typer
from harness import CONSOLE, BenchmarkError, Result

import allocator
from commensal.demo.figures import machine
from commensal.demo.processes import DemoError

BENCHMARKS: dict[str, Callable[..., Result]] = {
    "job_alone": job_alone.run,
    "sharing": sharing.run,
    "gate_cost": gate_cost.run,
    "allocator": allocator.run,
    "pressure": pressure.run,
    "replay": replay.run,
}


def main(
    only: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(BENCHMARKS)}; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for NAME.json files.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Little of everything; not judged.")
    ] = False,
) -> None:
    """Run the benchmarks. A missed bar is reported; only a benchmark that cannot run fails."""
    names = only or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        raise typer.BadParameter(f"unknown benchmark: {', '.join(unknown)}", param_hint="--only")
    about = machine()
    CONSOLE.print(", ".join(f"{key} {value}" for key, value in about.items()), markup=False)
    failed = False
    for name in names:
        try:
            result = BENCHMARKS[name](quick=quick)
        except (BenchmarkError, DemoError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        result.show()
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"machine": about, **result.as_json()}, indent=2)
            (out / f"{name}.json").write_text(text + "\n")
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    typer.run(main)
