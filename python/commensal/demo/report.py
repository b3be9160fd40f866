# SPDX-License-Identifier: Apache-2.0
"""Draws the demo's report: one self-contained page, and one picture for other pages."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter
from rich.table import Table

from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    Figures,
    Measurement,
    overlap,
    percent,
    settled,
)
from commensal.demo.runs import CpuSample, Mode, Step, WindowRecord

__all__ = ["table", "write"]

MiB = 1 << 20
INK, FAINT = "#1f2933", "#9aa5b1"
ALONE, DEFAULT, COMMENSAL = "#7b8794", "#d64545", "#0f8b8d"
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
    "svg.fonttype": "path",
    "svg.hashsalt": "commensal",
}


def write(out: Path, measurement: Measurement, figures: Figures) -> Path:
    """Write `report.html` and `sharing.png` into a folder; return the page's path."""
    with plt.rc_context(STYLE):
        parts = [
            ("Step times", draw_step_times(measurement), STEP_TEXT),
            ("Memory", draw_memory(measurement), MEMORY_TEXT),
            ("Gate and gaps", draw_gaps(measurement), GAP_TEXT),
        ]
        drawn = [(title, as_svg(figure), text) for title, figure, text in parts]
        picture = draw_overview(measurement, figures)
        picture.savefig(out / "sharing.png", dpi=130)
        for figure in (picture, *(part[1] for part in parts)):
            plt.close(figure)
    page = out / "report.html"
    page.write_text(render(drawn, figures), encoding="utf-8")
    return page


STEP_TEXT = (
    "Each curve says which share of a job's steps took at most so long, relative to the job's"
    " median step alone at the same batch size. The guaranteed job's steps are counted without"
    " the time that its storage is stated to take, by the scripts' own clocks."
)
MEMORY_TEXT = (
    "What the coordinator granted and what the jobs held, in the last round. When the guaranteed"
    " job's batch doubles, the opportunistic one shrinks; its live memory moves to the slower tier"
    " under the same addresses, and later comes back. The demo sets limits of its own besides."
)
GAP_TEXT = (
    "A stretch of the shared windows. Above: the guaranteed job computes, or waits for its"
    " storage. Below: how much of the machine the opportunistic job's threads used, as the kernel"
    " counts it. Under commensal it runs in the gaps."
)


# --- pictures ----------------------------------------------------------------------------------


def relative_times(measurement: Measurement, mode: Mode, job: str) -> list[float]:
    """Return the step times of a job in a mode, relative to its median alone."""
    alone_mode = Mode.GUARANTEED_ALONE if job == GUARANTEED else Mode.OPPORTUNISTIC_ALONE
    values: list[float] = []
    for window in measurement.of(mode):
        alone = next(w.jobs[job] for w in measurement.of(alone_mode) if w.round == window.round)
        typical = typical_seconds(settled(alone))
        steps: Sequence[Step] = settled(window.jobs[job])
        if len(window.jobs) > 1:
            begin, end = overlap(window)
            steps = [s for s in steps if s.begin >= begin and s.end <= end]
        values.extend(s.busy_seconds / typical[s.batch] for s in steps if s.batch in typical)
    return values


def typical_seconds(steps: Sequence[Step]) -> dict[int, float]:
    return {
        batch: median(s.busy_seconds for s in steps if s.batch == batch)
        for batch in {s.batch for s in steps}
    }


def plot_step_times(axes: Axes, measurement: Measurement, job: str, title: str) -> None:
    alone = Mode.GUARANTEED_ALONE if job == GUARANTEED else Mode.OPPORTUNISTIC_ALONE
    curves = [
        (alone, ALONE, "alone"),
        (Mode.DEFAULT, DEFAULT, "default sharing"),
        (Mode.COMMENSAL, COMMENSAL, "commensal"),
    ]
    most = 2.0
    for mode, colour, label in curves:
        values = np.sort(relative_times(measurement, mode, job))
        if not len(values):
            continue
        shares = np.arange(1, len(values) + 1) / len(values)
        axes.step(values, shares, where="post", color=colour, linewidth=2.2, label=label)
        axes.plot([np.median(values)], [0.5], "o", color=colour, markersize=6)
        most = max(most, float(values[-1]))
    axes.set_xscale("log")
    axes.set_xlim(0.6, most * 1.1)
    close = (0.7, 1, 1.5, 2, 3, 5) if most < 8 else (1, 2, 5, 10, 20, 50, 100)
    ticks = [t for t in close if t <= most * 1.1]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g} x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y * 100:.0f} %"))
    axes.axvline(1.0, color=FAINT, linewidth=0.8, linestyle=":")
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_ylim(0, 1.02)
    axes.set_title(title)
    axes.set_xlabel("step time relative to alone (log)")
    axes.set_ylabel("share of steps")
    axes.legend(loc="lower right")


