# SPDX-License-Identifier: Apache-2.0
"""How much the demo runs, and which limits it sets when."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["DEVICES", "FULL", "GPU_FULL", "DemoPlan", "LimitChange", "plan_for"]

DEVICES = ("auto", "cpu", "cuda")  # that one may ask for
MiB = 1 << 20
GiB = 1 << 30
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

    On a GPU (`device` is "cuda") the same scripts do more a step (`..._options`), both fit with 2.4
    and 1.7 GiB beside their contexts, and the first `warm_up_steps`, in which kernels are loaded,
    count for nothing.
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
    device: str = "cpu"
    warm_up_steps: int = 0
    guaranteed_options: tuple[str, ...] = ()
    opportunistic_options: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


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
# The opportunistic job holds about 1.7 GiB of a GPU, of which its text (1 GiB) is hardly touched.
GPU_LOW, GPU_HIGH = 1152 * MiB, 2304 * MiB
GPU_FULL = DemoPlan(
    rounds=2,
    guaranteed_steps=300,
    double_at=200,
    guaranteed_batch=384,
    guaranteed_read_rate=2.5e8,
    default_steps=150,
    default_double_at=100,
    opportunistic_steps=1200,
    text_bytes=128 * MiB,
    budget_bytes=7936 * MiB,
    guaranteed_memory="1GiB:6GiB",
    opportunistic_memory="512MiB:2304MiB",
    limit_changes=_limit_changes(1200, cycles=4, low=GPU_LOW, high=GPU_HIGH),
    least_shrinks=3,
    least_moved_bytes=GiB,
    most_repeats=3,
    judged=True,
    device="cuda",
    warm_up_steps=3,
    guaranteed_options=("--device", "cuda", "--size", "128"),
    opportunistic_options=(
        *("--device", "cuda", "--width", "512", "--layers", "6", "--heads", "8"),
        *("--context", "128", "--batch", "16"),
    ),
)
GPU_LEAST_FREE = 9 * GiB  # the budget, and what a GPU needs for itself


@dataclass(frozen=True)
class _Shape:
    """What a shorter run of a plan keeps, and what it costs."""

    low: int
    high: int
    seconds: int  # of the full plan, about
    fixed_seconds: int  # of a round, of that: starting six processes, drawing the report
    least_steps: int  # enough for the other job to start, and to meet, meanwhile
    least_moved_bytes: int  # in a cycle
    head_start: int  # so few steps of both would else not meet


_SHAPES = {
    "cpu": _Shape(LOW, HIGH, 180, 25, 110, 64 * MiB, 2),
    # Their starts take as long as each other; a job that waits for the other's has ended by then.
    "cuda": _Shape(GPU_LOW, GPU_HIGH, 180, 40, 400, 256 * MiB, 0),
}


def plan_for(seconds: int | None, device: str = "cpu") -> DemoPlan:
    """Return the full plan, or a shorter one of about `seconds` whose figures are not judged.

    Raises:
        ValueError: `seconds` is not positive.
    """
    full, shape = {"cpu": FULL, "cuda": GPU_FULL}[device], _SHAPES[device]
    if seconds is None or seconds >= shape.seconds:
        return full
    if seconds <= 0:
        raise ValueError(f"seconds must be positive: {seconds}")
    whole = shape.seconds / 2 - shape.fixed_seconds  # one round
    work = min(1.0, max(0.15, (seconds - shape.fixed_seconds) / whole))
    opportunistic_steps = max(shape.least_steps, round(full.opportunistic_steps * work))
    guaranteed_steps = round(full.guaranteed_steps * work)
    cycles = max(1, round(3 * work))
    return replace(
        full,
        rounds=1,
        guaranteed_steps=guaranteed_steps,
        double_at=guaranteed_steps // 2,
        default_steps=guaranteed_steps,
        default_double_at=guaranteed_steps // 2,
        opportunistic_steps=opportunistic_steps,
        limit_changes=_limit_changes(opportunistic_steps, cycles, shape.low, shape.high),
        least_shrinks=cycles,
        least_moved_bytes=cycles * shape.least_moved_bytes,
        most_repeats=0,
        judged=False,
        head_start=shape.head_start,
    )
