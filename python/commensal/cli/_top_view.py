# SPDX-License-Identifier: Apache-2.0
"""Draws one picture of `commensal top`: devices, jobs, decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from commensal._quantities import format_bytes, format_seconds
from commensal.cli._gaps import describe_gaps
from commensal.cli._top_state import Decision, Frame
from commensal.cli.status import describe_state, describe_steps, percent

__all__ = ["Bar", "draw"]

Record = dict[str, Any]

LEAST_DECISIONS = 3
JOB_LINES = 2
MOST_GAPS = 3  # jobs whose gaps are told: the rest is in `commensal status`
COLOURS = {"guaranteed": "green", "opportunistic": "cyan"}
USED, GRANTED, SLOWER, PARKED = ("█", "#"), ("▒", "="), ("▒", "="), ("░", "-")
REST, MARK = ("·", "."), ("┃", "|")


def draw(frame: Frame, height: int | None = None) -> RenderableType:
    """Return a picture of at most `height` lines; None: everything."""
    status = frame.status
    jobs = sorted(
        (record for record in status["jobs"] if not record.get("ended")),
        key=lambda record: (record["job"]["class"] != "guaranteed", record["job"]["name"]),
    )
    head = [_head(frame, len(jobs))]
    for device in status["devices"]:
        if device.get("kind") == "gpu":
            head.append(Text(f"{device['id']}: {device['name']}", no_wrap=True))
        else:
            head.append(_cores(device, frame.busy_share))
        head.append(_memory(device, jobs))
        head += _use(device)
    head += _gaps(jobs)
    if not jobs:
        return Group(*head, Text(), Text("no jobs; 'commensal run' starts one", "dim"))
    shown, decided = _room(len(jobs), len(frame.decisions), len(head), height)
    parts = [*head, Text(), _jobs(jobs[:shown], frame.closed_shares)]
    if shown < len(jobs):
        parts.append(Text(f"and {len(jobs) - shown} more: 'commensal status'", "dim"))
    if decided:
        parts += [Text(), _decisions(frame.decisions[-decided:])]
    return Group(*parts)


def _room(jobs: int, decisions: int, head: int, height: int | None) -> tuple[int, int]:
    """Return how many jobs and decisions there is room for: jobs go first."""
    if height is None:
        return jobs, decisions
    room = height - head - 3  # an empty line and the two lines of the heading
    kept = min(decisions, LEAST_DECISIONS)
    for_jobs = room - (kept + 2 if kept else 0)
    shown = jobs if jobs * JOB_LINES <= for_jobs else max(1, (for_jobs - 1) // JOB_LINES)
    used = shown * JOB_LINES + (shown < jobs)
    return shown, max(0, min(decisions, room - used - 2))


def _head(frame: Frame, jobs: int) -> RenderableType:
    daemon = frame.status["coordinator"]
    name = f"{daemon['instance']}, pid {daemon['pid']}"
    left = Text.assemble(("commensal top  ", "bold"), name)
    if frame.trouble:
        left.append(f", {frame.trouble}", "red")
    else:
        left.append(f", up {format_seconds(daemon['uptime_seconds'])}")
    ended = sum(bool(record.get("ended")) for record in frame.status["jobs"])
    count = f"{jobs} {'job' if jobs == 1 else 'jobs'}" + (f", {ended} ended" if ended else "")
    return _line(left, Text(f"{count}   {_clock(frame.time_seconds)}"))


def _cores(device: Record, busy: float | None) -> RenderableType:
    cores = device["cores"]
    label = f"{device['id']}: {cores:g} {'core' if cores == 1 else 'cores'}"
    value = "-" if busy is None else f"{busy * 100:.0f} % busy"
    return _labelled(label, Bar(((busy or 0.0), USED, "magenta")), value)


def _use(device: Record) -> list[RenderableType]:
    """Return who used the device's time, of what was to be had; nothing while that is not known."""
    use = device.get("use") or {}
    if use.get("guaranteed_share") is None or use.get("oracle_share") is None:
        return []
    text = (
        f"guaranteed {100 * use['guaranteed_share']:.0f} %, opportunistic "
        f"{100 * use['opportunistic_share']:.0f} % of {100 * use['oracle_share']:.0f} % to be had"
    )
    if use.get("efficiency") is not None:
        text += f", efficiency {use['efficiency']:.2f}"
    return [Text(text, "dim", no_wrap=True, overflow="ellipsis")]


def _gaps(jobs: list[Record]) -> list[RenderableType]:
    told = [
        f"gaps of {record['job']['name']}: {gaps}"
        for record in jobs
        if (gaps := describe_gaps(record.get("gaps") or []))
    ]
    return [Text(text, "dim", no_wrap=True, overflow="ellipsis") for text in told[:MOST_GAPS]]


