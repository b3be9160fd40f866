# SPDX-License-Identifier: Apache-2.0
"""The picture of `commensal memory JOB --png FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from commensal._memory_map import TIERS, ChunkRun, MemoryMap
from commensal._memory_summary import KIND_NAMES
from commensal._quantities import format_bytes

__all__ = ["draw"]

_COLORS = {"device": "#1f6f8b", "host": "#e09f3e", "parked": "#7b5ea7", "dropped": "#9a9a9a"}
_NAMES = {
    "device": "on the device",
    "host": "slower tier",
    "parked": "parked (saved)",
    "dropped": "dropped",
}
_GAP: dict[str, Any] = {"color": "black", "lw": 0.8}
_BAND = 0.62  # height of a kind's strip
_MIB = 1 << 20
_GIB = 1 << 30


def draw(where: MemoryMap, file: Path) -> None:
    """Draw a strip for each lifetime and tag, chunks in the order of their addresses.

    @raises OSError, ValueError if the file cannot be written.
    """
    kinds = where.runs_by_kind()
    longest = max((sum(run.size_bytes for run in runs) for runs in kinds.values()), default=_MIB)
    unit, name = (_GIB, "GiB") if longest >= 4 * _GIB else (_MIB, "MiB")
    figure, axes = plt.subplots(figsize=(11, 1.9 + 0.85 * max(1, len(kinds))))
    try:
        for row, runs in enumerate(kinds.values()):
            _strip(axes, row, runs, unit)
        _label(axes, kinds, longest / unit, unit)
        axes.set_xlabel(f"memory in the order of addresses, {name} (unused addresses left out)")
        total = sum(run.size_bytes for _, run in where.runs() if run.tier == "device")
        figure.suptitle(
            f"memory of {where.job}, process {where.pid}: {format_bytes(total)} on the device",
            x=0.01,
            ha="left",
            fontsize=12,
        )
        figure.tight_layout()
        figure.savefig(file, dpi=130)
    finally:
        plt.close(figure)


def _strip(axes: Axes, row: int, runs: list[ChunkRun], unit: int) -> None:
    begin = 0.0
    previous: ChunkRun | None = None
    for run in runs:
        width = run.size_bytes / unit
        color, bottom = _COLORS[run.tier], row - _BAND / 2
        axes.barh(bottom, width, _BAND, begin, align="edge", color=color, alpha=0.28, lw=0)
        used = _BAND * run.live_bytes / run.size_bytes
        hatch = "////" if run.tier == "dropped" else None
        axes.barh(
            bottom + _BAND - used,  # rows count downward: from the foot of the strip
            width,
            used,
            begin,
            align="edge",
            color=color,
            lw=0,
            hatch=hatch,
            edgecolor="white",
        )
        if previous is not None and previous.end != run.address:
            axes.plot([begin, begin], [row - 0.38, row + 0.38], **_GAP)
        begin, previous = begin + width, run


def _label(axes: Axes, kinds: dict[str, list[ChunkRun]], longest: float, unit: int) -> None:
    names = []
    for row, (kind, runs) in enumerate(kinds.items()):
        names.append(KIND_NAMES.get(kind, kind))
        size = sum(run.size_bytes for run in runs)
        live = sum(run.live_bytes for run in runs)
        axes.text(
            size / unit + longest * 0.01,
            row,
            f"{format_bytes(size)}\n{format_bytes(live)} live",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.45, -0.55)
    axes.set_xlim(0, longest * 1.12)
    if not names:
        axes.text(0.5, 0.5, "nothing was allocated yet", transform=axes.transAxes, ha="center")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    tiers = {run.tier for runs in kinds.values() for run in runs}
    legend: list[Patch | Line2D] = [
        Patch(
            facecolor=_COLORS[tier],
            edgecolor="white",
            hatch="//////" if tier == "dropped" else None,
            label=_NAMES[tier],
        )
        for tier in TIERS
        if tier in tiers
    ]
    legend.append(Patch(color="#555555", label="used by tensors"))
    legend.append(Patch(facecolor="#555555", alpha=0.28, label="free in a chunk"))
    legend.append(Line2D([], [], **_GAP, label="gap in addresses"))
    axes.legend(
        handles=legend,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(legend),
        frameon=False,
        fontsize=8,
        handlelength=1.2,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
