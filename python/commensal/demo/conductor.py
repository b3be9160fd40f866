# SPDX-License-Identifier: Apache-2.0
"""Runs the demo's windows in turn, repeats the disturbed ones, and checks what came out."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from commensal.demo import report
from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    Figures,
    Measurement,
    check,
    figures_of,
    machine,
)
from commensal.demo.plan import DemoPlan, MiB, plan_for
from commensal.demo.processes import CpuSampler, Daemon, DemoError, Job, examples_folder
from commensal.demo.quiet import QuietGuard, Verdict
from commensal.demo.runs import CpuSample, Event, MemorySample, Mode, WindowRecord

__all__ = ["run_demo"]

TITLES = {
    Mode.GUARANTEED_ALONE: "guaranteed job alone",
    Mode.OPPORTUNISTIC_ALONE: "opportunistic job alone",
    Mode.DEFAULT: "both, the machine's default sharing",
    Mode.COMMENSAL: "both under commensal",
}
POLL_SECONDS = 0.2
EXCERPT_SECONDS = 2.5


def run_demo(out: Path, seconds: int | None, json_file: Path | None) -> int:
    """Run everything and write the report; return the exit code (see `commensal.demo.main`)."""
    console = Console(stderr=True)
    try:
        plan = plan_for(seconds)
        out.mkdir(parents=True, exist_ok=True)
        measurement = Conductor(plan, console).run()
        figures = figures_of(measurement)
        text = json.dumps(figures.as_json(), indent=2)
        for path in {out / "demo.json", json_file or out / "demo.json"}:
            path.write_text(text + "\n")
        page = report.write(out, measurement, figures)
        failures = check(measurement, figures)
    except (DemoError, ValueError, OSError) as error:
        console.print(f"commensal demo: {error}", style="bold red", markup=False)
        return 1
    print_summary(Console(), figures, page)
    for failure in failures:
        console.print(f"failed: {failure}", style="bold red", markup=False)
    return 1 if failures else 0


def print_summary(console: Console, figures: Figures, page: Path) -> None:
    """Print the headline, the table and where the report is."""
    console.print()
    console.print(figures.headline(), style="bold", markup=False)
    console.print(report.table(figures))
    for note in figures.notes:
        console.print(note, style="yellow", markup=False)
    console.print(f"report: {page.resolve()}", markup=False, soft_wrap=True)


@dataclass
class Watch:
    """What is sampled while a window runs."""

    events: list[Event] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    cpu: tuple[CpuSample, ...] = ()
    stats: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class Conductor:
    """Runs a plan. One object, one run."""

    def __init__(self, plan: DemoPlan, console: Console) -> None:
        self._plan = plan
        self._guard = QuietGuard()
        self._notes: list[str] = []
        self._judged = plan.judged
        self._progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            refresh_per_second=2,
        )
        if not plan.judged:
            self._notes.append("A shortened run: the figures are not judged.")

    def run(self) -> Measurement:
        """Run all windows, interleaved round by round."""
        windows: list[WindowRecord] = []
        verdicts: list[Verdict] = []
        with (
            tempfile.TemporaryDirectory(prefix="commensal-demo-") as folder,
            self._progress,
        ):
            overall = self._progress.add_task(
                "windows", total=self._plan.rounds * len(Mode), note=""
            )
            for number in range(self._plan.rounds):
                for mode in Mode:
                    self._progress.update(overall, note=TITLES[mode])
                    window, seen = self._judged_window(mode, number, Path(folder))
                    windows.append(window)
                    verdicts.append(seen)
                    self._progress.advance(overall)
        return Measurement(
            plan=self._plan,
            windows=tuple(windows),
            verdicts=tuple(verdicts),
            judged=self._judged,
            notes=tuple(self._notes),
            machine=machine(),
        )

    def _judged_window(self, mode: Mode, number: int, folder: Path) -> tuple[WindowRecord, Verdict]:
        """Run one window; once one cannot be judged, later ones are not repeated either."""

        def tell(verdict: Verdict) -> None:
            self._progress.console.print(
                f"{TITLES[mode]}: {verdict.reason}; once more", markup=False
            )

        result = self._guard.measure(
            lambda: self._window(mode, number, folder),
            most_repeats=self._plan.most_repeats if self._judged else 0,
            on_repeat=tell,
        )
        if self._judged and not result.judged:
            self._judged = False
            self._notes.append(
                f"The machine was not quiet ({TITLES[mode]}, tried {len(result.verdicts)} times:"
                f" {result.reason}): this run cannot judge its figures."
            )
        return result.value, result.verdicts[-1]

    def _scripts(self, mode: Mode) -> dict[str, list[str]]:
        plan, folder = self._plan, examples_folder()
        steps, double_at = plan.guaranteed_steps, plan.double_at
        if mode is Mode.DEFAULT:
            steps, double_at = plan.default_steps, plan.default_double_at
        return {
            GUARANTEED: [
                str(folder / "digits_cnn.py"),
                *("--steps", str(steps), "--double-at", str(double_at)),
                *("--batch", str(plan.guaranteed_batch)),
                *("--read-rate", str(plan.guaranteed_read_rate)),
            ],
            OPPORTUNISTIC: [
                str(folder / "char_transformer.py"),
                *("--steps", str(plan.opportunistic_steps)),
                *("--text-bytes", str(plan.text_bytes)),
            ],
        }

    def _window(self, mode: Mode, number: int, folder: Path) -> WindowRecord:
        place = folder / mode.value
        scripts = self._scripts(mode)
        if mode is Mode.COMMENSAL:
            return self._commensal_window(number, place, scripts)
        alone = {
            Mode.GUARANTEED_ALONE: [GUARANTEED],
            Mode.OPPORTUNISTIC_ALONE: [OPPORTUNISTIC],
        }
        watch = Watch()
        with contextlib.ExitStack() as stack:
            jobs: dict[str, Job] = {}
            for name in alone.get(mode, [OPPORTUNISTIC, GUARANTEED]):
                self._await_head_start(jobs)
                jobs[name] = stack.enter_context(Job(name, scripts[name], place))
            self._watch(jobs, watch, None)
            # Guaranteed first: what the other does afterwards is no longer sharing.
            records = {name: jobs[name].stop() for name in reversed(list(jobs))}
        return WindowRecord(mode, number, records, cpu=watch.cpu)

    def _commensal_window(
        self, number: int, place: Path, scripts: Mapping[str, Sequence[str]]
    ) -> WindowRecord:
        plan, watch = self._plan, Watch()
        memory = {GUARANTEED: plan.guaranteed_memory, OPPORTUNISTIC: plan.opportunistic_memory}
        with contextlib.ExitStack() as stack:
            runtime = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-")))
            daemon = stack.enter_context(Daemon(runtime, plan.budget_bytes))
            jobs: dict[str, Job] = {}
            for name in (OPPORTUNISTIC, GUARANTEED):
                self._await_head_start(jobs)
                job = Job(
                    name,
                    scripts[name],
                    place,
                    launcher=daemon.launcher(name, name, "--memory", memory[name]),
                    environment=daemon.environment(),
                )
                jobs[name] = stack.enter_context(job)
            self._watch(jobs, watch, daemon)
            records = {name: job.record(watch.stats.get(name)) for name, job in jobs.items()}
        return WindowRecord(
            Mode.COMMENSAL,
            number,
            records,
            events=tuple(watch.events),
            memory=tuple(watch.memory),
            cpu=watch.cpu,
        )

    def _await_head_start(self, jobs: Mapping[str, Job]) -> None:
        """Wait until the job that was started first, if any, has done the plan's first steps."""
        for job in jobs.values():
            while job.running() and job.steps_done() < self._plan.head_start:
                time.sleep(POLL_SECONDS)

    def _watch(self, jobs: Mapping[str, Job], watch: Watch, daemon: Daemon | None) -> None:
        """Show progress, sample, and set limits until every job has ended.

        Without a daemon, sharing ends with the guaranteed job: nothing shrinks or grows then.
        """
        awaited = list(jobs) if daemon else list(jobs)[-1:]
        by_default = daemon is None and len(jobs) == 2
        totals = {
            GUARANTEED: (self._plan.default_steps if by_default else self._plan.guaranteed_steps),
            OPPORTUNISTIC: self._plan.opportunistic_steps,
        }
        changes = list(self._plan.limit_changes) if daemon else []
        excerpt: threading.Thread | None = None
        with self._bars({name: totals[name] for name in jobs}) as bars:
            while any(jobs[name].running() for name in awaited):
                time.sleep(POLL_SECONDS)
                done = {name: job.steps_done() for name, job in jobs.items()}
                for name, count in done.items():
                    self._progress.update(bars[name], completed=count)
                if daemon is not None:
                    self._sample(daemon, watch, bars)
                    while changes and done[OPPORTUNISTIC] >= changes[0].at_step:
                        change = changes.pop(0)
                        if jobs[OPPORTUNISTIC].running():
                            daemon.set_memory(OPPORTUNISTIC, change.max_bytes)
                            watch.events.append(
                                Event(time.monotonic(), "set", float(change.max_bytes))
                            )
                if excerpt is None and len(jobs) == 2 and min(done.values()) >= 10:
                    excerpt = threading.Thread(target=take_excerpt, args=(jobs, watch))
                    excerpt.start()
            if daemon is not None:
                self._sample(daemon, watch, bars)
        if excerpt is not None:
            excerpt.join()

    @contextlib.contextmanager
    def _bars(self, totals: Mapping[str, int]) -> Iterator[dict[str, Any]]:
        bars = {
            name: self._progress.add_task(f"  {name}", total=total, note="")
            for name, total in totals.items()
        }
        try:
            yield bars
        finally:
            for bar in bars.values():
                self._progress.remove_task(bar)

    def _sample(self, daemon: Daemon, watch: Watch, bars: Mapping[str, Any]) -> None:
        """Read the coordinator's view of both jobs."""
        now = time.monotonic()
        listed = daemon.status()["jobs"]
        for job in listed if isinstance(listed, list) else []:
            name = job["job"]["name"]
            if name not in bars or "memory" not in job:
                continue
            memory, gate = job["memory"], job["gate"]
            watch.stats[name] = job
            if job.get("ended"):
                continue
            watch.memory.append(
                MemorySample(
                    time=now,
                    job=name,
                    limit_bytes=memory["limit_bytes"],
                    device_bytes=memory["device_bytes"],
                    host_bytes=memory["host_bytes"],
                    host_touched_bytes=memory["host_touched_bytes"],
                    moved_out_bytes_total=memory["moved_out_bytes_total"],
                    moved_in_bytes_total=memory["moved_in_bytes_total"],
                    gate_state=gate["state"],
                    gate_closed_seconds=gate["closed_seconds_total"],
                )
            )
            self._progress.update(
                bars[name],
                note=f"{memory['device_bytes'] / MiB:.0f} MiB on the device,"
                f" {memory['host_bytes'] / MiB:.0f} MiB on the slower tier, gate {gate['state']}",
            )


def take_excerpt(jobs: Mapping[str, Job], watch: Watch) -> None:
    """Sample for a short while who runs when."""
    watch.cpu = CpuSampler({name: job.pid for name, job in jobs.items()}).run(EXCERPT_SECONDS)
