# SPDX-License-Identifier: Apache-2.0
"""Metrics of several policies side by side, for a terminal and for the report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from commensal.simulation.durations import SECONDS, Unit

__all__ = [
    "AT_DEMAND",
    "best",
    "compare",
    "drawn",
    "failure_classes",
    "failures",
    "groups",
    "predictions",
]

Row = tuple[str, ...]
COLUMNS = {
    "jobs": "jobs",
    "avg_jct": "mean JCT",
    "median_jct": "median",
    "p95_jct": "95th pct",
    "p99_jct": "99th pct",
    "avg_queue": "mean wait",
    "avg_queue_fair_share": "for the quota",
    "avg_queue_fragmentation": "for places",
    "makespan": "makespan",
    "preemptions": "preemptions",
    "restarts": "restarts",
    "jobs_placed": "placed",
    "gpu_allocation_ratio": "GPUs given out, %",
}
FAILURES = {
    "completed": "completed",
    "given_up": "given up",
    "failed_attempts": "failed attempts",
    "retries": "retries",
    "avg_first_report": "first report, s",
    "prerun_gpu_seconds": "pre-runs, GPU s",
    "wasted_gpu_seconds": "wasted, GPU s",
    "wasted_percent": "wasted, %",
}
AT_DEMAND = "gpu_allocation_ratio_at_demand_"  # so many percent of the GPUs asked for
TIMES = (
    *("avg_jct", "median_jct", "p95_jct", "p99_jct"),
    *("avg_queue", "avg_queue_fair_share", "avg_queue_fragmentation", "makespan"),
)
WITH_UNIT = ("avg_jct", "avg_queue", "makespan")
TEXTS = ("policy", "predictor", "from", "class")
COUNTS = (
    *("jobs", "jobs_placed", "preemptions", "restarts"),
    *("completed", "given_up", "failed_attempts", "retries"),
)
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


def failures(results: list[dict[str, Any]]) -> list[Row]:
    """Return a heading and a row a policy: what failures cost. Nothing if nothing could fail."""
    rows = [
        (result["policy"], *_figures(tuple(FAILURES), result["metrics"]))
        for result in results
        if "failures" in result
    ]
    return [("policy", *FAILURES.values()), *rows] if rows else []


def failure_classes(results: list[dict[str, Any]]) -> list[Row]:
    """Return a heading and a row a class of failures and policy."""
    names = ("failed_attempts", "given_up", "wasted_gpu_seconds")
    rows = [
        (one["name"], result["policy"], *_figures(names, one))
        for result in results
        if "failures" in result
        for one in result["failures"]["classes"]
    ]
    heading = ("class", "policy", *(FAILURES[name] for name in names))
    return [heading, *sorted(rows, key=lambda row: row[0])] if rows else []


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
    apart = (SAME, *FAILURES)
    there = {name: None for result in results for name in result["metrics"] if name not in apart}
    others = [name for name in there if name not in COLUMNS]
    return [n for n in COLUMNS if n in there] + sorted(others, key=_by_number)


def _by_number(name: str) -> list[int | str]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _heading(name: str, unit: Unit) -> str:
    if name.startswith(AT_DEMAND):
        return f"at {name.removeprefix(AT_DEMAND).removesuffix('pct')} %"
    text = COLUMNS.get(name, name.replace("_", " "))
    return f"{text}, {unit.name}" if name in WITH_UNIT else text


def _figures(names: Sequence[str], metrics: dict[str, float], unit: Unit = SECONDS) -> Row:
    return tuple(_figure(name, metrics.get(name), unit) for name in names)


def _figure(name: str, value: float | None, unit: Unit) -> str:
    if value is None:
        return ""
    if name in TIMES:
        value /= unit.seconds
    return f"{value:,.0f}" if name in COUNTS else f"{value:,.2f}"
