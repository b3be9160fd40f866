# SPDX-License-Identifier: Apache-2.0
"""What `commensal top --cluster` shows: nodes with their devices, jobs, the queue with reasons."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from commensal._cluster import Cluster
from commensal._quantities import format_seconds

__all__ = ["ClusterFrame", "ClusterSource", "draw_cluster"]

Record = dict[str, Any]

WAITING = ("submitted", "queued", "reserved")
PARKED = "parked"
COLOURS = {"guaranteed": "green", "opportunistic": "cyan"}
LEAST_ROWS = 2  # of each table, however low the terminal
FRAME_LINES = 8  # that are no rows: the head, headings, lines between


@dataclass(frozen=True)
class ClusterFrame:
    """All that one picture shows."""

    nodes: Record  # `commensal nodes --json`
    jobs: list[Record]  # `commensal queue --json`
    tenants: list[Record]  # `commensal tenants --json`
    time_seconds: float  # since the epoch
    trouble: str = ""  # why all of it is old; empty: it is not

    def to_json(self, _new: Iterable[Any] = ()) -> Record:
        """Return one line of `top --cluster --json`."""
        return {
            "schema": 1,
            "time_seconds": self.time_seconds,
            "coordinator": self.nodes["coordinator"],
            "nodes": self.nodes["nodes"],
            "jobs": self.jobs,
            "tenants": self.tenants,
        }


class ClusterSource:
    """Makes frames of what the cluster's coordinator answers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def first(self) -> tuple[ClusterFrame, list[Any]]:
        """@raises Unreachable, Refused."""
        return self.next()

    def next(self) -> tuple[ClusterFrame, list[Any]]:
        """Return what is so now. @raises Unreachable, Refused."""
        nodes = self._cluster.ask("nodes")
        jobs = self._cluster.ask("queue")["jobs"]
        tenants = self._cluster.ask("tenants")["tenants"]
        return ClusterFrame(nodes, jobs, tenants, time.time()), []


def draw_cluster(frame: ClusterFrame, height: int | None = None) -> RenderableType:
    """Return a picture of at most `height` lines; None: everything."""
    placed = [job for job in frame.jobs if job["state"] not in WAITING]
    waiting = [job for job in frame.jobs if job["state"] in WAITING]
    parts = [frame.nodes["nodes"], placed, waiting, frame.tenants]
    rows = _rows_of([len(part) for part in parts], height)
    return Group(
        _head(frame, sum(job["state"] != PARKED for job in placed), len(waiting)),
        _nodes(frame.nodes["nodes"], rows[0]),
        _jobs(placed, frame.time_seconds, rows[1]),
        _queue(waiting, frame.time_seconds, rows[2]),
        _tenants(frame.tenants, rows[3]),
    )


def _rows_of(wanted: list[int], height: int | None) -> list[int]:
    """Divide a terminal's lines: each table has its least, the rest goes to the first that want."""
    if height is None:
        return wanted
    rows = [min(count, LEAST_ROWS) for count in wanted]
    left = max(0, height - FRAME_LINES - sum(rows) - len(rows))
    for index in (1, 2, 0, 3):  # jobs and queue before nodes and tenants
        more = min(left, wanted[index] - rows[index])
        rows[index] += more
        left -= more
    return rows


def _head(frame: ClusterFrame, placed: int, waiting: int) -> RenderableType:
    coordinator = frame.nodes["coordinator"]
    text = Text("commensal cluster", "bold", no_wrap=True, overflow="ellipsis")
    text.append(
        f"  engine {coordinator['engine']}, policy {coordinator['policy']}, "
        f"{placed} placed, {waiting} waiting",
        "not bold",
    )
    if problem := frame.trouble or coordinator["problem"]:
        text.append(f"  {problem}", "red")
    return text


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for column in columns:
        last = column == columns[-1]
        table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=1 if last else None)
        if not last:
            table.columns[-1].max_width = 24
    return table


def _more(table: Table, left_out: int) -> RenderableType:
    return Group(table, Text(f"and {left_out} more", "dim")) if left_out > 0 else table


def _class(job: Record) -> Text:
    return Text(job.get("class", ""), COLOURS.get(job.get("class", ""), ""))


def _nodes(nodes: list[Record], rows: int) -> RenderableType:
    table = _table("NODE", "STATE", "DEVICES", "JOBS")
    for node in nodes[:rows]:
        busy = sum(1 for device in node["devices"] if device["jobs"])
        on = sorted({job["id"] for device in node["devices"] for job in device["jobs"]}, key=int)
        state = node["state"] + (f": {node['reason']}" if node["reason"] else "")
        table.add_row(
            Text(node["name"]),
            Text(state, "" if node["state"] == "up" else "yellow"),
            f"{busy} of {len(node['devices'])} busy",
            Text(", ".join(on)),
        )
    return _more(table, len(nodes) - rows)


def _since(now: float, then_ms: float) -> str:
    return format_seconds(max(0.0, now - then_ms / 1000))


def _jobs(jobs: list[Record], now: float, rows: int) -> RenderableType:
    table = _table("JOB", "NAME", "TENANT", "CLASS", "STATE", "SINCE", "DEVICES")
    for job in jobs[:rows]:
        places = ", ".join(f"{place['node']}:{place['device']}" for place in job["placement"])
        table.add_row(
            job["id"],
            Text(job["name"]),
            Text(job["tenant"]),
            _class(job),
            "is being ended" if job["cancelling"] else job["state"],
            _since(now, job["changed_ms"]),
            Text(places),
        )
    return _more(table, len(jobs) - rows)


def _queue(jobs: list[Record], now: float, rows: int) -> RenderableType:
    table = _table("WAITS", "NAME", "TENANT", "GPUS", "SINCE", "REASON")
    for job in jobs[:rows]:
        table.add_row(
            job["id"],
            Text(job["name"]),
            Text(job["tenant"]),
            str(job["gpus"]),
            _since(now, job["submitted_ms"]),
            Text(job["reason"]),
        )
    return _more(table, len(jobs) - rows)


def _tenants(tenants: list[Record], rows: int) -> RenderableType:
    table = _table("TENANT", "GUARANTEED", "OPPORTUNISTIC", "WAITING")
    for tenant in tenants[:rows]:
        quota = "" if tenant["quota"] is None else f" of {tenant['quota']}"
        table.add_row(
            Text(tenant["name"]),
            f"{tenant['guaranteed_devices']}{quota}",
            str(tenant["opportunistic_devices"]),
            str(tenant["waiting_jobs"]),
        )
    return _more(table, len(tenants) - rows)
