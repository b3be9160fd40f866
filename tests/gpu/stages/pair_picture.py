# SPDX-License-Identifier: Apache-2.0
"""A picture of what each way to share costs the guaranteed job, and what it gives the other one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICKS = (-50, -20, -5, 0, 1, 5, 20, 50, 100, 1000)  # percent of slowdown


@dataclass(frozen=True)
class Point:
    """One mode: the harvest, and the slowdown with its interval; all are ratios."""

    harvest: float
    slowdown: float
    low: float
    high: float


def draw(points: Mapping[str, Point], oracle: float, title: str, path: Path) -> str:
    """Draw slowdown against harvest. Returns why there is no picture; empty: there is one."""
    if not points:
        return "nothing was measured"
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError as error:
        return f"no package {error.name}"
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, point in points.items():
        spread = [
            [100.0 * max(0.0, point.slowdown - point.low)],
            [100.0 * max(0.0, point.high - point.slowdown)],
        ]
        at = 100.0 * point.harvest, 100.0 * point.slowdown
        axes.errorbar(*at, yerr=spread, fmt="o", capsize=3, label=name)
    axes.axhline(1.0, color="0.6", linestyle="--", linewidth=1)
    axes.axvline(100.0 * oracle, color="0.6", linestyle=":", linewidth=1, label="oracle")
    axes.set_yscale("symlog", linthresh=5.0)
    axes.minorticks_off()
    low, high = axes.get_ylim()
    axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
    axes.set_ylim(low, high)
    axes.set_xlabel("harvest, % of the opportunistic job alone")
    axes.set_ylabel("slowdown of the guaranteed job, %")
    axes.set_title(title)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return ""
