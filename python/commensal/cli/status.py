# SPDX-License-Identifier: Apache-2.0
"""`commensal status`: what runs on this machine."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any

import typer

from commensal._quantities import format_bytes, format_seconds
from commensal._say import say
from commensal.cli._gaps import describe_gaps, describe_rules
from commensal.cli._manual import manual
from commensal.cli._options import REFUSED, AnyJob, AsJson, Instance, coordinator_of, reporting

__all__ = [
    "describe_gang",
    "describe_job",
    "describe_machine",
    "describe_state",
    "describe_steps",
    "percent",
    "register",
    "status",
]

Record = dict[str, Any]


def register(app: typer.Typer) -> None:
    app.command(
        "status",
        epilog=manual(
            [
                ("commensal status", "one line a job; what does not fit the terminal is left out"),
                ("commensal status sweep", "all about one job, with the reasons"),
                ("commensal status --json | jq '.jobs[].slowdown'", "one number of each job"),
            ],
            [0, 2, 3, 4],
        ),
    )(status)


def status(
    context: typer.Context,
    job: AnyJob = "",
    as_json: AsJson = False,
    instance: Instance = None,
) -> None:
    """Show the coordinator, its devices and jobs.

    With JOB: all that is known of that job, with the reasons. In the table, sizes are bytes of
    device memory; 'host' and 'parked' are on the slower tiers. 'share' is the part of the device's
    time that the gate leaves a job, 'slowdown' what sharing costs a guaranteed one. Every number
    is explained in docs/stats.md.
    """
    coordinator = coordinator_of(context, instance)
    with reporting(coordinator):
        reply = coordinator.status(job)
    if job and not reply["jobs"] and reply.get("expected"):
        lines = (_expected(placed).strip() for placed in reply["expected"])
        print(json.dumps(reply, indent=2) if as_json else "\n".join(lines))
        return
    if job and not reply["jobs"]:
        say(f"no job is called {job!r}; 'commensal status' lists them")
        raise typer.Exit(REFUSED)
    if as_json:
        print(json.dumps(reply, indent=2))
    elif job:
        print("\n\n".join(describe_job(record) for record in reply["jobs"]))
    else:
        # Into a pipe nothing is left out for some terminal's width.
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(describe_machine(reply, width))


def describe_machine(reply: Record, width: int | None) -> str:
    """Return coordinator, devices and a table of the jobs, at most `width` columns wide."""
    daemon = reply["coordinator"]
    lines = [
        f"coordinator {daemon['instance']}, pid {daemon['pid']}, "
        f"up {format_seconds(daemon['uptime_seconds'])}"
    ]
    lines += [
        f"device {device['id']}: {_what(device)}, "
        f"{format_bytes(device['capacity_bytes'])}, granted "
        f"{format_bytes(device['granted_bytes'])}{_beyond(device)}, "
        f"free {format_bytes(device['free_bytes'])}"
        for device in reply["devices"]
    ]
    lines += [
        _clip(f"  {reason}", width)
        for device in reply["devices"]
        if (reason := device.get("last_resort_reason"))
    ]
    lines += [line for device in reply["devices"] if (line := _use(device))]
    lines += [
        _clip(f"  gaps of {record['job']['name']}: {gaps}", width)
        for record in reply["jobs"]
        if not record.get("ended") and (gaps := describe_gaps(record.get("gaps") or []))
    ]
    lines += [_clip(_expected(placed), width) for placed in reply.get("expected", [])]
    if not reply["jobs"]:
        return "\n".join([*lines, "no jobs"])
    jobs = sorted(reply["jobs"], key=lambda record: bool(record.get("ended")))
    return "\n".join([*lines, "", *_table([_cells(record) for record in jobs], width)])


def _expected(placed: Record) -> str:
    """Return a line about a job that the cluster has placed here and that is still to come."""
    job, memory = placed["job"], placed.get("memory")
    on = ", ".join(map(short_device, placed["devices"])) or "no device"
    line = f"  expected: {job['id']} ({job['name']}), {job['class']}, {placed['state']}, on {on}"
    if memory and memory["min_bytes"]:
        kept = " kept free for it" if placed["claimed"] else ""
        line += f", at least {format_bytes(memory['min_bytes'])}{kept}"
    return line


def _beyond(device: Record) -> str:
    """Say how much was granted above the budget; empty: nothing."""
    beyond = device.get("beyond_budget_bytes")
    return f" ({format_bytes(beyond)} beyond the budget)" if beyond else ""


def _what(device: Record) -> str:
    if device.get("kind") == "gpu":
        return str(device["name"])
    return f"{device['cores']:g} cores"


def short_device(name: str) -> str:
    """Return the first characters of a GPU's id, as people tell them apart."""
    return name[:12]


def _use(device: Record) -> str:
    """Return who used a device's time; empty: it is not known."""
    use = device.get("use") or {}
    if use.get("guaranteed_share") is None:
        return ""
    line = (
        f"  of its time, the last {format_seconds(use['seconds'])}: guaranteed "
        f"{100 * use['guaranteed_share']:.0f} %, opportunistic "
        f"{100 * use['opportunistic_share']:.0f} %"
    )
    if use["oracle_share"] is not None:
        line += f" of the {100 * use['oracle_share']:.0f} % that can be had"
    return line


