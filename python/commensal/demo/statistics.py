# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of sharing: slowdown, harvest, and how sure we are of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Interval",
    "PhaseTimes",
    "bootstrap_interval",
    "harvest",
    "median_ratio_interval",
    "paired_ratio_interval",
    "slowdown",
    "slowdown_interval",
]

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    def shifted(self, by: float) -> Interval:
        return Interval(self.value + by, self.low + by, self.high + by)


@dataclass(frozen=True)
class PhaseTimes:
    """Step times of one phase of a job (steps with the same batch), in seconds."""

    alone: Sequence[float]
    shared: Sequence[float]


def slowdown(phases: Sequence[PhaseTimes]) -> float:
    """Return how much longer the typical step takes when shared: 0.01 is one percent.

    Compares medians phase by phase and weighs the phases by what their shared steps would take
    alone, so a doubled batch does not count as a slowdown.

    Raises:
        ValueError: no phase has steps on both sides.
    """
    alone = shared = 0.0
    for phase in phases:
        if len(phase.alone) and len(phase.shared):
            alone += len(phase.shared) * float(np.median(phase.alone))
            shared += len(phase.shared) * float(np.median(phase.shared))
    if alone <= 0.0:
        raise ValueError("no steps to compare: the two sides never ran in the same phase")
    return shared / alone - 1.0


def harvest(steps: float, seconds: float, alone_rate: float) -> float:
    """Return throughput while sharing over throughput alone.

    Raises:
        ValueError: a duration or rate is not positive.
    """
    if seconds <= 0.0 or alone_rate <= 0.0:
        raise ValueError(f"no rate: {steps} steps in {seconds} s, alone {alone_rate} steps/s")
    return steps / seconds / alone_rate


def bootstrap_interval(
    samples: Sequence[Sequence[float]],
    statistic: Callable[[Sequence[Values]], float],
    *,
    draws: int = 1000,
    seed: int = 0,
) -> Interval:
    """Return a statistic of several samples with its 95 % percentile bootstrap interval.

    Each draw takes every sample anew, with replacement, independently of the others.
    """
    random = np.random.default_rng(seed)
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    drawn = [
        statistic([array[random.integers(0, len(array), len(array))] for array in arrays])
        for _ in range(draws)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(statistic(arrays), float(low), float(high))


def median_ratio_interval(shared: Sequence[float], alone: Sequence[float]) -> Interval:
    """Return median(shared) / median(alone) with its bootstrap interval."""
    return bootstrap_interval(
        [shared, alone], lambda drawn: float(np.median(drawn[0]) / np.median(drawn[1]))
    )


def paired_ratio_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    part: float = 0.5,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the median over pairs of median(first) / median(second), with its interval.

    Each pair is two runs next to each other. A draw takes pairs with replacement, and within each
    of them the values of both runs: both kinds of noise count. `part`: the quantile that is
    compared, if not the median.

    Raises:
        ValueError: there is no pair, or `part` is not within 0 to 1.
    """
    if not pairs:
        raise ValueError("no pairs to compare")
    random = np.random.default_rng(seed)
    arrays = [(np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)) for a, b in pairs]

    def redrawn(values: Values) -> float:
        return float(np.quantile(values[random.integers(0, len(values), len(values))], part))

    drawn = []
    for _ in range(draws):
        chosen = random.integers(0, len(arrays), len(arrays))
        drawn.append(np.median([redrawn(arrays[i][0]) / redrawn(arrays[i][1]) for i in chosen]))
    low, high = np.percentile(drawn, [2.5, 97.5])
    value = float(np.median([np.quantile(a, part) / np.quantile(b, part) for a, b in arrays]))
    return Interval(value, float(low), float(high))


def slowdown_interval(phases: Sequence[PhaseTimes]) -> Interval:
    """Return `slowdown` with its bootstrap interval."""
    usable = [phase for phase in phases if len(phase.alone) and len(phase.shared)]

    def statistic(drawn: Sequence[Values]) -> float:
        pairs = zip(drawn[::2], drawn[1::2], strict=True)
        return slowdown([PhaseTimes(a.tolist(), s.tolist()) for a, s in pairs])

    flat = [side for phase in usable for side in (phase.alone, phase.shared)]
    if not flat:
        slowdown(usable)  # raises, with the reason
    return bootstrap_interval(flat, statistic, draws=400)
