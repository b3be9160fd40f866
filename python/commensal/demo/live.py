# SPDX-License-Identifier: Apache-2.0
"""The live view: both jobs side by side while they run, one bar falls, the other does not move."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from types import TracebackType

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC
from commensal.demo.plan import DemoPlan, MiB
from commensal.demo.runs import MemorySample, Mode, Step
from commensal.demo.view import DRAWS_PER_SECOND, TITLES, JobNow, PlainView, View

__all__ = ["LiveView", "Pace", "speed", "view_for"]

LEAST_WIDTH, LEAST_HEIGHT = 80, 24
RECENT_STEPS = 7
STALL_GRACE_SECONDS = 1.0
HEIGHTS = " ▁▂▃▄▅▆▇█"
COLOURS = {GUARANTEED: "green", OPPORTUNISTIC: "cyan"}
HEAD_LINES, JOB_LINES, BORDER_LINES = 3, 9, 2


def view_for(console: Console, plan: DemoPlan) -> View:
    """Return the live view on a terminal that has room for it, else the plain one."""
    room = console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT
    capable = console.is_terminal and not console.is_dumb_terminal
    if capable and room and not console.options.ascii_only:
        return LiveView(console, plan)
    return PlainView(console, plan)


def speed(steps: Sequence[Step], typical: Mapping[int, float], now: float) -> float | None:
    """Return a job's speed in its last steps relative to alone: 0.5 is half as fast.

    A job that has not finished a step for longer than it should loses speed meanwhile. None if
    there is nothing to compare with yet.
    """
    known = [step for step in steps[-RECENT_STEPS:] if step.batch in typical]
    if not known:
        return None
    last = known[-1]
    stalled = (now - last.end - last.wait_seconds - STALL_GRACE_SECONDS) / typical[last.batch]
    return 1.0 / max(median(s.busy_seconds / typical[s.batch] for s in known), stalled)


class Pace:
    """Guesses how much of the run is done, from what its windows usually take."""

    def __init__(self, plan: DemoPlan) -> None:
        # Seconds to start the jobs and to do the steps, on two cores; only the ratios count.
        seconds = {
            Mode.GUARANTEED_ALONE: 4.0 + 0.07 * plan.guaranteed_steps,
            Mode.OPPORTUNISTIC_ALONE: 4.0 + 0.07 * plan.opportunistic_steps,
            Mode.DEFAULT: 8.0 + 0.2 * plan.default_steps,
            Mode.COMMENSAL: 8.0 + 0.19 * plan.opportunistic_steps,
        }
        if plan.on_gpu:  # the same on a card, as its plan supposes
            seconds = {
                Mode.GUARANTEED_ALONE: 9.0 + 0.05 * plan.guaranteed_steps,
                Mode.OPPORTUNISTIC_ALONE: 9.0 + 0.01 * plan.opportunistic_steps,
                Mode.DEFAULT: 10.0 + 0.08 * plan.default_steps,
                Mode.COMMENSAL: 10.0 + 0.015 * plan.opportunistic_steps,
            }
        self._weights = [seconds[mode] for _ in range(plan.rounds) for mode in Mode]

    def done(self, windows: int, share: float) -> float:
        """Return the share of the run after so many windows and a share of the next one."""
        gone = sum(self._weights[:windows])
        if windows < len(self._weights):
            gone += share * self._weights[windows]
        return gone / sum(self._weights)


class LiveView:
    """Draws the whole terminal; leaves it as it was."""

    def __init__(
        self, console: Console, plan: DemoPlan, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._pace = Pace(plan)
        self._rounds = plan.rounds
        self._budget = plan.budget_bytes
        self._begin = self._window_begin = clock()
        self._drawn = 0.0
        self._windows = 0
        self._mode, self._round = Mode.GUARANTEED_ALONE, 0
        self._jobs: Mapping[str, JobNow] = {}
        self._typical: dict[str, Mapping[int, float]] = {}
        self._history: dict[str, deque[float]] = {
            job: deque(maxlen=200) for job in (GUARANTEED, OPPORTUNISTIC)
        }
        self._said: deque[tuple[float, Text]] = deque(maxlen=50)
        self._warnings: list[str] = []
        self._console = console
        self._live = Live(self, console=console, screen=True, auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()
        for warning in self._warnings:  # what the terminal showed meanwhile is gone
            self._console.print(warning, markup=False, highlight=False)

    def window(self, mode: Mode, number: int) -> None:
        self._mode, self._round, self._jobs = mode, number, {}
        self._window_begin = self._clock()
        for values in self._history.values():
            values.clear()
        self._draw()

    def window_done(self) -> None:
        self._windows += 1

    def learn(self, job: str, typical: Mapping[int, float]) -> None:
        self._typical[job] = typical

    def update(self, jobs: Mapping[str, JobNow]) -> None:
        self._jobs = jobs
        if self._clock() - self._drawn >= 1 / DRAWS_PER_SECOND:
            for name, job in jobs.items():
                if (now := self._speed(name, job)) is not None and len(job.steps) < job.total:
                    self._history[name].append(now)
            self._draw()

    def say(self, text: str) -> None:
        self._said.append((self._clock(), Text(text)))

    def warn(self, text: str) -> None:
        self._warnings.append(text)
        self._said.append((self._clock(), Text(text, "yellow")))

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._live.refresh()

    def _speed(self, name: str, job: JobNow) -> float | None:
        alone = self._mode in (Mode.GUARANTEED_ALONE, Mode.OPPORTUNISTIC_ALONE)
        typical = {} if alone else self._typical.get(name, {})
        return speed(job.steps, typical, self._clock())

    # --- what is drawn -------------------------------------------------------------------------

    def __rich__(self) -> RenderableType:
        layout = Layout()
        layout.split_column(
            Layout(self._head(), name="head", size=HEAD_LINES),
            Layout(name="jobs", size=JOB_LINES),
            Layout(self._events(), name="events"),
        )
        layout["jobs"].split_row(*(Layout(self._pane(job)) for job in (GUARANTEED, OPPORTUNISTIC)))
        return layout

    def _head(self) -> RenderableType:
        done = self._pace.done(self._windows, self._share_of_window())
        passed = self._clock() - self._begin
        left = f", about {clock_text(passed * (1 - done) / done)} left" if done > 0.02 else ""
        title = Text.assemble(("commensal demo  ", "bold cyan"), (TITLES[self._mode], "bold"))
        times = f"  {done * 100:3.0f} %  {clock_text(passed)} passed{left}"
        return Group(
            spread(title, f"round {self._round + 1} of {self._rounds}"),
            spread(Bar((done, "━", "cyan"), rest="─"), times),
        )

    def _share_of_window(self) -> float:
        """Return how far the window is: the opportunistic job ends it only under commensal."""
        last = GUARANTEED if self._mode is Mode.DEFAULT else OPPORTUNISTIC
        job = self._jobs.get(last) or next(iter(self._jobs.values()), None)
        return len(job.steps) / job.total if job else 0.0

    def _pane(self, name: str) -> RenderableType:
        job = self._jobs.get(name)
        what = "trains as if alone" if name == GUARANTEED else "lives in its gaps"
        title = f"{name} job" if self._mode is not Mode.COMMENSAL else f"{name}: {what}"
        body = Text(self._absent(name), "dim") if job is None else self._job(name, job)
        return Panel(body, title=title, title_align="left", border_style=COLOURS[name])

    def _absent(self, name: str) -> str:
        away = {
            Mode.GUARANTEED_ALONE: OPPORTUNISTIC,
            Mode.OPPORTUNISTIC_ALONE: GUARANTEED,
        }
        return "not in this window" if away.get(self._mode) == name else "starting"

    def _job(self, name: str, job: JobNow) -> RenderableType:
        now, colour = self._speed(name, job), COLOURS[name]
        step = f"step {len(job.steps)} of {job.total}"
        if job.steps:
            recent = median(s.busy_seconds for s in job.steps[-RECENT_STEPS:])
            step += f"   {recent * 1e3:.0f} ms a step"
        lines: list[RenderableType] = [Text(step)]
        if len(job.steps) >= job.total:
            lines.append(Text("done", colour))
        elif now is None:
            lines.append(Text("its speed alone is the measure for the others", "dim"))
        else:
            lines.append(labelled("speed", Bar((now, "█", colour)), f"{now * 100:3.0f} %"))
        lines.append(labelled("", History(self._history[name], colour), ""))
        if job.memory is not None:
            lines += self._memory(job.memory, name)
        return Group(*lines)

    def _memory(self, memory: MemorySample, name: str) -> list[RenderableType]:
        device, slower = memory.device_bytes, memory.host_bytes
        limit = min(memory.limit_bytes or self._budget, self._budget)
        bar = Bar(
            (device / self._budget, "█", COLOURS[name]),
            (slower / self._budget, "▒", "yellow"),
            mark=limit / self._budget,
        )
        parts = [f"device {device / MiB:.0f}"]
        if slower or name == OPPORTUNISTIC:
            parts.append(f"slower {slower / MiB:.0f}")
        parts.append(f"limit {limit / MiB:.0f} MiB")
        lines: list[RenderableType] = [
            Text(),
            labelled("memory", bar, f"{(device + slower) / MiB:3.0f} MiB"),
            Text(", ".join(parts), "dim"),
        ]
        if name == OPPORTUNISTIC:
            closed = f"closed {memory.gate_closed_seconds:.0f} s so far"
            lines.append(Text(f"gate   {memory.gate_state}, {closed}"))
        return lines

    def _events(self) -> RenderableType:
        lines = Table.grid(padding=(0, 1, 0, 0), expand=True)
        lines.add_column(justify="right", style="dim", width=5)
        lines.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        most = max(1, self._console.height - HEAD_LINES - JOB_LINES - BORDER_LINES)
        for at, text in list(self._said)[-most:]:
            lines.add_row(clock_text(at - self._begin), text)
        return Panel(lines, title="decisions", title_align="left", border_style="dim")


def clock_text(seconds: float) -> str:
    """Say a duration: "1:05"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def spread(what: RenderableType, value: str) -> RenderableType:
    """Put a value at the right end of a line and give something else the rest of it."""
    line = Table.grid(expand=True)
    line.add_column(ratio=1)
    line.add_column(justify="right", no_wrap=True)
    line.add_row(what, value)
    return line


