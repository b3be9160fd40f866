# SPDX-License-Identifier: Apache-2.0
"""One run of the demo as its user sees it: chooses device and plan, measures, writes, sums up."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import FrameType

from rich.console import Console

from commensal._lifetime import temporary_folder
from commensal.demo import gpu, recording, report
from commensal.demo.conductor import Conductor
from commensal.demo.figures import Figures, check, figures_of
from commensal.demo.live import view_for
from commensal.demo.plan import plan_for
from commensal.demo.processes import DemoError

__all__ = ["run_demo"]


def run_demo(out: Path, seconds: int | None, json_file: Path | None, device: str) -> int:
    """Run everything and write the report; return the exit code (see `commensal.demo.main`)."""
    console = Console(stderr=True)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    try:
        found, why_not = gpu.choose(device)
        if why_not:
            console.print(f"on the CPU: {why_not}", markup=False, soft_wrap=True)
        plan = plan_for(seconds, "cuda" if found else "cpu")
        out.mkdir(parents=True, exist_ok=True)
        # The folder first: its watcher is forked, and a live view is a thread.
        with temporary_folder("commensal-demo-") as folder, view_for(console, plan) as view:
            measurement = Conductor(plan, view, folder, found).run()
        recording.save(out / "recording.json.gz", measurement)
        figures = figures_of(measurement)
        text = json.dumps(figures.as_json(), indent=2)
        for path in {out / "demo.json", json_file or out / "demo.json"}:
            path.write_text(text + "\n")
        page = report.write(out, measurement, figures)
        failures = check(measurement, figures)
    except (DemoError, ValueError, OSError) as error:
        told = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            told = f"{error.filename}: {error.strerror}"
        console.print(f"commensal demo: {told}", style="bold red", markup=False, soft_wrap=True)
        return 1
    print_summary(Console(), figures, page)
    for failure in failures:
        console.print(f"failed: {failure}", style="bold red", markup=False)
    return 1 if failures else 0


def _leave(number: int, _frame: FrameType | None) -> None:
    """End in good order: leaving the blocks ends what was started in them."""
    raise SystemExit(128 + number)


def print_summary(console: Console, figures: Figures, page: Path) -> None:
    """Print the headline, the table and where the report is."""
    console.print()
    console.print(figures.headline(), style="bold", markup=False)
    console.print(report.table(figures))
    for note in figures.notes:
        console.print(note, style="yellow", markup=False)
    console.print(f"report: {page.resolve()}", markup=False, soft_wrap=True)
