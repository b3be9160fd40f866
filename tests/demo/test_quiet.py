# SPDX-License-Identifier: Apache-2.0
"""The interference guard tells the machine's own work from everybody else's."""

from __future__ import annotations

import shutil

import pytest
from fake_proc import FakeProc

from commensal._report.quiet import QuietGuard, Verdict, verdict_between


def guard(proc: FakeProc) -> QuietGuard:
    return QuietGuard(proc.folder, root_pid=100)


def test_counts_only_the_tree_below_the_root_as_own(proc: FakeProc) -> None:
    proc.process(100, 1, own=5, waited=2)
    proc.process(101, 100, own=10)
    proc.process(102, 101, own=20)
    proc.process(200, 1, own=1000)
    assert guard(proc).usage().own == 37


def test_reads_names_with_spaces_and_parentheses(proc: FakeProc) -> None:
    proc.process(100, 1, own=5, name="a) S 1 (b")
    assert guard(proc).usage().own == 5


def test_a_child_that_ended_still_counts_as_own(proc: FakeProc) -> None:
    proc.process(100, 1)
    proc.process(101, 100, own=50)
    before = guard(proc).usage()
    shutil.rmtree(proc.folder / "101")
    proc.process(100, 1, waited=80)
    proc.machine(user=30, idle=70)
    verdict = verdict_between(before, guard(proc).usage())
    assert verdict.outside_share == 0.0
    assert verdict.own_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("others", "steal", "reason"),
    [
        (3, 1, ""),
        (4, 0, "other processes used 4.0% of the machine (most: 3%)"),
        (0, 2, "steal was 2.0% (most: 1%)"),
        (
            4,
            2,
            "other processes used 4.0% of the machine (most: 3%); steal was 2.0% (most: 1%)",
        ),
    ],
)
def test_judges_what_others_used_and_what_was_stolen(
    proc: FakeProc, others: int, steal: int, reason: str
) -> None:
    proc.process(100, 1)
    before = guard(proc).usage()
    proc.process(100, 1, own=40)
    proc.machine(user=40 + others, idle=60 - others - steal, steal=steal)
    verdict = verdict_between(before, guard(proc).usage())
    assert verdict.reason == reason
    assert verdict.quiet == (reason == "")


def test_kernel_threads_are_no_processes_outside(proc: FakeProc) -> None:
    proc.process(100, 1)
    proc.process(30, 2, own=0, name="kworker/0:1")
    before = guard(proc).usage()
    proc.process(30, 2, own=20, name="kworker/0:1")
    proc.machine(user=20, idle=80)
    assert verdict_between(before, guard(proc).usage()).quiet


class Machine:
    """A machine on which others are busy in the first windows."""

    def __init__(self, proc: FakeProc, noisy_windows: int) -> None:
        self.proc = proc
        self.noisy_windows = noisy_windows
        self.windows = 0
        self.user = self.idle = 0
        proc.process(100, 1)

    def window(self) -> int:
        self.windows += 1
        noise = 50 if self.windows <= self.noisy_windows else 0
        self.user += noise
        self.idle += 100 - noise
        self.proc.machine(user=self.user, idle=self.idle)
        return self.windows


def test_repeats_a_disturbed_window_until_it_is_quiet(proc: FakeProc) -> None:
    machine = Machine(proc, noisy_windows=2)
    told: list[Verdict] = []
    result = guard(proc).measure(machine.window, on_repeat=told.append)
    assert (result.value, result.judged, result.reason) == (3, True, "")
    assert [verdict.quiet for verdict in result.verdicts] == [False, False, True]
    assert told == list(result.verdicts[:2])


def test_repeats_three_times_at_most_and_then_cannot_judge(proc: FakeProc) -> None:
    machine = Machine(proc, noisy_windows=99)
    result = guard(proc).measure(machine.window)
    assert machine.windows == 4
    assert not result.judged
    assert "other processes used 50.0%" in result.reason


def test_a_quiet_window_is_not_repeated(proc: FakeProc) -> None:
    machine = Machine(proc, noisy_windows=0)
    assert guard(proc).measure(machine.window).value == 1


def test_reads_the_real_machine() -> None:
    before = QuietGuard().usage()
    sum(range(3_000_000))
    after = QuietGuard().usage()
    assert after.all >= before.all
    assert after.own >= before.own > 0
