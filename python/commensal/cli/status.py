# SPDX-License-Identifier: Apache-2.0
"""`commensal status`: what runs on this machine."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from commensal._quantities import format_bytes, format_seconds
from commensal.cli._coordinator import Coordinator, Refused, Unreachable
from commensal.cli._options import NO_COORDINATOR, REFUSED, say

__all__ = ["register", "status"]


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(
    context: typer.Context,
    job: Annotated[str, typer.Argument(help="Id or name of one job; all without it.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="The object of docs/stats.md, for scripts.")
    ] = False,
) -> None:
    """Show the coordinator, its devices and its jobs."""
    coordinator: Coordinator = context.obj
    try:
        reply = coordinator.status(job)
    except Unreachable as error:
        say(f"{error}; 'commensal run' starts a coordinator (instance {coordinator.instance})")
        raise typer.Exit(NO_COORDINATOR) from None
    except Refused as error:
        say(str(error))
        raise typer.Exit(REFUSED) from None
    if job and not reply["jobs"]:
        say(f"no job is called {job!r}")
        raise typer.Exit(REFUSED)
    if as_json:
        print(json.dumps(reply, indent=2))
    else:
        _draw(reply)


def _draw(reply: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Into a pipe nothing is cut off at some terminal's width.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    daemon = reply["coordinator"]
    console.print(
        f"coordinator {daemon['instance']}, pid {daemon['pid']}, "
        f"up {format_seconds(daemon['uptime_seconds'])}",
        markup=False,
    )
    for device in reply["devices"]:
        console.print(
            f"device {device['id']}: {device['cores']} cores, "
            f"{format_bytes(device['capacity_bytes'])}, granted "
            f"{format_bytes(device['granted_bytes'])}, free {format_bytes(device['free_bytes'])}",
            markup=False,
        )
    if not reply["jobs"]:
        console.print("no jobs")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in _COLUMNS:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    for record in reply["jobs"]:
        table.add_row(*(Text(cell) for cell in _row(record)))
    console.print(table)


_LEFT = ("job", "id", "class", "state", "gate")
_COLUMNS = (
    *("job", "id", "class", "state", "device", "limit", "host", "parked"),
    *("gate", "share", "step", "slowdown"),
)


def _row(record: dict[str, Any]) -> list[str]:
    job = record["job"]
    memory, gate, step = record.get("memory", {}), record.get("gate", {}), record.get("step", {})
    limit = memory.get("limit_bytes")
    slowdown = record.get("slowdown")
    share = gate.get("share")
    return [
        job["name"],
        job["id"],
        job["class"],
        _state(record),
        format_bytes(memory.get("device_bytes")),
        "none" if limit is None and memory else format_bytes(limit),
        format_bytes(memory.get("host_bytes")),
        format_bytes(memory.get("parked_bytes")),
        " ".join(str(gate[key]) for key in ("law", "state") if gate.get(key)) or "-",
        "-" if share is None else f"{share:.2f}",
        _step(step),
        "-" if slowdown is None else f"{slowdown * 100:+.1f} %",
    ]


def _state(record: dict[str, Any]) -> str:
    if record.get("ended"):
        return f"ended ({record.get('exit_reason') or 'left'})"
    if record.get("gate", {}).get("state") == "paused":
        return "paused"
    return str(record.get("activity", {}).get("state") or record.get("lease", {}).get("state", "-"))


def _step(step: dict[str, Any]) -> str:
    if not step.get("number"):
        return "-"
    return f"{step['number']} x {format_seconds(step.get('median_seconds'))}"
