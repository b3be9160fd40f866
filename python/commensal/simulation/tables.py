# SPDX-License-Identifier: Apache-2.0
"""Metrics of several policies side by side, for a terminal and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

__all__ = ["compare", "drawn", "groups", "predictions"]

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
    "restarts": "restarts",
}
TEXTS = ("policy", "predictor", "from")
COUNTS = ("jobs", "preemptions", "restarts")
SAME = "avg_pending"  # as avg_queue


def compare(results: list[dict[str, Any]]) -> list[Row]:
    """Return a heading and a row a policy; metrics that the page does not know stand last."""
    names = _names(results)
    return [
        ("policy", *(COLUMNS.get(name, name.replace("_", " ")) for name in names)),
        *((result["policy"], *_figures(names, result["metrics"])) for result in results),
    ]


def groups(what: str, results: list[dict[str, Any]], key: str) -> list[Row]:
    """Return a heading and a row a tenant or class and policy."""
    names = [name for name in _names(results) if name in COLUMNS]
    rows = [
        (group["name"] or "(none)", result["policy"], *_figures(names, group["metrics"]))
        for result in results
        for group in result[key]
    ]
    heading = (what, "policy", *(COLUMNS[name] for name in names))
    return [heading, *sorted(rows, key=lambda row: row[0])]


def predictions(results: list[dict[str, Any]]) -> list[Row]:
    """Return a heading and rows: how far predictions were from the truth, in all and by what they
    were made from. Nothing if there was none."""
    rows: list[Row] = []
    for result in results:
        found = result.get("prediction")
        if found is None:
            continue
        share = f"{found['predicted']:,} of {found['jobs']:,} ({found['coverage_percent']:.0f} %)"
        begin = (result["policy"], found["predictor"])
        rows.append((*begin, "jobs alike", share, *_errors(found)))
        rows += [(*begin, k["key"], f"{k['jobs']:,}", *_errors(k)) for k in found["by_key"]]
    return (
        [("policy", "predictor", "from", "jobs", "mean error", "median error"), *rows]
        if rows
        else []
    )


def _errors(found: dict[str, Any]) -> Row:
    if not found.get("predicted", found["jobs"]):
        return ("", "")
    return (f"{found['mape_percent']:,.1f}", f"{found['median_error_percent']:,.1f}")


def drawn(rows: Sequence[Row]) -> Table:
    """Return a heading and rows for a terminal."""
    heading, *lines = rows
    table = Table(box=None, header_style="bold")
    for name in heading:
        table.add_column(name, justify="left" if name in TEXTS else "right")
    for line in lines:
        table.add_row(*line)
    return table


def _names(results: list[dict[str, Any]]) -> list[str]:
    there = {name: None for result in results for name in result["metrics"] if name != SAME}
    return [n for n in COLUMNS if n in there] + [n for n in there if n not in COLUMNS]


def _figures(names: Sequence[str], metrics: dict[str, float]) -> Row:
    return tuple(_figure(name, metrics.get(name)) for name in names)


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if name in COUNTS else f"{value:,.2f}"