def draw_step_times(measurement: Measurement) -> Figure:
    figure: Figure
    figure, axes = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    plot_step_times(axes[0], measurement, GUARANTEED, "Guaranteed job")
    plot_step_times(axes[1], measurement, OPPORTUNISTIC, "Opportunistic job")
    return figure


def plot_memory(axes: Axes, measurement: Measurement) -> None:
    window = measurement.of(Mode.COMMENSAL)[-1]
    origin = min(job.steps[0].begin for job in window.jobs.values())
    samples = [s for s in window.memory if s.job == OPPORTUNISTIC]
    times = np.array([s.time - origin for s in samples])
    device = np.array([s.device_bytes for s in samples]) / MiB
    slower = np.array([s.host_bytes for s in samples]) / MiB
    # A limit above the budget limits nothing that could be drawn.
    limit = np.array([min(s.limit_bytes or np.inf, measurement.plan.budget_bytes) for s in samples])
    axes.fill_between(
        times,
        0,
        device,
        step="post",
        color=COMMENSAL,
        alpha=0.85,
        linewidth=0,
        label="opportunistic, device",
    )
    axes.fill_between(
        times,
        device,
        device + slower,
        step="post",
        color=SLOWER,
        alpha=0.85,
        linewidth=0,
        label="opportunistic, slower tier (live)",
    )
    axes.step(times, limit / MiB, where="post", color=INK, linewidth=1.6, label="its limit")
    neighbour = [s for s in window.memory if s.job == GUARANTEED]
    axes.step(
        [s.time - origin for s in neighbour],
        [s.device_bytes / MiB for s in neighbour],
        where="post",
        color=DEFAULT,
        linewidth=2,
        label="guaranteed, device",
    )
    top = max(float((device + slower).max(initial=1)), float(limit.max(initial=1)) / MiB) * 1.32
    axes.set_ylim(0, top)
    axes.set_xlim(min(0.0, float(times.min(initial=0))), float(times.max(initial=1)))
    mark_events(axes, window, origin, top)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB")
    axes.set_title("Memory by tier")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, columnspacing=1.2)


def mark_events(axes: Axes, window: WindowRecord, origin: float, top: float) -> None:
    """Name what happened, above the curves; labels alternate in height so they stay apart."""
    doubled = [e for e in window.jobs[GUARANTEED].events if e.what == "double"]
    marks = [(e.time, "batch doubles", DEFAULT) for e in doubled]
    marks += [(window.jobs[GUARANTEED].steps[-1].end, "guaranteed ends", DEFAULT)]
    marks += [(e.time, f"set {e.value / MiB:.0f}", INK) for e in window.events if e.what == "set"]
    for index, (time, text, colour) in enumerate(sorted(marks)):
        axes.axvline(time - origin, color=colour, linewidth=0.9, linestyle="--", alpha=0.7)
        axes.text(
            time - origin,
            top * (0.985 - 0.055 * (index % 3)),
            f" {text}",
            color=colour,
            fontsize=8.5,
            va="top",
            ha="left",
        )


def draw_memory(measurement: Measurement) -> Figure:
    figure: Figure
    figure, axes = plt.subplots(figsize=(11, 4.4), layout="constrained")
    plot_memory(axes, measurement)
    return figure


def cpu_rate(samples: Sequence[CpuSample], bin_seconds: float) -> tuple[Any, Any]:
    """Return the middle of each bin and the cores used in it."""
    times = np.array([s.time for s in samples])
    used = np.array([s.cpu_seconds for s in samples])
    edges = np.arange(times[0], times[-1], bin_seconds)
    at_edges = np.interp(edges, times, used)
    return (edges[:-1] + edges[1:]) / 2, np.diff(at_edges) / bin_seconds


def excerpt_of(window: WindowRecord, seconds: float) -> tuple[float, float] | None:
    """Return a stretch of the sampled time in which both jobs were stepping."""
    if not window.cpu:
        return None
    begin, end = overlap(window)
    begin, end = max(begin, window.cpu[0].time), min(end, window.cpu[-1].time)
    if end - begin < 0.2:
        return None
    middle, half = (begin + end) / 2, min(seconds, end - begin) / 2
    return middle - half, middle + half