def labelled(label: str, what: RenderableType, value: str) -> RenderableType:
    line = Table.grid(expand=True)
    line.add_column(width=7)
    line.add_column(ratio=1)
    line.add_column(width=8, justify="right")
    line.add_row(label, what, value)
    return line


class Bar:
    """A bar as wide as there is room: parts of 0..1 one after the other, and a mark on it."""

    def __init__(
        self, *parts: tuple[float, str, str], rest: str = "·", mark: float | None = None
    ) -> None:
        self._parts, self._rest, self._mark = parts, rest, mark

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        cells: list[tuple[str, str]] = []
        total = 0.0
        for share, character, style in self._parts:
            total += share
            wanted = min(width, round(total * width)) - len(cells)
            cells += [(character, style)] * wanted
        cells += [(self._rest, "dim")] * (width - len(cells))
        if self._mark is not None:
            cells[min(width - 1, round(self._mark * width))] = ("┃", "bold")
        yield Text.assemble(*cells)


class History:
    """The last values, the newest on the right, as high as their share of 1."""

    def __init__(self, values: Sequence[float], style: str) -> None:
        self._values, self._style = values, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        top = len(HEIGHTS) - 1
        heights = [HEIGHTS[min(top, max(1, round(value * top)))] for value in self._values]
        yield Text("".join(heights)[-options.max_width :], self._style)
