# SPDX-License-Identifier: Apache-2.0
"""Curves of several policies on one trace, as plotly.js takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commensal._report.plot import Json, Plot, rounded
from commensal.simulation.durations import DAYS, marks, unit_of, words
from commensal.simulation.tables import AT_DEMAND

__all__ = ["COLOURS", "allocation_of", "has_times", "plots_of"]

COLOURS = "abcdefgh"  # style variables --policy-a and so on; then they begin again, dashed


def plots_of(answer: dict[str, Any]) -> dict[str, list[Plot]]:
    """Return the plots of each section of the page."""
    results, gpus = answer["results"], answer["cluster"]["gpus"]
    if not has_times(results):
        return {"allocation": [_allocation(results)]}
    return {
        "jct": [Plot("Share of jobs done within a time", *_completion(results))],
        "queue": [_over_time("Jobs that wait", results, "waiting", 1, "jobs", ":.0f")],
        "use": [_over_time("GPUs in use", results, "busy_gpus", gpus, "", ":.0%")],
    }


def has_times(results: Sequence[dict[str, Any]]) -> bool:
    """Whether jobs end: under rules without a clock they only find places."""
    return all("series" in result for result in results)


def allocation_of(metrics: Mapping[str, float]) -> dict[float, float]:
    """Return the percent of all GPUs that were given out, by the percent that was asked for."""
    found = {
        float(name.removeprefix(AT_DEMAND).removesuffix("pct")): value
        for name, value in metrics.items()
        if name.startswith(AT_DEMAND)
    }
    return dict(sorted(found.items()))


def _allocation(results: Sequence[dict[str, Any]]) -> Plot:
    traces = []
    for number, result in enumerate(results):
        given = allocation_of(result["metrics"])
        traces.append(
            _line(number, result["policy"], list(given), list(given.values()))
            | {"hovertemplate": "%{y:.2f} % of %{x} %<extra>" + result["policy"] + "</extra>"}
        )
    layout: Json = {
        "xaxis": {"title": {"text": "GPUs asked for, % of all"}},
        "yaxis": {"title": {"text": "GPUs given out, % of all"}},
        "hovermode": "closest",
    }
    return Plot("GPUs given out", traces, layout)


def _completion(results: Sequence[dict[str, Any]]) -> tuple[list[Json], Json]:
    traces = []
    for number, result in enumerate(results):
        times = result["series"]["jct"]
        shares = [(i + 1) / len(times) for i in range(len(times))]
        traces.append(
            _line(number, result["policy"], rounded(max(t, 1.0) for t in times), shares)
            | {
                "text": [words(time) for time in times],
                "hovertemplate": "%{y:.0%} within %{text}<extra>" + result["policy"] + "</extra>",
            }
        )
    all_times = [max(t, 1.0) for result in results for t in result["series"]["jct"]] or [1.0]
    axis = marks(min(all_times), max(all_times))
    layout: Json = {
        "xaxis": {
            "type": "log",
            "title": {"text": "job completion time (log)"},
            **({"tickvals": list(axis), "ticktext": list(axis.values())} if axis else {}),
        },
        "yaxis": {"title": {"text": "share of jobs"}, "tickformat": ".0%", "range": [0, 1.02]},
        "hovermode": "closest",
    }
    return traces, layout


def _over_time(
    title: str, results: Sequence[dict[str, Any]], key: str, unit: float, name: str, form: str
) -> Plot:
    last = max((t for result in results for t in result["series"]["time"]), default=0.0)
    clock = unit_of(last, DAYS)
    traces = [
        _line(
            number,
            result["policy"],
            rounded((t / clock.seconds for t in result["series"]["time"]), 4),
            rounded((value / unit for value in result["series"][key]), 4),
        )
        | {
            "hovertemplate": "%{y"
            + form
            + "} at %{x:.1f} "
            + clock.name
            + "<extra>"
            + result["policy"]
            + "</extra>"
        }
        for number, result in enumerate(results)
    ]
    layout: Json = {
        "xaxis": {"title": {"text": f"{clock.plural} on the clock of the trace"}},
        "yaxis": {
            "title": {"text": name},
            "rangemode": "tozero",
            **({} if name else {"tickformat": ".0%"}),
        },
        "hovermode": "closest",
    }
    return Plot(title, traces, layout)


def _line(number: int, name: str, x: list[float], y: list[float]) -> Json:
    dash = "solid" if number < len(COLOURS) else "dash"
    line = {"width": 2, "color": f"$policy-{COLOURS[number % len(COLOURS)]}", "dash": dash}
    return {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line}
