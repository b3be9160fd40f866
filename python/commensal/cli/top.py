# SPDX-License-Identifier: Apache-2.0
"""`commensal top`: what runs on this machine, or in the cluster, live."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commensal._cluster import Cluster, cluster_of
from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal.cli._manual import manual
from commensal.cli._options import Instance, coordinator_of, reporting
from commensal.cli._top_state import BusyCores, Decision, Frame, Watch

if TYPE_CHECKING:
    from rich.console import RenderableType

    from commensal.cli._top_cluster import ClusterFrame, ClusterSource

__all__ = ["register", "top"]

_FIRST_LOOK_SECONDS = 0.2  # a busy share needs two readings


def register(app: typer.Typer) -> None:
    app.command(
        "top",
        epilog=manual(
            [
                ("commensal top", "the live picture; q or Ctrl-C leaves"),
                ("commensal top --once", "one picture as text; also what a pipe gets"),
                ("commensal top --json | jq .devices", "one object a refresh, until it is stopped"),
                ("commensal top --cluster", "nodes, jobs and queue of the cluster's coordinator"),
            ],
            [0, 2, 3],
            ["COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR", "NO_COLOR"],
        ),
    )(top)


def top(
    context: typer.Context,
    whole_cluster: Annotated[
        bool, typer.Option("--cluster", help="Nodes, jobs and queue of the cluster.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Show one picture and end.")] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="For scripts: one object of docs/stats.md a refresh, a line."),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two pictures.", metavar="SECONDS")
    ] = 0.5,
    instance: Instance = None,
) -> None:
    """Watch devices, jobs and decisions.

    Devices: how busy the cores are, and the memory that jobs use, that is granted to them, and
    that is free. Jobs: state, steps, the memory by tier against its limit, pacing law and share,
    how much of the last 5 seconds the gate was closed, and what sharing costs a guaranteed job.
    Decisions: changes of limits and shares while you watch, with the coordinator's reasons.
    With --cluster: nodes, jobs, the queue with the reason each job waits, tenants.
    """
    node = coordinator_of(context, instance)
    coordinator = cluster_of(node) if whole_cluster else node
    source, draw = _source_of(coordinator)
    with reporting(coordinator):
        frame, new = source.first()
    if as_json:
        with suppress(KeyboardInterrupt), reporting(coordinator):
            _print_lines(source, frame, new, None if once else interval)
        return
    from rich.console import Console

    console = Console(highlight=False)
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(draw(frame))
        return
    with suppress(KeyboardInterrupt):
        _live(source, frame, interval, draw)


def _source_of(
    coordinator: Coordinator | Cluster,
) -> tuple[_Source | ClusterSource, Callable[..., RenderableType]]:
    """Return where frames come from, and what draws one in so many lines."""
    if isinstance(coordinator, Cluster):
        from commensal.cli._top_cluster import ClusterSource, draw_cluster

        return ClusterSource(coordinator), draw_cluster
    from commensal.cli._top_view import draw

    return _Source(coordinator), draw


class _Source:
    """Makes frames of what the coordinator answers."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._watch = Watch()
        self._cores = BusyCores()

    def first(self) -> tuple[Frame, list[Decision]]:
        """Return a frame that has a busy share already. @raises Unreachable, Refused."""
        self._coordinator.status()  # without an answer nobody waits
        time.sleep(_FIRST_LOOK_SECONDS)
        return self.next()

    def next(self) -> tuple[Frame, list[Decision]]:
        """Return what is so now, and the decisions that are new. @raises Unreachable, Refused."""
        status: dict[str, Any] = self._coordinator.status()
        now = time.time()
        new = self._watch.observe(status, now)
        closed = self._watch.closed_shares(status)
        decisions = tuple(self._watch.decisions)
        return Frame(status, now, self._cores.share(), closed, decisions), new


def _print_lines(
    source: _Source | ClusterSource,
    frame: Frame | ClusterFrame,
    new: list[Decision],
    interval: float | None,
) -> None:
    while True:
        print(json.dumps(frame.to_json(new)), flush=True)
        if interval is None:
            return
        time.sleep(interval)
        frame, new = source.next()


def _live(
    source: _Source | ClusterSource,
    frame: Frame | ClusterFrame,
    interval: float,
    draw: Callable[..., RenderableType],
) -> None:
    from dataclasses import replace

    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    with (
        _ended_by_signal(),
        _keys() as asked_to_leave,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):
        while True:
            live.update(draw(frame, console.height), refresh=True)
            if asked_to_leave(interval):
                return
            try:
                frame, _ = source.next()
            except (Unreachable, Refused):  # it may come back
                lost = time.time() - frame.time_seconds
                frame = replace(frame, trouble=f"no answer for {lost:.0f} s")


def _wait(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextmanager
def _keys() -> Iterator[Callable[[float], bool]]:
    """Give a function that waits some seconds and returns whether q was pressed meanwhile."""
    if not sys.stdin.isatty():
        yield _wait
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def wait(seconds: float) -> bool:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([keyboard], [], [], left)[0]:
                pressed = os.read(keyboard, 64)
                if pressed == b"" or b"q" in pressed.lower():
                    return True
        return False

    try:
        tty.setcbreak(keyboard)
        yield wait
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _ended_by_signal() -> Iterator[None]:
    """Let SIGTERM unwind, so that the terminal is left as it was."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
