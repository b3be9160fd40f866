# SPDX-License-Identifier: Apache-2.0
"""The report's still picture: completion times, queue and use of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from commensal.simulation.durations import DAYS, marks, unit_of
from commensal.simulation.plots import allocation_of, has_times

__all__ = ["PALETTE", "draw"]

PALETTE = ("#0f8b8d", "#d64545", "#334e68", "#d99a0b", "#7b5ea7", "#5a9e3f", "#c2649a", "#7b8794")


def draw(path: Path, answer: dict[str, Any]) -> None:
    """Write the picture as PNG."""
    results = answer["results"]
    figure = Figure(figsize=(11, 3.8), dpi=110, layout="constrained")
    if has_times(results):
        _draw_times(figure, results, answer["cluster"]["gpus"])
    else:
        _draw_allocation(figure, results)
    for axes in figure.axes:
        axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path)


def _style(number: int) -> dict[str, Any]:
    return {
        "color": PALETTE[number % len(PALETTE)],
        "linestyle": "-" if number < len(PALETTE) else "--",
        "linewidth": 1.6,
    }


def _draw_allocation(figure: Figure, results: Sequence[dict[str, Any]]) -> None:
    axes = figure.subplots()
    for number, result in enumerate(results):
        given = allocation_of(result["metrics"])
        axes.plot(list(given), list(given.values()), label=result["policy"], **_style(number))
    axes.set(xlabel="GPUs asked for, % of all", ylabel="GPUs given out, % of all")


def _draw_times(figure: Figure, results: Sequence[dict[str, Any]], gpus: int) -> None:
    done, queue, use = figure.subplots(1, 3)
    last = max((t for result in results for t in result["series"]["time"]), default=0.0)
    clock = unit_of(last, DAYS)
    for number, result in enumerate(results):
        style = _style(number)
        series = result["series"]
        times = [max(t, 1.0) for t in series["jct"]]
        shares = [100 * (i + 1) / len(times) for i in range(len(times))]
        moments = [t / clock.seconds for t in series["time"]]
        done.plot(times, shares, label=result["policy"], **style)
        queue.plot(moments, series["waiting"], **style)
        use.plot(moments, [100 * busy / gpus for busy in series["busy_gpus"]], **style)
    done.set(xscale="log", xlabel="completion time", ylim=(0, 102))
    if axis := marks(*done.get_xlim()):
        done.set_xticks(list(axis), list(axis.values()))
    done.xaxis.set_minor_locator(NullLocator())
    done.set_title("jobs done within a time, %")
    queue.set(xlabel=clock.plural, ylim=(0, None))
    queue.set_title("jobs that wait")
    use.set(xlabel=clock.plural, ylim=(0, None))
    use.set_title("GPUs in use, %")
