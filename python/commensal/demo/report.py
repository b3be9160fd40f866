# SPDX-License-Identifier: Apache-2.0
"""Writes the demo's report: one page that needs nothing else, and one picture for other pages."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from commensal._report.page import encoded, table_rows
from commensal._report.page import render as render_page
from commensal._report.plot import Plot
from commensal.demo import picture
from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Figures, Measurement
from commensal.demo.plan import MiB
from commensal.demo.plots import plots_of

__all__ = ["table", "write"]

HEADINGS = ("", "alone", "default sharing", "commensal")
GAPS = "how much of the machine the opportunistic job's threads used, as the kernel counts it"
GAPS_ON_GPU = "the opportunistic job's speed by its own steps, of that alone"
PAGE = Path(__file__).with_name("page") / "page.html"


def write(out: Path, measurement: Measurement, figures: Figures) -> Path:
    """Write `report.html` and `sharing.png` into a folder; return the page's path."""
    still = out / "sharing.png"
    picture.draw(still, measurement, figures)
    page = out / "report.html"
    page.write_text(render(figures, plots_of(measurement), still.read_bytes()), encoding="utf-8")
    return page


def table(figures: Figures) -> Table:
    """Return the figures for a terminal."""
    drawn = Table(box=None, header_style="bold")
    for heading in HEADINGS:
        drawn.add_column(heading, justify="right" if heading else "left")
    for row in rows(figures):
        drawn.add_row(*row)
    return drawn


def rows(figures: Figures) -> list[tuple[str, ...]]:
    """Return the table: what, alone, default sharing, commensal."""

    def range_of(values: Sequence[float], digits: int) -> str:
        if len(values) < 2:
            return ""
        return f" ({min(values) * 100:.{digits}f} to {max(values) * 100:.{digits}f})"

    sides = (figures.default, figures.commensal)
    step = figures.alone_step_seconds
    slow = [f"{s.slowdown * 100:+.1f} %{range_of(s.slowdown_rounds, 1)}" for s in sides]
    waits = [f"{s.period_slowdown * 100:+.1f} %" for s in sides]
    tail = [f"{s.p99_ratio:.2f} x median" for s in sides]
    kept = [f"{s.harvest * 100:.0f} %{range_of(s.harvest_rounds, 0)}" for s in sides]
    moved = f"{figures.bytes_moved / MiB:.0f} MiB, {figures.shrinks} live shrinks"
    pause = f"{figures.longest_pause_seconds * 1e3:.1f} ms"
    same = "yes" if figures.bit_identical else "NO"
    return [
        ("guaranteed: step time (rounds)", f"{step[GUARANTEED] * 1e3:.1f} ms", *slow),
        ("guaranteed: with its waits", "", *waits),
        ("guaranteed: 99th percentile", "", *tail),
        ("opportunistic: harvest (rounds)", f"{step[OPPORTUNISTIC] * 1e3:.1f} ms a step", *kept),
        ("opportunistic: live memory moved", "", "", moved),
        ("opportunistic: moved out while it ran", "", "", f"{figures.bytes_ahead / MiB:.0f} MiB"),
        ("opportunistic: longest pause for a move", "", "", pause),
        ("results as alone, to the last bit", "", "", same),
    ]


def tiles(figures: Figures) -> list[tuple[str, str]]:
    """Return what a glance should catch: a figure and what it is."""
    default, ours = figures.default, figures.commensal
    return [
        (
            f"{ours.slowdown * 100:+.1f} %",
            f"guaranteed job's step time (default sharing: {default.slowdown * 100:+.0f} %)",
        ),
        (
            f"{ours.harvest * 100:.0f} %",
            "of its speed alone for the opportunistic job"
            f" (default sharing: {default.harvest * 100:.0f} %)",
        ),
        (
            f"{figures.bytes_moved / MiB:.0f} MiB",
            f"of its live memory moved, in {figures.shrinks} shrinks and {figures.growths} growths",
        ),
        (
            "identical" if figures.bit_identical else "DIFFERENT",
            "losses and parameters, to the last bit",
        ),
    ]


def facts(figures: Figures) -> list[tuple[str, str]]:
    """Return where and how the figures were taken."""
    named = dict(figures.machine)
    for of in ("gpu_", ""):
        if f"{of}memory_bytes" in named:
            size = named.pop(f"{of}memory_bytes") / (1 << 30)
            named[f"{of}memory".replace("_", " ")] = f"{size:.1f} GiB"
    return [
        *((key, str(value)) for key, value in named.items()),
        *gpu_time(figures),
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


def gpu_time(figures: Figures) -> list[tuple[str, str]]:
    """Return who used a GPU's time, where that is known."""
    if (use := figures.device_use) is None:
        return []
    told = f"guaranteed {use.guaranteed_share:.0%}, opportunistic {use.opportunistic_share:.0%}"
    if use.oracle_share is not None:
        told += f" of {use.oracle_share:.0%} to be had"
    return [(f"GPU's time, {use.seconds:.0f} s of both under commensal", told.replace("%", " %"))]


def render(figures: Figures, plots: Mapping[str, Sequence[Plot]], still: bytes) -> str:
    """Return the whole page."""
    parts = {
        "headline": html.escape(figures.headline()),
        "notes": "".join(f'<p class="note">{html.escape(note)}</p>' for note in figures.notes),
        "tiles": "".join(
            f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(what)}</span></div>'
            for value, what in tiles(figures)
        ).replace(" %", "&nbsp;%"),
        "picture": encoded(still),
        "head": "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS),
        "body": table_rows(rows(figures), HEADINGS),
        "facts": table_rows(facts(figures)),
        "gaps": GAPS_ON_GPU if "gpu" in figures.machine else GAPS,
    }
    return render_page(PAGE, plots, parts)
