# SPDX-License-Identifier: Apache-2.0
"""Draws a profile: how the job uses the device, where its gaps are, what of its memory is cold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from commensal.profiling.analysis import EDGES_SECONDS, PHASES, Analysis, Phase
from commensal.profiling.job_page import Activity
from commensal.profiling.report import PHASE_NAMES, Profile, sentence
from commensal.profiling.touched import Touched

__all__ = ["draw", "overview"]

INK, FAINT, GRID = "#1f2933", "#9aa5b1", "#e4e7eb"
BUSY, BESIDE, SHORT = "#334e68", "#cbd2d9", "#9fb3c8"
COLOURS: dict[Phase, str] = {"data": "#0f8b8d", "pause": "#f0b429", "step": "#d64545"}
EXCERPT_SECONDS = 2.0
EXCERPT_STEPS = 12
MIB = 1 << 20
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


def draw(path: Path, profile: Profile) -> None:
    """Write the picture as a PNG. @raises ValueError if the profile has no figures."""
    with plt.rc_context(STYLE):
        figure = overview(profile)
        figure.savefig(path, dpi=130)
        plt.close(figure)


def overview(profile: Profile) -> Figure:
    analysis, touched = profile.analysis, profile.most_touched
    if analysis is None:
        raise ValueError(f"nothing to draw: {profile.reason}")
    figure: Figure = plt.figure(figsize=(11, 9), layout="constrained")
    rows = figure.add_gridspec(3, 1, height_ratios=[1.3, 1.5, 0.7])
    _plot_excerpt(figure.add_subplot(rows[0]), analysis)
    _plot_histogram(figure.add_subplot(rows[1]), analysis)
    below = rows[2].subgridspec(1, 2, width_ratios=[2, 1])
    _plot_shares(figure.add_subplot(below[0]), analysis)
    _plot_memory(figure.add_subplot(below[1]), touched)
    text = sentence(profile)
    figure.suptitle(
        f"{profile.name}: {text}", x=0.01, ha="left", fontsize=12, fontweight="bold", wrap=True
    )
    return figure


def _plot_excerpt(axes: Axes, analysis: Analysis) -> None:
    window = analysis.window
    begin = window.times_ns[0] + int(analysis.seconds * 0.4 * 1e9)
    length = min(
        analysis.seconds * 0.6,
        max(EXCERPT_SECONDS, EXCERPT_STEPS * analysis.step_median_seconds),
    )
    times: list[float] = []
    cores: list[float] = []
    waiting: list[tuple[float, float]] = []
    ends: list[float] = []
    for i in range(len(window) - 1):
        at = (window.times_ns[i] - begin) / 1e9
        if not 0 <= at <= length:
            continue
        seconds = (window.times_ns[i + 1] - window.times_ns[i]) / 1e9
        times.append(at)
        cores.append((window.cpu_ns[i + 1] - window.cpu_ns[i]) / 1e9 / seconds)
        if window.activity[i] == Activity.WAITING:
            begun = waiting.pop() if waiting and at - sum(waiting[-1]) < 1e-6 else (at, 0.0)
            waiting.append((begun[0], begun[1] + seconds))
        if window.steps[i + 1] > window.steps[i]:
            ends.append(at + seconds)
    axes.fill_between(times, cores, step="post", color=BUSY, linewidth=0, label="cores it uses")
    axes.broken_barh(
        waiting,
        (0, analysis.cores * 1.06),
        color=COLOURS["data"],
        alpha=0.25,
        linewidth=0,
        label="waits for data",
    )
    axes.vlines(ends, 0, analysis.cores * 1.06, color=FAINT, linewidth=0.6, label="a step ends")
    axes.set_xlim(0, length)
    axes.set_ylim(0, analysis.cores * 1.06)
    axes.set_xlabel("seconds of the run")
    axes.set_ylabel("cores")
    axes.set_title("Cores that the job uses, an excerpt")
    axes.legend(loc="upper right", ncols=3, frameon=True, framealpha=0.9, edgecolor="none")


def _plot_histogram(axes: Axes, analysis: Analysis) -> None:
    names = [_bin_name(i) for i in range(len(EDGES_SECONDS))]
    bottom = [0.0] * len(names)
    for phase in PHASES:
        counts, shares = analysis.histogram(phase)
        heights = [100 * share for share in shares]
        axes.bar(
            names,
            heights,
            bottom=bottom,
            color=COLOURS[phase],
            label=f"{PHASE_NAMES[phase]} ({sum(counts)})",
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.set_ylabel("% of the device's time")
    axes.set_xlabel("length of the gap, ms")
    axes.set_title("Gaps: where the job leaves the device idle")
    axes.legend(loc="upper right", title="gaps")


def _bin_name(index: int) -> str:
    edges_ms = [f"{edge * 1e3:g}" for edge in EDGES_SECONDS]
    if index == 0:
        return f"< {edges_ms[1]}"
    if index == len(edges_ms) - 1:
        return f">= {edges_ms[-1]}"
    return f"{edges_ms[index]} to {edges_ms[index + 1]}"


def _plot_shares(axes: Axes, analysis: Analysis) -> None:
    parts = [("busy", analysis.busy_share, BUSY)]
    parts += [(PHASE_NAMES[phase], analysis.gap_share[phase], COLOURS[phase]) for phase in PHASES]
    parts += [
        ("short gaps", analysis.short_gap_share, SHORT),
        ("idle cores beside it", analysis.beside_share, BESIDE),
    ]
    left = 0.0
    for name, share, colour in parts:
        if share >= 0.0005:
            label = f"{name} {share * 100:.1f} %"
            axes.barh([""], [100 * share], left=left, color=colour, label=label)
            left += 100 * share
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of the device's time")
    axes.set_title("The device's time")
    _legend_below(axes)


def _plot_memory(axes: Axes, touched: Touched | None) -> None:
    axes.set_title("Memory")
    if touched is None:
        axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    warm = min(touched.touched_bytes, touched.resident_bytes) / MIB
    cold = touched.resident_bytes / MIB - warm
    axes.barh([""], [warm], color=BUSY, label=f"touched {warm:.0f} MiB")
    axes.barh([""], [cold], left=[warm], color=BESIDE, label=f"cold {cold:.0f} MiB")
    axes.set_xlabel(f"MiB of {touched.what}, in {touched.seconds:.1f} s")
    _legend_below(axes)


def _legend_below(axes: Axes) -> None:
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.02, -0.45),
        ncols=5,
        fontsize=8,
        handlelength=1,
        columnspacing=1,
    )