def plot_gaps(axes: Axes, window: WindowRecord, colour: str, title: str, cores: int) -> None:
    axes.set_title(title)
    stretch = excerpt_of(window, 1.2)
    if stretch is None:
        axes.text(0.5, 0.5, "too short to sample", ha="center", transform=axes.transAxes)
        return
    begin, end = stretch
    for step in window.jobs[GUARANTEED].steps:
        if step.end < begin or step.begin > end:
            continue
        computing = step.begin + step.wait_seconds
        axes.broken_barh(
            [((step.begin - begin) * 1e3, step.wait_seconds * 1e3)], (1.12, 0.28), color=WAITING
        )
        axes.broken_barh(
            [((computing - begin) * 1e3, (step.end - computing) * 1e3)], (1.12, 0.28), color=BUSY
        )
        axes.axvspan(
            (computing - begin) * 1e3, (step.end - begin) * 1e3, color=BUSY, alpha=0.07, linewidth=0
        )
    for event in window.jobs[GUARANTEED].events:  # evaluations and checkpoints are work, too
        if event.value and event.time > begin and event.time - event.value < end:
            span = ((event.time - event.value - begin) * 1e3, event.value * 1e3)
            axes.broken_barh([span], (1.12, 0.28), color=BUSY)
            axes.axvspan(span[0], span[0] + span[1], color=BUSY, alpha=0.07, linewidth=0)
    samples = [s for s in window.cpu if s.job == OPPORTUNISTIC]
    times, used = cpu_rate(samples, 0.008)
    axes.fill_between(
        (times - begin) * 1e3, 0, np.clip(used / cores, 0, 1), step="mid", color=colour, linewidth=0
    )
    axes.set_xlim(0, (end - begin) * 1e3)
    axes.set_ylim(0, 1.45)
    axes.set_yticks([0, 0.5, 1.0, 1.26], ["0 %", "50 %", "100 %", "guaranteed"])
    axes.set_ylabel("opportunistic\nCPU use", y=0.35)
    axes.tick_params(axis="y", length=0)


