# SPDX-License-Identifier: Apache-2.0
"""`commensal queue`, `cancel`, `nodes`, `tenants`, `quota`, `drain`, `undrain`: the cluster."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from commensal._quantities import format_seconds
from commensal.cli._manual import manual
from commensal.cli._options import (
    AsJson,
    Instance,
    RemoteAddress,
    brought_back,
    cluster_for,
    coordinator_of,
    reporting,
)

__all__ = ["register"]

_CODES = [0, 2, 3, 4]
_VARIABLES = [
    *("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR"),
    *("COMMENSAL_COORDINATOR", "COMMENSAL_KEY", "COMMENSAL_KEYS_DIR"),
]
_UNLIMITED = ("none", "unlimited")
_MOST_QUOTA = 1_000_000

Job = Annotated[str, typer.Argument(help="Id of the job, as 'submit' printed it.", metavar="JOB")]
Node = Annotated[str, typer.Argument(help="Name of the node.", metavar="NODE")]
Why = Annotated[str | None, typer.Option("--reason", help="For the others.", metavar="TEXT")]


def register(app: typer.Typer) -> None:
    """Add the commands."""

    def add(name: str, command: Any, *examples: tuple[str, str]) -> None:
        app.command(name, epilog=manual(examples, _CODES, _VARIABLES))(command)

    add(
        "queue",
        queue,
        ("commensal queue", "who waits, why, and who runs"),
        ("commensal queue --all --json | jq -r '.jobs[].state'", "ended jobs, too"),
    )
    add("cancel", cancel, ("commensal cancel 7", "ends job 7, or takes it out of the queue"))
    add("nodes", nodes, ("commensal nodes", "machines, their devices, and who is on them"))
    add("backup", backup, ("commensal backup", "a copy of what the coordinator must not forget"))
    add("state", state, ("commensal state > s.json", "the cluster as it is, for 'explain'"))
    add("tenants", tenants, ("commensal tenants", "quotas, and what is used of them"))
    add("drain", drain, ("commensal drain n3 --reason 'new disk'", "it is given no more jobs"))
    add("undrain", undrain, ("commensal undrain n3", "it is given jobs again"))
    of_quotas = manual(
        [
            ("commensal quota set vision 16", "guaranteed jobs on 16 devices at most"),
            ("commensal quota set vision none", "without a limit"),
        ],
        _CODES,
        _VARIABLES,
    )
    quotas = typer.Typer()
    quotas.command("set", epilog=of_quotas)(quota_set)
    app.add_typer(
        quotas,
        name="quota",
        help="Change how many devices a tenant's guaranteed jobs may have.",
        epilog=of_quotas,
        no_args_is_help=True,
    )


def _ask(
    context: typer.Context, instance: str | None, address: str | None, request: str, **fields: Any
) -> Any:
    cluster = brought_back(cluster_for(coordinator_of(context, instance), address))
    with reporting(cluster):
        return cluster.ask(request, **fields)


def _without_frame(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("v", "type")}


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Any) -> None:
    from rich.console import Console

    Console(highlight=False, markup=False).print(table)


def queue(
    context: typer.Context,
    all_jobs: Annotated[bool, typer.Option("--all", help="With jobs that have ended.")] = False,
    as_json: AsJson = False,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Show jobs: who runs as what, who waits, why, and for what."""
    answer = _ask(context, instance, coordinator, "queue", all=all_jobs)
    if as_json:
        print(json.dumps(_without_frame(answer)))
        return
    if not answer["jobs"]:
        print("no jobs")
        return
    table = _table("JOB", "NAME", "TENANT", "GPUS", "STATE", "SINCE", "REASON")
    now = time.time()
    for job in answer["jobs"]:
        since = format_seconds(max(0.0, now - job["changed_ms"] / 1000))
        table.add_row(
            job["id"],
            job["name"],
            job["tenant"],
            str(job["gpus"]),
            state_of(job),
            since,
            _reason(job),
        )
    _print(table)


def backup(
    context: typer.Context, instance: Instance = None, coordinator: RemoteAddress = None
) -> None:
    """Copy what the coordinator keeps into a file; print its name.

    The file lies in the folder 'backups' of the coordinator's state folder; it is a store of its
    own (docs/cluster.md says how to go back to it).
    """
    print(_ask(context, instance, coordinator, "backup")["file"])


def state(
    context: typer.Context, instance: Instance = None, coordinator: RemoteAddress = None
) -> None:
    """Print the cluster's state as JSON, for 'explain --state'."""
    print(json.dumps(_ask(context, instance, coordinator, "state")["state"]))


def _reason(job: dict[str, Any]) -> str:
    """Write why a job waits and, if somebody can say, until when."""
    estimate = job.get("estimate")
    if estimate is None:
        return str(job["reason"])
    if estimate["starts_in_ms"] is None:
        return f"{job['reason']} ({estimate['words']})"
    return f"{job['reason']}; starts {estimate['words']}"


