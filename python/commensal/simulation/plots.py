# SPDX-License-Identifier: Apache-2.0
"""Curves of several policies on one trace, as plotly.js takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commensal.demo.plots import Json, Plot, rounded

__all__ = ["COLOURS", "plots_of"]

COLOURS = "abcdefgh"  # style variables --policy-a and so on; then they begin again, dashed
DAY = 86400.0


def plots_of(answer: dict[str, Any]) -> dict[str, list[Plot]]:
    """Return the plots of each section of the page."""
    results, gpus = answer["results"], answer["cluster"]["gpus"]
    return {
        "jct": [Plot("Share of jobs done within a time", *_completion(results))],
        "queue": [_over_time("Jobs that wait", results, "waiting", 1, "jobs", ":.0f")],
        "use": [_over_time("GPUs in use", results, "busy_gpus", gpus, "", ":.0%")],
    }


def _completion(results: Sequence[dict[str, Any]]) -> tuple[list[Json], Json]:
    traces = []
    for number, result in enumerate(results):
        times = result["series"]["jct"]
        shares = [(i + 1) / len(times) for i in range(len(times))]
        traces.append(
            _line(number, result["policy"], rounded(max(t, 1.0) for t in times), shares)
            | {
                "hovertemplate": "%{y:.0%} within %{x:,.0f} s<extra>"
                + result["policy"]
                + "</extra>"
            }
        )
    layout: Json = {
        "xaxis": {"type": "log", "title": {"text": "job completion time, seconds (log)"}},
        "yaxis": {"title": {"text": "share of jobs"}, "tickformat": ".0%", "range": [0, 1.02]},
        "hovermode": "closest",
    }
    return traces, layout


def _over_time(
    title: str, results: Sequence[dict[str, Any]], key: str, unit: float, name: str, form: str
) -> Plot:
    traces = [
        _line(
            number,
            result["policy"],
            rounded((t / DAY for t in result["series"]["time"]), 4),
            rounded((value / unit for value in result["series"][key]), 4),
        )
        | {
            "hovertemplate": "%{y"
            + form
            + "} on day %{x:.1f}<extra>"
            + result["policy"]
            + "</extra>"
        }
        for number, result in enumerate(results)
    ]
    layout: Json = {
        "xaxis": {"title": {"text": "days on the clock of the trace"}},
        "yaxis": {
            "title": {"text": name},
            "rangemode": "tozero",
            **({} if name else {"tickformat": ".0%"}),
        },
        "hovermode": "closest",
    }
    return Plot(title, traces, layout)


def _name(result: dict[str, Any]) -> str:
    return f"<extra>{result['policy']}</extra>"


def _line(number: int, name: str, x: list[float], y: list[float]) -> Json:
    dash = "solid" if number < len(COLOURS) else "dash"
    line = {"width": 2, "color": f"$policy-{COLOURS[number % len(COLOURS)]}", "dash": dash}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line}
