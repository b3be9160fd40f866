# SPDX-License-Identifier: Apache-2.0
"""Draws the one picture that says it all, for a page such as the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from commensal.demo.figures import GUARANTEED, Figures, Measurement, percent
from commensal.demo.runs import Mode
from commensal.demo.series import Gaps, gaps_of, memory_of, step_curves

__all__ = ["draw"]

INK, FAINT, GRID = "#1f2933", "#9aa5b1", "#e4e7eb"
COLOURS = {"alone": "#7b8794", "default": "#d64545", "commensal": "#0f8b8d"}
SLOWER, BUSY, WAITING = "#f0b429", "#334e68", "#d9e2ec"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}
EXCERPT_SECONDS = 1.2


def draw(path: Path, measurement: Measurement, figures: Figures) -> None:
    """Write the picture as a PNG."""
    with plt.rc_context(STYLE):
        figure = overview(measurement, figures)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def overview(measurement: Measurement, figures: Figures) -> Figure:
    figure: Figure = plt.figure(figsize=(12, 7.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.25])
    plot_step_times(figure.add_subplot(grid[0, 0]), measurement)
    below = grid[0, 1].subgridspec(2, 1)
    for row, (mode, title) in enumerate(
        [(Mode.DEFAULT, "Default sharing"), (Mode.COMMENSAL, "commensal: it runs in the gaps")]
    ):
        axes = figure.add_subplot(below[row])
        axes.set_title(title)
        gaps = gaps_of(measurement, mode, EXCERPT_SECONDS)
        plot_gaps(
            axes, gaps, COLOURS[mode.value], "speed" if measurement.plan.on_gpu else "CPU use"
        )
    axes.set_xlabel("milliseconds")
    plot_memory(figure.add_subplot(grid[1, :]), measurement)
    figure.suptitle(
        f"Guaranteed job's steps: {percent(figures.commensal.slowdown)} than alone under"
        f" commensal, {percent(figures.default.slowdown)} by default sharing.\n"
        f"Opportunistic job: {figures.commensal.harvest * 100:.0f} % of its speed alone; results"
        f" {'bit-identical' if figures.bit_identical else 'DIFFER'}.",
        x=0.01,
        ha="left",
        fontsize=13,
        fontweight="bold",
    )
    return figure


def plot_step_times(axes: Axes, measurement: Measurement) -> None:
    most = 2.0
    for curve in step_curves(measurement, GUARANTEED):
        colour = COLOURS[curve.name]
        axes.step(
            curve.values, curve.shares, where="post", color=colour, linewidth=2.2, label=curve.label
        )
        axes.plot([np.median(curve.values)], [0.5], "o", color=colour, markersize=6)
        most = max(most, float(curve.values[-1]))
    axes.set_xscale("log")
    axes.set_xlim(0.6, most * 1.1)
    close = (0.7, 1, 1.5, 2, 3, 5) if most < 8 else (1, 2, 5, 10, 20, 50, 100)
    axes.set_xticks([t for t in close if t <= most * 1.1])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g} x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * 100:.0f} %"))
    axes.axvline(1.0, color=FAINT, linewidth=0.8, linestyle=":")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_ylim(0, 1.02)
    axes.set_title("Step times of the guaranteed job")
    axes.set_xlabel("step time relative to alone (log)")
    axes.set_ylabel("share of steps")
    axes.legend(loc="lower right")


def plot_gaps(axes: Axes, gaps: Gaps | None, colour: str, what: str) -> None:
    if gaps is None:
        axes.text(0.5, 0.5, "too short to sample", ha="center", transform=axes.transAxes)
        return
    for span in gaps.spans:
        computes = span.what == "computes"
        stretch = (span.begin, span.length)
        axes.broken_barh([stretch], (1.12, 0.28), color=BUSY if computes else WAITING)
        if computes:
            axes.broken_barh([stretch], (0, 1.12), color=BUSY, alpha=0.07, linewidth=0)
    axes.fill_between(gaps.times, 0, gaps.used, step="mid", color=colour, linewidth=0)
    axes.set_xlim(0, gaps.length)
    axes.set_ylim(0, 1.45)
    axes.set_yticks([0, 0.5, 1.0, 1.26], ["0 %", "50 %", "100 %", "guaranteed"])
    axes.set_ylabel(f"opportunistic\n{what}", y=0.35)
    axes.tick_params(axis="y", length=0)


def plot_memory(axes: Axes, measurement: Measurement) -> None:
    memory = memory_of(measurement)
    total = memory.device + memory.slower
    for low, high, colour, label in (
        (0, memory.device, COLOURS["commensal"], "opportunistic, device"),
        (memory.device, total, SLOWER, "opportunistic, slower tier (live)"),
    ):
        axes.fill_between(
            memory.seconds, low, high, step="post", color=colour, alpha=0.85, lw=0, label=label
        )
    axes.step(memory.seconds, memory.limit, where="post", color=INK, lw=1.6, label="its limit")
    axes.step(
        memory.guaranteed_seconds,
        memory.guaranteed_device,
        where="post",
        color=COLOURS["default"],
        linewidth=2,
        label="guaranteed, device",
    )
    axes.plot(
        memory.ahead_seconds,
        memory.ahead_device,
        "v",
        color=INK,
        markersize=5,
        label="moved out while it ran",
    )
    top = max(float(total.max(initial=1)), float(memory.limit.max(initial=1))) * 1.32
    axes.set_ylim(0, top)
    axes.set_xlim(
        min(0.0, float(memory.seconds.min(initial=0))), float(memory.seconds.max(initial=1))
    )
    # Labels alternate in height so they stay apart.
    for index, mark in enumerate(memory.marks):
        colour = COLOURS["default"] if mark.job == GUARANTEED else INK
        axes.axvline(mark.seconds, color=colour, linewidth=0.9, linestyle="--", alpha=0.7)
        height = top * (0.985 - 0.055 * (index % 3))
        axes.text(mark.seconds, height, f" {mark.text}", color=colour, fontsize=8.5, va="top")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB")
    gpu = measurement.machine.get("gpu")
    axes.set_title(f"Memory of the {gpu} by tier" if gpu else "Memory by tier")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=5, columnspacing=1.2)