def state_of(job: dict[str, Any]) -> str:
    """Write a job's state for people: "running (guaranteed)", "running (ends)", "failed (1)"."""
    notes = []
    if job["state"] == "running":
        notes.append(job["class"])
    if job["cancelling"]:
        notes.append("is being ended")
    if job["state"] == "failed" and "exit_code" in job:
        notes.append(f"exit code {job['exit_code']}")
    return f"{job['state']} ({', '.join(notes)})" if notes else str(job["state"])


def cancel(
    context: typer.Context,
    job: Job,
    reason: Why = None,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """End a job.

    At once if it waits or is parked; one that runs is asked first (SIGTERM), then killed.
    """
    fields = {} if reason is None else {"reason": reason}
    answer = _ask(context, instance, coordinator, "cancel", id=job, **fields)
    print(f"job {answer['id']}: {_ending(answer['state'])}")


def _ending(state: str) -> str:
    return state if state == "cancelled" else "is asked to end"


def nodes(
    context: typer.Context,
    as_json: AsJson = False,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Show machines, their devices, and which jobs are on them."""
    answer = _ask(context, instance, coordinator, "nodes")
    if as_json:
        print(json.dumps(_without_frame(answer)))
        return
    if problem := answer["coordinator"]["problem"]:
        print(f"engine {answer['coordinator']['engine']}: {problem}")
    table = _table("NODE", "STATE", "CORES", "DEVICE", "TYPE", "MEMORY", "JOBS", "REASON")
    for node in answer["nodes"]:
        first = [node["name"], node["state"], f"{node['cores']:g}"]
        for device in node["devices"] or [{"id": "", "type": "", "jobs": []}]:
            on = ", ".join(f"{job['id']} ({job['class']})" for job in device["jobs"])
            memory = device_memory(node, device["id"], device.get("memory_bytes"))
            table.add_row(*first, device["id"], device["type"], memory, on, node["reason"])
            first = ["", "", ""]
    _print(table)


def device_memory(node: dict[str, Any], device: str, total: int | None) -> str:
    """Return used and whole memory of a node's device, "2.1 of 79 GiB"; empty: not known.

    What is used is known of nodes that report, by their last report while they are not silent.
    """
    report = node.get("report") or {}
    for told in report.get("devices", []):
        numbers = [told.get(f"{name}_bytes", 0) for name in ("capacity", "held", "outside")]
        if told.get("id") != device or not all(isinstance(one, int) for one in numbers):
            continue
        capacity, held, outside = numbers
        total = total or capacity or None
        if total and report.get("state") == "up":
            return f"{min(held + outside, total) / 2**30:.1f} of {total / 2**30:.1f} GiB"
    return f"{total / 2**30:.1f} GiB" if total else ""


def tenants(
    context: typer.Context,
    as_json: AsJson = False,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Show tenants: their quotas, and what they use."""
    answer = _ask(context, instance, coordinator, "tenants")
    if as_json:
        print(json.dumps(_without_frame(answer)))
        return
    table = _table("TENANT", "QUOTA", "GUARANTEED", "OPPORTUNISTIC", "WAITING")
    for tenant in answer["tenants"]:
        quota = "none" if tenant["quota"] is None else str(tenant["quota"])
        table.add_row(
            tenant["name"],
            quota,
            str(tenant["guaranteed_devices"]),
            str(tenant["opportunistic_devices"]),
            str(tenant["waiting_jobs"]),
        )
    _print(table)


def quota_set(
    context: typer.Context,
    tenant: Annotated[str, typer.Argument(help="Made if there is none.", metavar="TENANT")],
    quota: Annotated[
        str, typer.Argument(help="Devices of its guaranteed jobs, or none.", metavar="DEVICES")
    ],
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Set how many devices a tenant's guaranteed jobs may have at once."""
    if quota not in _UNLIMITED and not (quota.isdecimal() and int(quota) <= _MOST_QUOTA):
        raise typer.BadParameter(
            f"a quota is a number of devices from 0 to {_MOST_QUOTA}, or none, not {quota!r}",
            param_hint="'DEVICES'",
        )
    devices = None if quota in _UNLIMITED else int(quota)
    answer = _ask(context, instance, coordinator, "quota", tenant=tenant, quota=devices)
    new = " (a new tenant)" if answer.get("made") else ""
    print(f"tenant {tenant}: quota {quota}{new}")


def drain(
    context: typer.Context,
    node: Node,
    reason: Why = None,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Give a node no more jobs; those on it run on."""
    fields = {} if reason is None else {"reason": reason}
    _ask(context, instance, coordinator, "drain", node=node, **fields)
    print(f"node {node}: drained")


def undrain(
    context: typer.Context,
    node: Node,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Give a node jobs again."""
    _ask(context, instance, coordinator, "undrain", node=node)
    print(f"node {node}: up")
