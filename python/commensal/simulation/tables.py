# SPDX-License-Identifier: Apache-2.0
"""Metrics of several policies side by side, for a terminal and for the report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from commensal.simulation.durations import SECONDS, Unit

__all__ = ["AT_DEMAND", "best", "compare", "drawn", "groups"]

Row = tuple[str, ...]
COLUMNS = {
    "jobs": "jobs",
    "avg_jct": "mean JCT",
    "median_jct": "median",
    "p95_jct": "95th pct",
    "p99_jct": "99th pct",
    "avg_queue": "mean wait",
    "makespan": "makespan",
    "preemptions": "preemptions",
    "restarts": "restarts",
    "jobs_placed": "placed",
    "gpu_allocation_ratio": "GPUs given out, %",
}
AT_DEMAND = "gpu_allocation_ratio_at_demand_"  # so many percent of the GPUs asked for
TIMES = ("avg_jct", "median_jct", "p95_jct", "p99_jct", "avg_queue", "makespan")
WITH_UNIT = ("avg_jct", "avg_queue", "makespan")
COUNTS = ("jobs", "jobs_placed", "preemptions", "restarts")
SAME = "avg_pending"  # as avg_queue


def compare(results: list[dict[str, Any]], unit: Unit = SECONDS) -> list[Row]:
    """Return a heading and a row a policy; metrics that the page does not know stand last."""
    names = _names(results)
    return [
        ("policy", *(_heading(name, unit) for name in names)),
        *((result["policy"], *_figures(names, result["metrics"], unit)) for result in results),
    ]


def best(results: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """Return row and column, heading and names included, of the shortest times of `compare`."""
    found = set()
    for column, name in enumerate(_names(results), start=1):
        values = [result["metrics"].get(name, math.inf) for result in results]
        if name in TIMES and min(values) < max(values):
            found |= {(i + 1, column) for i, value in enumerate(values) if value == min(values)}
    return found


def groups(what: str, results: list[dict[str, Any]], key: str, unit: Unit = SECONDS) -> list[Row]:
    """Return a heading and a row a tenant or class and policy."""
    names = [name for name in _names(results) if name in COLUMNS]
    rows = [
        (group["name"] or "(none)", result["policy"], *_figures(names, group["metrics"], unit))
        for result in results
        for group in result[key]
    ]
    heading = (what, "policy", *(_heading(name, unit) for name in names))
    return [heading, *sorted(rows, key=lambda row: row[0])]


def drawn(results: list[dict[str, Any]]) -> Table:
    """Return the comparison for a terminal."""
    heading, *rows = compare(results)
    table = Table(box=None, header_style="bold")
    for name in heading:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _names(results: list[dict[str, Any]]) -> list[str]:
    there = {name: None for result in results for name in result["metrics"] if name != SAME}
    others = [name for name in there if name not in COLUMNS]
    return [n for n in COLUMNS if n in there] + sorted(others, key=_by_number)


def _by_number(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _heading(name: str, unit: Unit) -> str:
    if name.startswith(AT_DEMAND):
        return f"at {name.removeprefix(AT_DEMAND).removesuffix('pct')} %"
    text = COLUMNS.get(name, name.replace("_", " "))
    return f"{text}, {unit.name}" if name in WITH_UNIT else text


def _figures(names: Sequence[str], metrics: dict[str, float], unit: Unit) -> Row:
    return tuple(_figure(name, metrics.get(name), unit) for name in names)


def _figure(name: str, value: float | None, unit: Unit) -> str:
    if value is None:
        return ""
    if name in TIMES:
        value /= unit.seconds
    return f"{value:,.0f}" if name in COUNTS else f"{value:,.2f}"
