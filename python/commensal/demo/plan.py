# SPDX-License-Identifier: Apache-2.0
"""How much the demo runs, and which limits it sets when."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "DemoPlan", "LimitChange", "plan_for"]

MiB = 1 << 20
# The opportunistic job holds about 164 MiB, of which its text (96 MiB) is hardly touched.
LOW, HIGH = 88 * MiB, 224 * MiB


@dataclass(frozen=True)
class LimitChange:
    """The demo sets the opportunistic job's most memory when the job reaches a step."""

    at_step: int
    max_bytes: int


@dataclass(frozen=True)
class DemoPlan:
    """Everything that is fixed before the first process starts.

    `default_*`: with default sharing the guaranteed job takes fewer steps, for they take two to
    three times as long; its results are compared between the other windows.
    The memory budget is chosen so that both jobs fit (about 60 and 164 MiB) until the guaranteed
    job's batch doubles; from then on it needs twice as much, which the opportunistic one holds.
    """

    rounds: int
    guaranteed_steps: int
    double_at: int
    guaranteed_batch: int
    guaranteed_read_rate: float
    default_steps: int
    default_double_at: int
    opportunistic_steps: int
    text_bytes: int
    budget_bytes: int
    guaranteed_memory: str
    opportunistic_memory: str
    limit_changes: tuple[LimitChange, ...]
    least_shrinks: int
    least_moved_bytes: int
    most_repeats: int
    judged: bool
    head_start: int = 0  # steps of the opportunistic job before the guaranteed one starts


def _limit_changes(steps: int, cycles: int, low: int, high: int) -> tuple[LimitChange, ...]:
    """Spread `cycles` shrinks, each followed by a growth, over the later part of the steps."""
    first = steps * 3 // 8  # after the guaranteed job's doubling had its own effect
    times = [first + (steps - first) * i // (2 * cycles + 1) for i in range(2 * cycles)]
    return tuple(LimitChange(step, low if i % 2 == 0 else high) for i, step in enumerate(times))


FULL = DemoPlan(
    rounds=2,
    guaranteed_steps=200,
    double_at=130,
    guaranteed_batch=24,
    guaranteed_read_rate=3.3e6,
    default_steps=72,
    default_double_at=46,
    opportunistic_steps=200,
    text_bytes=12 * MiB,
    budget_bytes=244 * MiB,
    guaranteed_memory="64MiB:224MiB",
    opportunistic_memory="32MiB:224MiB",
    limit_changes=_limit_changes(200, cycles=4, low=LOW, high=HIGH),
    least_shrinks=3,
    least_moved_bytes=256 * MiB,
    most_repeats=3,
    judged=True,
)
FULL_SECONDS = 180


def plan_for(seconds: int | None) -> DemoPlan:
    """Return the full plan, or a shorter one of about `seconds` whose figures are not judged.

    Raises:
        ValueError: `seconds` is not positive.
    """
    if seconds is None or seconds >= FULL_SECONDS:
        return FULL
    if seconds <= 0:
        raise ValueError(f"seconds must be positive: {seconds}")
    # One round; starting six processes and drawing the report takes about 25 s of it.
    work = min(1.0, max(0.15, (seconds - 25) / (FULL_SECONDS / 2 - 25)))
    # Enough for the other job to start, and to meet, meanwhile.
    opportunistic_steps = max(110, round(FULL.opportunistic_steps * work))
    guaranteed_steps = round(FULL.guaranteed_steps * work)
    cycles = max(1, round(3 * work))
    return DemoPlan(
        rounds=1,
        guaranteed_steps=guaranteed_steps,
        double_at=guaranteed_steps // 2,
        guaranteed_batch=FULL.guaranteed_batch,
        guaranteed_read_rate=FULL.guaranteed_read_rate,
        default_steps=guaranteed_steps,
        default_double_at=guaranteed_steps // 2,
        opportunistic_steps=opportunistic_steps,
        text_bytes=FULL.text_bytes,
        budget_bytes=FULL.budget_bytes,
        guaranteed_memory=FULL.guaranteed_memory,
        opportunistic_memory=FULL.opportunistic_memory,
        limit_changes=_limit_changes(opportunistic_steps, cycles, LOW, HIGH),
        least_shrinks=cycles,
        least_moved_bytes=cycles * 64 * MiB,
        most_repeats=0,
        judged=False,
        head_start=2,  # so few steps of both would else not meet
    )