def draw_gaps(measurement: Measurement) -> Figure:
    figure: Figure
    figure, axes = plt.subplots(2, 1, figsize=(11, 4.8), layout="constrained", sharex=True)
    cores = int(measurement.machine.get("cores", 1))
    default, ours = measurement.of(Mode.DEFAULT)[-1], measurement.of(Mode.COMMENSAL)[-1]
    plot_gaps(axes[0], default, DEFAULT, "Default sharing", cores)
    plot_gaps(axes[1], ours, COMMENSAL, "Under commensal", cores)
    axes[1].set_xlabel("milliseconds")
    handles = [
        Rectangle((0, 0), 1, 1, color=BUSY, label="guaranteed job computes"),
        Rectangle((0, 0), 1, 1, color=WAITING, label="it waits for its storage"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def draw_overview(measurement: Measurement, figures: Figures) -> Figure:
    """Draw the one picture that says it all, for a page such as the README."""
    figure: Figure = plt.figure(figsize=(12, 7.6), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1, 1.25])
    plot_step_times(
        figure.add_subplot(grid[0, 0]), measurement, GUARANTEED, "Step times of the guaranteed job"
    )
    cores = int(measurement.machine.get("cores", 1))
    gaps = grid[0, 1].subgridspec(2, 1)
    for row, (mode, colour, title) in enumerate(
        [
            (Mode.DEFAULT, DEFAULT, "Default sharing"),
            (Mode.COMMENSAL, COMMENSAL, "commensal: it runs in the gaps"),
        ]
    ):
        axes = figure.add_subplot(gaps[row])
        plot_gaps(axes, measurement.of(mode)[-1], colour, title, cores)
        if row == 1:
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


def as_svg(figure: Figure) -> str:
    """Return a figure as an SVG element, without the XML prologue."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()
    return drawn[drawn.index("<svg") :]


# --- words -------------------------------------------------------------------------------------


def rows(figures: Figures) -> list[tuple[str, str, str, str]]:
    """Return the table: what, alone, default sharing, commensal."""

    def range_of(values: Sequence[float], digits: int) -> str:
        if len(values) < 2:
            return ""
        return f" ({min(values) * 100:.{digits}f} to {max(values) * 100:.{digits}f})"

    def slow(value: float, rounds: Sequence[float]) -> str:
        return f"{value * 100:+.1f} %{range_of(rounds, 1)}"

    def kept(value: float, rounds: Sequence[float]) -> str:
        return f"{value * 100:.0f} %{range_of(rounds, 0)}"

    default, ours = figures.default, figures.commensal
    step = figures.alone_step_seconds
    return [
        (
            "guaranteed: step time (rounds)",
            f"{step[GUARANTEED] * 1e3:.1f} ms",
            slow(default.slowdown, default.slowdown_rounds),
            slow(ours.slowdown, ours.slowdown_rounds),
        ),
        (
            "guaranteed: with its waits",
            "",
            f"{default.period_slowdown * 100:+.1f} %",
            f"{ours.period_slowdown * 100:+.1f} %",
        ),
        (
            "guaranteed: 99th percentile",
            "",
            f"{default.p99_ratio:.2f} x median",
            f"{ours.p99_ratio:.2f} x median",
        ),
        (
            "opportunistic: harvest (rounds)",
            f"{step[OPPORTUNISTIC] * 1e3:.1f} ms a step",
            kept(default.harvest, default.harvest_rounds),
            kept(ours.harvest, ours.harvest_rounds),
        ),
        (
            "opportunistic: live memory moved",
            "",
            "",
            f"{figures.bytes_moved / MiB:.0f} MiB, {figures.shrinks} live shrinks",
        ),
        (
            "opportunistic: longest pause for a move",
            "",
            "",
            f"{figures.longest_pause_seconds * 1e3:.1f} ms",
        ),
        ("results as alone, to the last bit", "", "", "yes" if figures.bit_identical else "NO"),
    ]


HEADINGS = ("", "alone", "default sharing", "commensal")


def table(figures: Figures) -> Table:
    """Return the figures for a terminal."""
    drawn = Table(box=None, header_style="bold")
    for heading in HEADINGS:
        drawn.add_column(heading, justify="right" if heading else "left")
    for row in rows(figures):
        drawn.add_row(*row)
    return drawn


def render(drawn: Sequence[tuple[str, str, str]], figures: Figures) -> str:
    """Return the whole page."""
    head = "".join(f"<th>{html.escape(h)}</th>" for h in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(figures)
    )
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in figures.notes)
    sections = "".join(
        f"<section><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>{svg}</section>"
        for title, svg, text in drawn
    )
    facts = "".join(
        f"<tr><td>{html.escape(str(key))}</td><td>{html.escape(str(value))}</td></tr>"
        for key, value in [
            *figures.machine.items(),
            ("guaranteed job busy, alone", f"{figures.busy_share * 100:.0f} % of its time"),
            ("steps compared", ", ".join(f"{k} {v}" for k, v in figures.compared_steps.items())),
            *(
                (
                    f"step tracker, {t.job}",
                    f"{t.tracked_steps} steps, median {t.tracked_median_seconds * 1e3:.1f} ms"
                    f" (script: {t.steps}, {t.median_seconds * 1e3:.1f} ms)",
                )
                for t in figures.trackers
            ),
        ]
    )
    icon = base64.b64encode(
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 2">'
        b'<circle cx="1" cy="1" r="1" fill="#0f8b8d"/></svg>'
    ).decode()
    return PAGE.format(
        icon=icon,
        headline=html.escape(figures.headline()),
        notes=notes,
        head=head,
        body=body,
        sections=sections,
        facts=facts,
    )


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>commensal: two jobs, one machine</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:image/svg+xml;base64,{icon}">
<style>
body {{ font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2933;
  background: #f5f7fa; margin: 0; }}
main {{ max-width: 1080px; margin: 0 auto; padding: 36px 24px 60px; }}
h1 {{ font-size: 15px; letter-spacing: .08em; text-transform: uppercase; color: #0f8b8d;
  margin: 0 0 8px; }}
.headline {{ font-size: 24px; line-height: 1.35; font-weight: 600; margin: 0 0 24px; }}
h2 {{ font-size: 19px; margin: 0 0 4px; }}
section {{ background: #fff; border: 1px solid #e4e7eb; border-radius: 10px; padding: 20px 24px;
  margin: 20px 0; }}
section p {{ color: #52606d; margin: 0 0 14px; max-width: 78ch; font-size: 15px; }}
svg {{ width: 100%; height: auto; display: block; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: right; padding: 7px 10px; border-bottom: 1px solid #e4e7eb; }}
th:first-child, td:first-child {{ text-align: left; }}
tr:last-child td {{ border-bottom: 0; }}
.facts td {{ font-size: 14px; color: #52606d; padding: 4px 10px; }}
.note {{ background: #fff3c4; border-left: 4px solid #f0b429; padding: 10px 14px;
  margin: 0 0 10px; }}
</style></head><body><main>
<h1>commensal: two training jobs, one machine</h1>
<p class="headline">{headline}</p>{notes}
<section><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>
{sections}
<section class="facts"><h2>How it was measured</h2>
<p>Each job alone, both with the machine's default sharing, both under commensal, in turn and in
rounds. A window in which other processes disturbed the machine was repeated. Figures are medians;
in brackets the range over the rounds.</p>
<table>{facts}</table></section>
</main></body></html>
"""
