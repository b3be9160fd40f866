# SPDX-License-Identifier: Apache-2.0
"""Durations as people read them: a unit for a whole table, words for one, marks for an axis."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

__all__ = ["DAYS", "HOURS", "MINUTES", "SECONDS", "Unit", "marks", "unit_of", "words"]


@dataclass(frozen=True)
class Unit:
    """A unit of time."""

    name: str
    seconds: float
    plural: str


SECONDS = Unit("s", 1.0, "seconds")
MINUTES = Unit("min", 60.0, "minutes")
HOURS = Unit("h", 3600.0, "hours")
DAYS = Unit("d", 86400.0, "days")

_COARSE = (1, 10, 60, 600, 3600, 36000, *(86400 * n for n in (4, 40, 400)))
_FINE = (
    *(n * unit for unit in (1, 60) for n in (1, 2, 5, 10, 20, 30)),
    *(n * 3600 for n in (1, 2, 5, 10)),
    *(n * 86400 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
)


def unit_of(seconds: float, largest: Unit = HOURS) -> Unit:
    """Return the largest unit, up to a given one, of which there are at least two."""
    units = [unit for unit in (DAYS, HOURS, MINUTES) if unit.seconds <= largest.seconds]
    return next((unit for unit in units if seconds >= 2 * unit.seconds), SECONDS)


def words(seconds: float) -> str:
    """Return a duration with its two largest units: `2 d 3 h`; below a minute with a fraction."""
    if seconds < MINUTES.seconds:
        return f"{seconds:.3g} s"
    large, small = next(
        pair for pair in pairwise((DAYS, HOURS, MINUTES, SECONDS)) if seconds >= pair[0].seconds
    )
    many, rest = divmod(round(seconds / small.seconds), round(large.seconds / small.seconds))
    return f"{many} {large.name} {rest} {small.name}" if rest else f"{many} {large.name}"


def marks(least: float, most: float) -> dict[int, str]:
    """Return marks of a logarithmic axis that has these ends: a few, all of them in `words`."""
    coarse = [mark for mark in _COARSE if least <= mark <= most]
    chosen = coarse if len(coarse) > 2 else [mark for mark in _FINE if least <= mark <= most]
    return {mark: words(mark) for mark in chosen}
