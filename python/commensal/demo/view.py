# SPDX-License-Identifier: Apache-2.0
"""What a person sees while the demo runs, and its plain form: progress lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from commensal.demo.plan import DemoPlan, MiB
from commensal.demo.runs import MemorySample, Mode, Step

__all__ = ["DRAWS_PER_SECOND", "TITLES", "JobNow", "PlainView", "View"]

DRAWS_PER_SECOND = 2  # drawing runs on the cores that are being measured
TITLES = {
    Mode.GUARANTEED_ALONE: "guaranteed job alone",
    Mode.OPPORTUNISTIC_ALONE: "opportunistic job alone",
    Mode.DEFAULT: "both, the machine's default sharing",
    Mode.COMMENSAL: "both under commensal",
}


@dataclass(frozen=True)
class JobNow:
    """A job of the window, as it is now. `memory` is None where commensal does not run."""

    total: int
    steps: Sequence[Step]
    memory: MemorySample | None = None


class View(Protocol):
    """Shows a run. A context manager; all calls come from one thread."""

    def __enter__(self) -> View: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def window(self, mode: Mode, number: int) -> None:
        """Begin the window of a round, or begin it again."""

    def window_done(self) -> None:
        """End a window that counts."""

    def learn(self, job: str, typical: Mapping[int, float]) -> None:
        """Take a job's typical step time alone, in seconds, for each batch size."""

    def update(self, jobs: Mapping[str, JobNow]) -> None:
        """Take how the jobs of the window are doing; drawn now or with a later call."""

    def say(self, text: str) -> None:
        """Show what was decided, and why."""

    def warn(self, text: str) -> None:
        """Show what went wrong."""


class PlainView:
    """Bars that move, where there is a terminal; elsewhere a line for each window."""

    def __init__(self, console: Console, plan: DemoPlan) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[progress.description]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            refresh_per_second=DRAWS_PER_SECOND,
            disable=not console.is_terminal,
        )
        self._total = plan.rounds * len(Mode)
        self._done = 0
        self._whole = self._progress.add_task("windows", total=self._total, note="")
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> PlainView:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def window(self, mode: Mode, number: int) -> None:
        self._clear()
        self._progress.update(self._whole, note=TITLES[mode])
        if not self._console.is_terminal:
            self._print(
                f"round {number + 1}, window {self._done + 1} of {self._total}: {TITLES[mode]}"
            )

    def window_done(self) -> None:
        self._clear()
        self._done += 1
        self._progress.advance(self._whole)

    def learn(self, job: str, typical: Mapping[int, float]) -> None:
        """Do nothing: these lines show no speed."""

    def update(self, jobs: Mapping[str, JobNow]) -> None:
        for name, job in jobs.items():
            if name not in self._bars:
                self._bars[name] = self._progress.add_task(f"  {name}", total=job.total, note="")
            note = ""
            if (memory := job.memory) is not None:
                note = (
                    f"{memory.device_bytes / MiB:.0f} MiB on the device,"
                    f" {memory.host_bytes / MiB:.0f} MiB on the slower tier,"
                    f" gate {memory.gate_state}"
                )
            self._progress.update(self._bars[name], completed=len(job.steps), note=note)

    def say(self, text: str) -> None:
        """Do nothing: decisions would drown the progress."""

    def warn(self, text: str) -> None:
        self._print(text)

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _clear(self) -> None:
        for bar in self._bars.values():
            self._progress.remove_task(bar)
        self._bars = {}
