# SPDX-License-Identifier: Apache-2.0
"""An interactive plot, as plotly.js takes it: a list of traces and a layout.

A colour is the name of one of the page's style variables after a dollar sign: the page's script
puts in what the scheme, light or dark, gives it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Json", "Plot", "rounded"]

Json = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """One plot; `traces` is empty if there was nothing to draw."""

    title: str
    traces: list[Json]
    layout: Json = field(default_factory=dict)


def rounded(values: Iterable[float], digits: int = 3) -> list[float]:
    """Return numbers that a page need not have longer."""
    return [round(float(value), digits) for value in values]
