# SPDX-License-Identifier: Apache-2.0
"""Metrics of several policies side by side, for a terminal and for the report."""

from __future__ import annotations

from typing import Any

from rich.table import Table

__all__ = ["compare", "drawn", "groups"]

Row = tuple[str, ...]
COLUMNS = {
    "jobs": "jobs",
    "avg_jct": "mean JCT, s",
    "median_jct": "median",
    "p95_jct": "95th pct",
    "p99_jct": "99th pct",
    "avg_queue": "mean wait, s",
    "makespan": "makespan, s",
    "preemptions": "preemptions",
}


def compare(results: list[dict[str, Any]]) -> list[Row]:
    """Return a heading and a row a policy."""
    return [
        ("policy", *COLUMNS.values()),
        *((result["policy"], *_figures(result["metrics"])) for result in results),
    ]


def groups(what: str, results: list[dict[str, Any]], key: str) -> list[Row]:
    """Return a heading and a row a tenant or class and policy."""
    rows = [
        (group["name"] or "(none)", result["policy"], *_figures(group["metrics"]))
        for result in results
        for group in result[key]
    ]
    return [(what, "policy", *COLUMNS.values()), *sorted(rows, key=lambda row: row[0])]


def drawn(results: list[dict[str, Any]]) -> Table:
    """Return the comparison for a terminal."""
    heading, *rows = compare(results)
    table = Table(box=None, header_style="bold")
    for name in heading:
        table.add_column(name, justify="left" if name == "policy" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _figures(metrics: dict[str, float]) -> Row:
    return tuple(
        f"{metrics[name]:,.0f}" if name in ("jobs", "preemptions") else f"{metrics[name]:,.2f}"
        for name in COLUMNS
    )