def _memory(device: Record, jobs: list[Record]) -> RenderableType:
    capacity = max(1, device["capacity_bytes"])
    used = device.get("held_bytes")
    if used is None:  # an older coordinator
        used = sum(record.get("memory", {}).get("device_bytes") or 0 for record in jobs)
    granted = device["granted_bytes"]
    bar = Bar(
        (min(used, capacity) / capacity, USED, "yellow"),
        (max(0, granted - used) / capacity, GRANTED, "yellow"),
    )
    value = f"used {format_bytes(used)}, granted {format_bytes(granted)}"
    value += f", free {format_bytes(device['free_bytes'])}"
    indent = " " * (2 + len(device["id"][:12]))
    return _labelled(f"{indent}{format_bytes(capacity)}", bar, value)


_COLUMNS = (  # heading of a job's two lines, width (None: the rest)
    ("job", "memory by tier", None),
    ("class, state", "held, limit", 23),
    ("steps", "law, share", 18),
    ("slowdown", "closed", 8),
)


def _jobs(jobs: list[Record], closed: dict[str, float]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    for _, _, width in _COLUMNS:
        table.add_column(width=width, ratio=None if width else 1, no_wrap=True, overflow="ellipsis")
    table.columns[-1].justify = "right"
    for heading in (0, 1):
        table.add_row(*(Text(str(column[heading]), "dim") for column in _COLUMNS))
    for record in jobs:
        table.add_row(*_first_line(record))
        table.add_row(*_second_line(record, closed.get(record["job"]["id"], 0.0)))
    return table


def _first_line(record: Record) -> tuple[RenderableType, ...]:
    job, slowdown = record["job"], record.get("slowdown")
    colour = COLOURS.get(job["class"], "")
    return (
        Text(job["name"], f"bold {colour}"),
        Text(f"{job['class']}, {describe_state(record)}"),
        Text(describe_steps(record.get("step", {}))),
        Text("-" if slowdown is None else percent(slowdown)),
    )


def _second_line(record: Record, closed: float) -> tuple[RenderableType, ...]:
    memory, gate = record.get("memory", {}), record.get("gate", {})
    share = record.get("share", {}).get("now")
    if share is None:
        share = gate.get("share")
    law = gate.get("law") or "-"
    held, limit = memory.get("device_bytes"), memory.get("limit_bytes")
    return (
        _tiers(memory, COLOURS.get(record["job"]["class"], "")),
        Text(f"{format_bytes(held)}, {'none' if limit is None else format_bytes(limit)}"),
        Text(law if share is None else f"{law} {share:.2f}"),
        Text("-" if law == "open" and not closed else f"{closed * 100:.0f} %"),
    )


def _tiers(memory: Record, colour: str) -> RenderableType:
    """Return a bar that is full at the job's limit, or at what it has if that is more."""
    tiers = [memory.get(f"{tier}_bytes") or 0 for tier in ("device", "host", "parked")]
    limit = memory.get("limit_bytes") or 0
    full = max(1, limit, sum(tiers))
    kinds = ((USED, colour), (SLOWER, "yellow"), (PARKED, "dim"))
    parts = [(size / full, *kind) for size, kind in zip(tiers, kinds, strict=True)]
    return Bar(*parts, mark=limit / full if 0 < limit < full else None)


def _decisions(decisions: tuple[Decision, ...]) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    table.add_column(width=8, no_wrap=True, style="dim")
    table.add_column(max_width=20, no_wrap=True, overflow="ellipsis")
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_row("", Text("decisions", "dim"), "")
    for decision in decisions:
        when = "stands" if decision.at_seconds is None else _clock(decision.at_seconds)
        text = f"{decision.what}: {decision.reason}" if decision.reason else decision.what
        table.add_row(when, Text(decision.job), Text(text))
    return table


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"


def _line(left: Text, right: Text) -> RenderableType:
    line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    line.add_column(justify="right", no_wrap=True)
    line.add_row(left, right)
    return line


def _labelled(label: str, bar: Bar, value: str) -> RenderableType:
    line = Table.grid(padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    line.add_column(width=18, no_wrap=True, overflow="ellipsis")
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_row(Text(label), bar, Text(value))
    return line


class Bar:
    """A bar as wide as there is room: parts of 0..1 one after the other, and a mark on it.

    A character is a pair: for terminals that can show it, and for those that cannot.
    """

    def __init__(
        self, *parts: tuple[float, tuple[str, str], str], mark: float | None = None
    ) -> None:
        self._parts, self._mark = parts, mark

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width, plain = options.max_width, int(options.ascii_only)
        cells: list[tuple[str, str]] = []
        total = 0.0
        for share, characters, style in self._parts:
            total += share
            wanted = min(width, round(total * width)) - len(cells)
            cells += [(characters[plain], style)] * wanted
        cells += [(REST[plain], "dim")] * (width - len(cells))
        if self._mark is not None and cells:
            cells[min(width - 1, round(self._mark * width))] = (MARK[plain], "bold")
        yield Text.assemble(*cells)