def _clip(line: str, width: int | None) -> str:
    return line if width is None or len(line) <= width else line[: width - 3] + "..."


# In the order of the table; on a narrow terminal those with the highest number go first.
_COLUMNS = {
    "job": 0,
    "class": 3,
    "state": 0,
    "on": 9,
    "device": 0,
    "limit": 1,
    "host": 6,
    "parked": 8,
    "gate": 4,
    "share": 5,
    "step": 1,
    "slowdown": 2,
    "id": 7,
}
_RIGHT = frozenset({"device", "limit", "host", "parked", "share", "slowdown"})
_GAP = 2


def _table(rows: Sequence[dict[str, str]], width: int | None) -> list[str]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _COLUMNS}
    known = [name for name in _COLUMNS if name != "on" or any(row["on"] != "host" for row in rows)]
    shown = list(known)
    while (
        width is not None
        and sum(widths[name] + _GAP for name in shown) - _GAP > width
        and any(_COLUMNS[name] for name in shown)
    ):
        shown.remove(max(shown, key=lambda name: _COLUMNS[name]))

    def line(row: dict[str, str]) -> str:
        cells = (
            row[name].rjust(widths[name]) if name in _RIGHT else row[name].ljust(widths[name])
            for name in shown
        )
        return (" " * _GAP).join(cells).rstrip()

    lines = [line({name: name for name in shown}), *(line(row) for row in rows)]
    if len(shown) < len(known):
        lines.append("'commensal status JOB' shows the rest")
    return lines


def _cells(record: Record) -> dict[str, str]:
    """Return a job's row of the table."""
    job, ended = record["job"], bool(record.get("ended"))
    memory, gate, step = record.get("memory", {}), record.get("gate", {}), record.get("step", {})
    share, slowdown = gate.get("share"), record.get("slowdown")
    return {
        "job": job["name"],
        "class": job["class"],
        "state": describe_state(record),
        "on": ", ".join(map(short_device, record.get("devices") or ["host"])),
        "device": "-" if ended else format_bytes(memory.get("device_bytes")),
        "limit": "-" if ended or not memory else _limit(memory),
        "host": "-" if ended else format_bytes(memory.get("host_bytes")),
        "parked": "-" if ended else format_bytes(memory.get("parked_bytes")),
        "gate": "-" if ended else _gate(gate),
        "share": "-" if ended or share is None else f"{share:.2f}",
        "step": describe_steps(step),
        "slowdown": "-" if ended or slowdown is None else percent(slowdown),
        "id": job["id"],
    }


def _not_elastic(memory: Record) -> str:
    """Return what of a job's memory no limit moves, and why; empty: nothing."""
    parts = [f"{format_bytes(e['bytes'])} kept: {e['reason']}" for e in memory.get("kept", [])]
    if own := memory.get("delegated_bytes"):
        parts.append(f"{format_bytes(own)} of PyTorch's own allocator: graphs and pools")
    return "; ".join(parts)


def _memory_rows(memory: Record) -> list[tuple[str, str]]:
    if not memory:
        return []
    used = ", ".join(
        f"{format_bytes(memory.get(f'{tier}_bytes'))} {where}"
        for tier, where in (
            ("device", "on the device"),
            ("host", "on the slower tier"),
            ("parked", "parked"),
        )
    )
    rows = [("memory", f"{used}; limit {_limit(memory)}")]
    if text := _not_elastic(memory):
        rows.append(("not elastic", text))
    if memory.get("deferred_bytes"):
        deferred = format_bytes(memory["deferred_bytes"])
        rows.append(("deferred", _with_reason(deferred, memory.get("deferred_reason"))))
    if memory.get("held_back_bytes"):
        waiting = format_bytes(memory["held_back_bytes"])
        rows.append(("held back", _with_reason(waiting, memory.get("held_back_reason"))))
    return rows


def _lease_rows(leases: list[Record], total: Record) -> list[tuple[str, str]]:
    """Return what a job was granted: of several devices, on each."""
    if len(leases) < 2:
        granted = f"{format_bytes(total.get('granted_bytes'))} granted"
        return [("lease", _with_reason(granted, total.get("reason")))]
    return [
        (
            "lease",
            _with_reason(
                f"{format_bytes(lease['granted_bytes'])} granted on {lease['device']}, "
                f"{format_bytes(lease['held_bytes'])} held",
                lease["reason"],
            ),
        )
        for lease in leases
    ]


