# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of pairs of windows: what is kept of them, what counts, and what they say."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from kept_parts import KeptParts

__all__ = [
    "DROPPED",
    "Pair",
    "PairRecord",
    "Plan",
    "clean_pairs",
    "clock_moved",
    "durations",
    "oracle",
    "plan",
    "progress",
]

SLO = 0.01
DROPPED = 0.1  # of each window, at its beginning
CLOCK_TOLERANCE = 0.01
LEAST_WINDOW = 2.5  # seconds; shorter ones say little

Span = tuple[float, float]


@dataclass(frozen=True)
class Pair:
    """A window alone and the one beside the other job next to it.

    `alone` and `shared` are durations of the guaranteed job's steps in seconds, `progress` the
    steps of the other job in `seconds`, `busy` the part of the window alone in which the guaranteed
    job had work. Clocks are medians in MHz; None: not known.
    """

    alone: list[float]
    shared: list[float]
    progress: float
    seconds: float
    busy: float
    alone_mhz: float | None = None
    shared_mhz: float | None = None


def clock_moved(pair: Pair) -> bool:
    """Tell whether the card's clock differed between the two windows: then they do not compare."""
    if not pair.alone_mhz or not pair.shared_mhz:
        return False
    return abs(pair.shared_mhz / pair.alone_mhz - 1.0) > CLOCK_TOLERANCE


def clean_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs that count: those in which both windows had the same clock, and steps."""
    return [pair for pair in pairs if pair.alone and pair.shared and not clock_moved(pair)]


def durations(steps: Sequence[Sequence[float]], begin: float, end: float) -> list[float]:
    """Return how long the steps took that began and ended in a window, without its first part."""
    first = begin + DROPPED * (end - begin)
    return [round(step[1] - step[0], 7) for step in steps if step[0] >= first and step[1] <= end]


def overlap(first: Span, second: Span) -> float:
    return max(0.0, min(first[1], second[1]) - max(first[0], second[0]))


def busy_share(steps: Sequence[Sequence[float]], begin: float, end: float) -> float:
    """Return the part of a window in which a job was in a step."""
    return sum(overlap((step[0], step[1]), (begin, end)) for step in steps) / (end - begin)


def progress(
    steps: Sequence[Sequence[float]], since: float | None, active: Sequence[Span], window: Span
) -> float:
    """Return how many steps a job made in a window, parts of steps included.

    `active`: when it was not paused; a step is taken to advance evenly in that time. `since`: when
    the step under way began; it is taken to be as long as the others.
    """

    def run_time(span: Span) -> float:
        return sum(overlap(span, one) for one in active)

    def inside(span: Span) -> Span:
        return max(span[0], window[0]), min(span[1], window[1])

    whole = [((step[0], step[1]), run_time((step[0], step[1]))) for step in steps]
    made = sum(run_time(inside(span)) / took for span, took in whole if took > 0.0)
    typical = statistics.median([took for _, took in whole]) if whole else 0.0
    if since is not None and typical > 0.0:
        made += min(1.0, run_time(inside((since, window[1]))) / typical)
    return made


def oracle(busy: float) -> float:
    """Return the most that time-slicing could give the other job at the slowdown allowed."""
    return max(0.0, 1.0 - busy / (1.0 + SLO))


@dataclass(frozen=True)
class Plan:
    """How much is measured in the time that there is."""

    pairs: int
    seconds: float  # of a window
    equal_pairs: int  # of two windows without the other job: A/A


def plan(available: float, settling: Sequence[float], pairs: int, seconds: float) -> Plan:
    """Return what fits into `available` seconds.

    `settling`: what each mode is given before its first window. First windows get shorter, then
    A/A shrinks and is left out, then pairs are. A plan that is too long all the same is the least:
    what there is no time for is then told mode by mode.
    """
    left = available - sum(settling)
    modes = len(settling)
    choices = [(pairs, pairs), (pairs, 1), (pairs, 0)]
    choices += [(fewer, 0) for fewer in range(pairs - 1, 0, -1)]
    for number, (chosen, equal) in enumerate(choices):
        windows = 2 * chosen * modes + 2 * equal
        fitting = min(seconds, left / windows)
        # All of A/A only where nothing is shortened for it.
        if fitting >= (seconds if number == 0 else min(seconds, LEAST_WINDOW)):
            return Plan(chosen, fitting, equal)
    return Plan(1, min(seconds, LEAST_WINDOW), 0)


@dataclass
class PairRecord:
    """What was measured of a pair of jobs so far; a later run goes on with it.

    `seconds`: of a window, 0 until one was measured. `calibration` is what the first run found and
    later ones use.
    """

    card: str
    seconds: float = 0.0
    calibration: dict[str, float] = field(default_factory=dict)
    modes: dict[str, list[Pair]] = field(default_factory=dict)

    @classmethod
    def take(cls, card: str, kept: KeptParts) -> PairRecord:
        """Return what is kept of this card's windows."""
        told = kept.parts.get("windows", {})
        modes = {
            name: [Pair(**pair) for pair in pairs] for name, pairs in told.get("modes", {}).items()
        }
        return cls(card, told.get("seconds", 0.0), told.get("calibration", {}), modes)

    def keep(self, kept: KeptParts) -> None:
        kept.put("windows", asdict(self))
