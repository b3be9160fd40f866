# SPDX-License-Identifier: Apache-2.0
"""The stages of `run_all.sh`: what each needs of a card's time, and how the time is shared out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LINKED", "STAGES", "Stage", "TooLittleTime", "shares", "units"]


@dataclass(frozen=True)
class Stage:
    """A stage, with the seconds that it needs at least and those in which it measures all.

    `alone`: it takes times, so nothing else may run beside it.
    """

    name: str
    least: float
    wanted: float
    alone: bool = True


LINKED = Stage("build", 20, 40)  # where the objects are there
# In this order where none is named.
STAGES = {
    stage.name: stage
    for stage in (
        Stage("build", 100, 150),
        Stage("probes", 60, 120),
        Stage("adaptor", 60, 90, alone=False),
        Stage("memory", 40, 60, alone=False),
        Stage("rules", 30, 40, alone=False),
        Stage("scripts", 60, 140, alone=False),
        Stage("figures", 60, 200),
        Stage("pair-e1", 90, 250),
        Stage("pair-e2", 90, 180),
        Stage("pair-e3", 90, 180),
        Stage("demo", 80, 90),
    )
}

Unit = Sequence[Stage]  # stages that run side by side


class TooLittleTime(ValueError):
    """The time is less than the stages need; the message says which of them fit."""


def units(stages: Sequence[Stage]) -> list[Unit]:
    """Return what runs after one another. Stages that may run side by side are one unit, at the
    place of the first of them.
    """
    beside = [stage for stage in stages if not stage.alone]
    found: list[Unit] = []
    for stage in stages:
        if stage.alone:
            found.append([stage])
        elif stage is beside[0]:
            found.append(beside)
    return found


def least_of(unit: Unit) -> float:
    return max(stage.least for stage in unit)


def wanted_of(unit: Unit) -> float:
    return max(stage.wanted for stage in unit)


def shares(planned: Sequence[Unit], seconds: float) -> list[float]:
    """Share seconds out: to each unit its least, and what is left by what they want.

    Raises:
        TooLittleTime: not every unit gets its least.
    """
    spare = seconds - sum(least_of(unit) for unit in planned)
    if spare < 0.0:
        raise TooLittleTime(why_too_little(planned, seconds))
    wanted = sum(wanted_of(unit) for unit in planned)
    return [least_of(unit) + spare * wanted_of(unit) / wanted for unit in planned]


def why_too_little(planned: Sequence[Unit], seconds: float) -> str:
    names = [stage.name for unit in planned for stage in unit]
    need = sum(least_of(unit) for unit in planned)
    left = seconds
    fit: list[str] = []
    for unit in planned:
        if least_of(unit) <= left:
            left -= least_of(unit)
            fit += [stage.name for stage in unit]
    if not fit:
        fit = [stage.name for stage in STAGES.values() if stage.least <= seconds]
    return (
        f"{', '.join(names)} need{'s' if len(names) == 1 else ''} {need:.0f} s at least, and there"
        f" are {max(0.0, seconds):.0f}; "
        + (f"what fits: {', '.join(fit)}" if fit else "no stage fits into that")
    )
