# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of slowdown, harvest and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest

from commensal.demo.statistics import (
    PhaseTimes,
    bootstrap_interval,
    harvest,
    median_ratio_interval,
    paired_ratio_interval,
    slowdown,
    slowdown_interval,
)


def test_equal_times_are_no_slowdown() -> None:
    assert slowdown([PhaseTimes([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])]) == 0.0


def test_slowdown_compares_medians_so_one_late_step_does_not_count() -> None:
    assert slowdown([PhaseTimes([1.0] * 5, [1.1] * 4 + [100.0])]) == pytest.approx(0.1)


def test_a_doubled_batch_is_no_slowdown() -> None:
    # Alone: as many large as small batches; shared: only few small ones.
    phases = [PhaseTimes([1.0] * 10, [1.0] * 2), PhaseTimes([3.0] * 10, [3.0] * 10)]
    assert slowdown(phases) == pytest.approx(0.0)


def test_phases_weigh_by_their_time() -> None:
    phases = [PhaseTimes([1.0], [2.0]), PhaseTimes([9.0], [9.0])]
    assert slowdown(phases) == pytest.approx(0.1)


def test_a_phase_without_shared_steps_is_left_out() -> None:
    assert slowdown([PhaseTimes([1.0], []), PhaseTimes([2.0], [3.0])]) == pytest.approx(0.5)


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(ValueError, match="no steps to compare"):
        slowdown([PhaseTimes([1.0], [])])
    with pytest.raises(ValueError, match="no steps to compare"):
        slowdown_interval([PhaseTimes([], [1.0])])


def test_harvest_is_a_ratio_of_rates() -> None:
    assert harvest(steps=30, seconds=10.0, alone_rate=6.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("seconds", "rate"), [(0.0, 1.0), (1.0, 0.0)])
def test_harvest_needs_positive_rates(seconds: float, rate: float) -> None:
    with pytest.raises(ValueError, match="no rate"):
        harvest(1, seconds, rate)


def test_the_bootstrap_interval_holds_the_true_ratio() -> None:
    random = np.random.default_rng(7)
    alone = random.normal(10.0, 1.0, 400).tolist()
    shared = random.normal(11.0, 1.0, 400).tolist()
    found = median_ratio_interval(shared, alone)
    assert found.low < 1.1 < found.high
    assert found.high - found.low < 0.1
    assert found.low <= found.value <= found.high


def test_the_bootstrap_is_the_same_for_the_same_seed() -> None:
    sample = [list(range(50))]
    first = bootstrap_interval(sample, lambda drawn: float(np.mean(drawn[0])), seed=3)
    again = bootstrap_interval(sample, lambda drawn: float(np.mean(drawn[0])), seed=3)
    other = bootstrap_interval(sample, lambda drawn: float(np.mean(drawn[0])), seed=4)
    assert first == again
    assert first != other


def test_the_slowdown_interval_narrows_with_equal_steps() -> None:
    found = slowdown_interval([PhaseTimes([1.0] * 20, [1.5] * 20)])
    assert (found.low, found.value, found.high) == pytest.approx((0.5, 0.5, 0.5))


def test_pairs_cancel_what_both_runs_share() -> None:
    # The machine got three times slower between the pairs; within each the ratio is 1.1.
    pairs = [([1.1] * 30, [1.0] * 30), ([3.3] * 30, [3.0] * 30)]
    found = paired_ratio_interval(pairs)
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_pairs_that_disagree_widen_the_interval() -> None:
    found = paired_ratio_interval([([1.0] * 9, [1.0] * 9), ([1.2] * 9, [1.0] * 9)])
    assert found.value == pytest.approx(1.1)
    assert (found.low, found.high) == pytest.approx((1.0, 1.2))
    with pytest.raises(ValueError, match="no pairs"):
        paired_ratio_interval([])


def test_another_quantile_of_pairs() -> None:
    steady, with_a_tail = [1.0] * 100, [1.0] * 95 + [2.0] * 5
    found = paired_ratio_interval([(with_a_tail, steady)] * 3, part=0.99)
    assert found.value == pytest.approx(2.0)
    assert 1.0 <= found.low <= found.value <= found.high
    assert paired_ratio_interval([(with_a_tail, steady)] * 3).value == pytest.approx(1.0)
