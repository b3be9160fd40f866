# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: child processes, quiet windows, tables and results."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rich.console import Console
from rich.table import Table

from commensal._report.quiet import QuietGuard, Verdict
from commensal.demo.processes import plain_environment

HERE = Path(__file__).resolve().parent
CONSOLE = Console()
T = TypeVar("T")


class BenchmarkError(RuntimeError):
    """A benchmark cannot be run; the message says why."""


@dataclass(frozen=True)
class Bar:
    """A figure that a benchmark should reach. Missing it is reported, not an error."""

    name: str
    value: float
    most: float | None = None
    least: float | None = None
    unit: str = ""

    @property
    def met(self) -> bool:
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    def text(self) -> str:
        goal = f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"
        return f"{self.name}: {self.value:.4g}{self.unit} (goal {goal}{self.unit})"


@dataclass
class Result:
    """One benchmark's table, bars and raw figures."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    judged: bool = True

    def show(self) -> None:
        table = Table(title=self.title, title_justify="left", title_style="bold", box=None)
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        CONSOLE.print(table)
        for bar in self.bars:
            CONSOLE.print(("met     " if bar.met else "MISSED  ") + bar.text(), markup=False)
        for note in self.notes:
            CONSOLE.print(note, style="yellow", markup=False)
        if not self.judged:
            CONSOLE.print("Not judged: the machine was not quiet, or this is a quick run.")
        CONSOLE.print()

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "judged": self.judged,
            "bars": [{**asdict(bar), "met": bar.met} for bar in self.bars],
            "notes": self.notes,
            "figures": self.figures,
        }


class Bench:
    """Runs windows for one benchmark under the guard that the demo uses, too."""

    most_repeats = 3  # of a window
    folder: Path | None = None  # for what a benchmark keeps beside its result

    def __init__(self, result: Result, *, quick: bool) -> None:
        self.result = result
        self.quick = quick
        result.judged = not quick
        self._guard = QuietGuard()
        self._failed = False

    def window(self, what: str, work: Callable[[], T]) -> T:
        """Run one window; repeat it while the machine is disturbed, a few times at most."""

        def tell(verdict: Verdict) -> None:
            CONSOLE.print(f"{what}: {verdict.reason}; once more", style="dim", markup=False)

        CONSOLE.print(f"{self.result.name}: {what}", style="dim", markup=False)
        repeats = 0 if self.quick or self._failed else self.most_repeats
        measured = self._guard.measure(work, most_repeats=repeats, on_repeat=tell)
        if not measured.judged:
            self.result.judged = False
            if not self._failed and not self.quick:
                self._failed = True
                self.result.notes.append(
                    f"{what}: {measured.reason}, tried {len(measured.verdicts)} times"
                )
        return measured.value


class Script:
    """A running script of this folder that trains when it is told to.

    Raises:
        BenchmarkError: it failed, from any method.
    """

    def __init__(
        self,
        script: str,
        *arguments: str,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] = {},
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="commensal-bench-")
        self._result = Path(self._folder.name) / "result.json"
        self._errors = (Path(self._folder.name) / "stderr").open("w+")
        self._command = [*launcher, sys.executable, str(HERE / script), *arguments]
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [*self._command, "--result", str(self._result)],
            env={**plain_environment(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.answer()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Of the script: a launcher becomes it."""
        return self._process.pid

    def turn(self) -> None:
        """Let it train for one turn, and wait until it is done."""
        self.tell("go")

    def tell(self, line: str) -> str:
        """Send it a line, and return the line that it answers."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """Send it a line; its answer is still to be waited for."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def finish(self) -> dict[str, Any]:
        """Let it end; return what it wrote."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait() != 0:
            self._fail()
        result: dict[str, Any] = json.loads(self._result.read_text())
        return result

    def answer(self) -> str:
        """Wait for the line that it answers."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._fail()
        return line.strip()

    def _fail(self) -> NoReturn:
        self._errors.seek(0)
        raise BenchmarkError(f"{' '.join(self._command)} failed:\n{self._errors.read()[-2000:]}")


def run_script(
    script: str, *arguments: str, launcher: Sequence[str] = (), environment: Mapping[str, str] = {}
) -> tuple[dict[str, Any], float]:
    """Run a script of this folder; return its result and when it was started (monotonic).

    Raises:
        BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [*launcher, sys.executable, str(HERE / script), *arguments]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--result", str(result)],
            env={**plain_environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}")
        return json.loads(result.read_text()), started