def describe_job(record: Record) -> str:
    """Return all that is known of a job, with the reasons, as lines of text."""
    job, lease, share = record["job"], record.get("lease", {}), record.get("share", {})
    memory, gate, step = record.get("memory", {}), record.get("gate", {}), record.get("step", {})
    rows = [("state", f"{describe_state(record)}, {_since(record)}")]
    if change := record.get("class_change"):
        rows.append(("class", _with_reason(f"to be {change['wanted']}", change["reason"])))
    if (devices := record.get("devices") or ["host"]) != ["host"]:
        rows.append(("on", ", ".join(devices) + _GPU_MEMORY.get(memory.get("policy", ""), "")))
    rows += _memory_rows(memory)
    if lease:
        rows += _lease_rows(record.get("leases") or [], lease)
    if gate:
        rows.append(("gate", _with_reason(_gate(gate), gate.get("reason"))))
    if share:
        now = share.get("now")
        text = "-" if now is None else f"{now:.2f} while a guaranteed job is busy"
        rows.append(("share", _with_reason(text, share.get("reason"))))
    parts = {
        "cores": _cores(record.get("cores", {})),
        "SMs": _multiprocessors(record.get("multiprocessors", {})),
    }
    rows += [(name, text) for name, text in parts.items() if text]
    if group := record.get("group", {}).get("reason"):
        rows.append(("group", group))
    rows.append(("steps", describe_steps(step)))
    if record.get("slowdown") is not None:
        error = record.get("slowdown_error")
        spread = "" if error is None else f" (standard error {error * 100:.1f} %)"
        of = _MEASURED_BY.get(record.get("measured_by") or "", "")
        rows.append(("slowdown", percent(record["slowdown"]) + spread + of))
    elif reason := record.get("slowdown_reason"):
        rows.append(("slowdown", str(reason)))
    if gaps := describe_gaps(record.get("gaps") or []):
        rows.append(("gaps", gaps))
    rows += [("gaps", rules) for rules in describe_rules(record)]
    if gang := record.get("gang"):
        rows.append(("gang", describe_gang(gang)))
    if members := record.get("members"):
        rows.append(("members", ", ".join(_member(member) for member in members)))
    rows += [("note", note) for note in memory.get("notes", [])]
    head = f"{job['name']} ({job['class']}, {job['id']}, tenant {job.get('tenant', '-')})"
    return "\n".join([head, *(f"  {name:<9} {text}" for name, text in rows)])


_GPU_MEMORY = {
    "native": "; its memory there is native: PyTorch's own, bound by the limit",
    "elastic": "; its memory there is elastic: what is in use moves, too",
}
_MEASURED_BY = {
    "requests": ", of the 99th percentile of its requests",
    "cores": ", of its time on cores: its steps are not known",
}


def _cores(cores: Record) -> str:
    """Say on which of its CPUs a job keeps, where there is something to say."""
    kept, own = cores.get("cpus"), cores.get("own")
    if kept == own and not cores.get("reason"):
        return ""
    return _with_reason(f"CPUs {kept} of {own}" if kept != own else f"CPUs {own}", cores["reason"])


def _multiprocessors(found: Record) -> str:
    """Say on how many of a GPU's SMs a job's work runs, where a share was asked for."""
    if found.get("share") is None:
        return ""
    text = f"share {found['share']:g}"
    if found.get("total") is not None:
        text = f"{found['granted']} of {found['total']}, asked for {found['asked']} ({text})"
    return _with_reason(text, found.get("reason"))


def describe_gang(gang: Record) -> str:
    """Say whether a job's ranks are gated together, and how that went."""
    if not gang["gated"]:
        return f"each rank is gated by itself: {gang['reason']}"
    text = f"{gang['ranks']} ranks, epoch {gang['epoch']}: {gang['reason']}"
    if gang["closes_total"]:
        text += f" ({gang['closes_together_total']} of {gang['closes_total']} times together)"
    return text


def _with_reason(text: str, reason: str | None) -> str:
    return f"{text}: {reason}" if reason else text


def _limit(memory: Record) -> str:
    limit = memory.get("limit_bytes")
    return "none" if limit is None else format_bytes(limit)


def _gate(gate: Record) -> str:
    return " ".join(str(gate[key]) for key in ("law", "state") if gate.get(key)) or "-"


def percent(ratio: float) -> str:
    """Write a change of a ratio: "+1.2 %"."""
    return f"{ratio * 100:+.1f} %"


def _member(member: Record) -> str:
    rank = f" {member['rank']}" if member["role"] == "rank" else ""
    return f"{member['role']}{rank} (pid {member['pid']})"


def _since(record: Record) -> str:
    if record.get("ended"):
        return f"{format_seconds(record.get('ended_seconds_ago'))} ago"
    return f"for {format_seconds(record.get('started_seconds_ago'))}"


def describe_state(record: Record) -> str:
    """Say whether a job trains, waits, is paused, or how it ended."""
    if record.get("ended"):
        how = record.get("exit_reason") or ""
        return "ended" if how in ("", "ended") else f"ended ({how})"
    if record.get("paused") or record.get("gate", {}).get("state") == "paused":
        return "paused"
    return str(record.get("activity", {}).get("state") or record.get("lease", {}).get("state", "-"))


def describe_steps(step: Record) -> str:
    """Write number and usual length of a job's steps: "1200 x 42 ms"."""
    if not step.get("number"):
        return "-"
    return f"{step['number']} x {format_seconds(step.get('median_seconds'))}"
