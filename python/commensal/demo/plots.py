# SPDX-License-Identifier: Apache-2.0
"""The report's interactive plots."""

from __future__ import annotations

import textwrap
from typing import Any

from commensal._report.plot import Json, Plot, rounded
from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Measurement
from commensal.demo.runs import Mode
from commensal.demo.series import Gaps, gaps_of, memory_of, step_curves

__all__ = ["plots_of"]

EXCERPT_SECONDS = 2.5
FIRST_VIEW_MS = 1200
ABOVE = 1.12  # where the guaranteed job's bar is, above 100 % of the other's use


def plots_of(measurement: Measurement) -> dict[str, list[Plot]]:
    """Return the plots of each section of the page."""
    on_gpu = measurement.plan.on_gpu
    return {
        "steps": [
            step_plot(measurement, GUARANTEED, "Guaranteed job"),
            step_plot(measurement, OPPORTUNISTIC, "Opportunistic job"),
        ],
        "memory": [memory_plot(measurement)],
        "gaps": [
            gap_plot(gaps_of(measurement, mode, EXCERPT_SECONDS), mode, title, on_gpu=on_gpu)
            for mode, title in (
                (Mode.DEFAULT, "Default sharing"),
                (Mode.COMMENSAL, "Under commensal"),
            )
        ],
    }


def step_plot(measurement: Measurement, job: str, title: str) -> Plot:
    curves = step_curves(measurement, job)
    traces: list[Json] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": curve.label,
            "x": rounded(curve.values),
            "y": rounded(curve.shares, 4),
            "line": {"shape": "hv", "width": 2.5, "color": f"${curve.name}"},
            "hovertemplate": f"<b>{curve.label}</b><br>%{{y:.1%}} of the steps took"
            "<br>at most %{x:.2f} x alone<extra></extra>",
        }
        for curve in curves
    ]
    most = max(float(curve.values[-1]) for curve in curves)
    ticks = (0.5, 1, 2, 5, 10, 20, 50, 100) if most > 4 else (0.5, 0.7, 1, 1.5, 2, 3)
    layout: Json = {
        "xaxis": {
            "type": "log",
            "title": {"text": "step time relative to alone (log)"},
            "tickvals": ticks,
            "ticktext": [f"{t:g} x" for t in ticks],
        },
        "yaxis": {
            "title": {"text": "share of steps"},
            "tickvals": [0, 0.2, 0.4, 0.6, 0.8, 1],
            "ticktext": ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"],
            "range": [0, 1.02],
        },
        "hovermode": "closest",
        "shapes": [vertical(1, "$faint", "dot")],
    }
    return Plot(title, traces, layout)


def vertical(at: float, colour: str, dash: str) -> Json:
    """Return a line over the whole height."""
    line = {"color": colour, "width": 1, "dash": dash}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def memory_plot(measurement: Measurement) -> Plot:
    memory = memory_of(measurement)
    seconds = rounded(memory.seconds)

    def trace(name: str, x: list[float], y: list[float], colour: str, **more: Any) -> Json:
        line = {"shape": "hv", "width": 2, "color": colour, **more.pop("line", {})}
        base = {"type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": line}
        return {**base, "hovertemplate": "%{y:.0f} MiB", **more}

    area: Json = {"stackgroup": "own", "line": {"width": 0}}
    traces = [
        trace(
            "opportunistic, device",
            seconds,
            rounded(memory.device, 1),
            "$commensal",
            fillcolor="$commensal-area",
            **area,
        ),
        trace(
            "opportunistic, slower tier (live)",
            seconds,
            rounded(memory.slower, 1),
            "$slower",
            fillcolor="$slower-area",
            **area,
        ),
        trace(
            "its limit",
            seconds,
            rounded(memory.limit, 1),
            "$ink",
            customdata=["<br>".join(textwrap.wrap(r, 34)) for r in memory.limit_reasons],
            hovertemplate="%{y:.0f} MiB<br>%{customdata}",
        ),
        trace(
            "moved out while it ran",
            rounded(memory.ahead_seconds),
            rounded(memory.ahead_device, 1),
            "$ink",
            mode="markers",
            marker={"symbol": "triangle-down", "size": 8, "color": "$ink"},
        ),
        trace(
            "guaranteed, device",
            rounded(memory.guaranteed_seconds),
            rounded(memory.guaranteed_device, 1),
            "$default",
        ),
    ]
    colours = ["$default" if mark.job == GUARANTEED else "$ink" for mark in memory.marks]
    marked = list(zip(memory.marks, colours, strict=True))
    layout: Json = {
        "hovermode": "x unified",
        "margin": {"t": 130},
        "xaxis": {
            "title": {"text": "seconds since the first step"},
            "ticksuffix": " s",
            "hoverformat": ".1f",
        },
        "yaxis": {"title": {"text": "MiB"}, "rangemode": "tozero"},
        "shapes": [vertical(mark.seconds, colour, "dash") for mark, colour in marked],
        "annotations": [
            {
                "x": mark.seconds,
                "y": 1.01,
                "yref": "paper",
                "yanchor": "bottom",
                "text": mark.text,
                "textangle": -90,
                "showarrow": False,
                "font": {"color": colour, "size": 11},
            }
            for mark, colour in marked
        ],
    }
    return Plot("Memory by tier", traces, layout)


def gap_plot(gaps: Gaps | None, mode: Mode, title: str, *, on_gpu: bool = False) -> Plot:
    if gaps is None:
        return Plot(f"{title}: too short to sample", [])

    def bars(what: str, name: str, colour: str) -> Json:
        spans = [span for span in gaps.spans if span.what == what]
        return {
            "type": "bar",
            "name": name,
            "x": rounded((s.begin + s.length / 2 for s in spans), 2),
            "y": [0.28] * len(spans),
            "base": ABOVE,
            "width": rounded((s.length for s in spans), 2),
            "customdata": rounded((s.length for s in spans), 1),
            "marker": {"color": colour, "line": {"width": 0}},
            "hovertemplate": f"{name}<br>%{{customdata:.1f}} ms<extra></extra>",
        }

    computes = bars("computes", "guaranteed job computes", "$busy")
    shade = {**computes, "base": 0, "y": [ABOVE] * len(computes["x"]), "hoverinfo": "skip"}
    shade.update(hovertemplate=None, showlegend=False, opacity=0.1)
    used = {
        "type": "scatter",
        "mode": "lines",
        "name": f"opportunistic job's {'speed' if on_gpu else 'use'}",
        "x": rounded(gaps.times, 1),
        "y": rounded(gaps.used),
        "fill": "tozeroy",
        "fillcolor": f"${mode.value}-area",
        "line": {"shape": "hvh", "width": 1, "color": f"${mode.value}"},
        "hovertemplate": (
            "%{y:.0%} of its speed alone" if on_gpu else "it uses %{y:.0%} of the machine"
        )
        + "<br>at %{x:.0f} ms<extra></extra>",
    }
    layout: Json = {
        "barmode": "overlay",
        "bargap": 0,
        "hovermode": "closest",
        "xaxis": {
            "title": {"text": "milliseconds"},
            "range": [0, min(FIRST_VIEW_MS, gaps.length)],
        },
        "yaxis": {
            "range": [0, 1.45],
            "tickvals": [0, 0.5, 1, ABOVE + 0.14],
            "ticktext": ["0 %", "50 %", "100 %", "guaranteed"],
            "fixedrange": True,
        },
    }
    waits = bars("waits", "it waits for its storage", "$waiting")
    return Plot(title, [shade, computes, waits, used], layout)
