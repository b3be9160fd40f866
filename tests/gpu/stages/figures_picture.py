# SPDX-License-Identifier: Apache-2.0
"""Draws how far each figure of a stage is from its target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw", "margins"]


def margins(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[float, bool]]:
    """Return for each figure with a target how many times better than it the figure is, and
    whether it is met. A figure that is no time or ratio above zero has no margin.
    """
    found = {}
    for name, told in figures.items():
        target = told.get("target")
        if not target:
            continue
        value = told[target["of"]]
        bound = target.get("most", target.get("least"))
        if value <= 0 or bound <= 0:
            continue
        better = bound / value if "most" in target else value / bound
        found[name] = (better, bool(target["met"]))
    return found


def draw(told: Mapping[str, Any], path: Path) -> str:
    """Write a picture of a stage's JSON; return why there is none, or an empty text."""
    found = margins(told["figures"])
    if not found:
        return "no figure has a value and a target"
    try:
        import matplotlib
    except ModuleNotFoundError:
        return "no package matplotlib"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(found)[::-1]
    picture, axes = pyplot.subplots(figsize=(9, 1.5 + 0.3 * len(names)), layout="constrained")
    colours = ["tab:green" if found[name][1] else "tab:red" for name in names]
    axes.barh(names, [found[name][0] for name in names], color=colours)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("times better than the target (1: just met)")
    axes.set_title(f"{told['stage']} on {told['machine'].get('card', 'an unknown card')}")
    picture.savefig(path, dpi=120)
    pyplot.close(picture)
    return ""
