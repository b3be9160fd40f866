# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of `commensal profile`: gaps, histogram, cold memory, sentences."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from commensal.profiling.analysis import (
    EDGES_SECONDS,
    PHASES,
    Analysis,
    Samples,
    TooLittle,
    analyse,
    oracle_share,
)
from commensal.profiling.clocks import descendants
from commensal.profiling.job_page import Activity
from commensal.profiling.report import Profile, describe, sentence, to_json
from commensal.profiling.touched import Mapping, Touched, mappings, of_mappings

MS = 1_000_000
CORES = 2.0


class Script:
    """A job of which every millisecond is known: makes the samples that a sampler would read."""

    def __init__(self) -> None:
        self.samples = Samples()
        self._now = self._cpu = self._steps = 0

    def spend(self, ms: int, cores: float, activity: int = Activity.BUSY) -> None:
        for _ in range(ms):
            self.samples.add(self._now, self._cpu, activity, self._steps)
            self._now += MS
            self._cpu += int(cores * MS)

    def step(self) -> None:
        self._steps += 1

    def train(self, steps: int, compute_ms: int = 60, wait_ms: int = 40) -> None:
        """Compute with both cores and one core, then wait for data."""
        for _ in range(steps):
            self.spend(compute_ms // 2, 2.0)
            self.spend(compute_ms - compute_ms // 2, 1.0)
            self.step()
            self.spend(wait_ms, 0.0, Activity.WAITING)


def analysed(script: Script) -> Analysis:
    return analyse(script.samples, CORES, 0)


def trained(steps: int = 60) -> Analysis:
    script = Script()
    script.spend(500, 1.0)  # start-up is no part of the figures
    script.train(steps)
    return analysed(script)


@pytest.mark.parametrize(
    ("busy", "share"), [(0.3, 0.703), (0.5, 0.505), (0.7, 0.307), (0.9, 0.109), (0.99, 0.0198)]
)
def test_the_oracle_is_that_of_time_slicing(busy: float, share: float) -> None:
    assert oracle_share(busy, 0.01) == pytest.approx(share, abs=5e-4)


def test_the_oracle_stays_a_share() -> None:
    assert oracle_share(0.0, 0.01) == 1.0
    assert oracle_share(1.0, 0.0) == 0.0
    assert oracle_share(1.2, 0.01) == 0.0


def test_shares_of_a_job_that_waits_for_data() -> None:
    a = trained()
    assert a.steps == 56  # 60 less the warm-up
    assert a.step_median_seconds == pytest.approx(0.1)
    assert a.busy_share == pytest.approx(0.45)  # (30 x 2 + 30 x 1) of 200
    assert a.gap_share["data"] == pytest.approx(0.40)
    assert a.gap_share["pause"] == a.gap_share["step"] == 0
    assert a.beside_share == pytest.approx(0.15)
    assert a.short_gap_share == pytest.approx(0)
    assert a.gaps_per_second == pytest.approx(10)
    assert a.start_seconds > 0.5


def test_the_parts_are_the_whole() -> None:
    script = Script()
    for number in range(100):
        script.train(1, compute_ms=10 + number % 7, wait_ms=number % 9)
        script.spend(number % 5, 0.0)
        script.spend(7, 1.7)
    a = analysed(script)
    parts = a.busy_share + a.gaps_share + a.short_gap_share + a.beside_share
    assert parts == pytest.approx(1.0)
    assert a.short_gap_share > 0


def test_gaps_are_told_apart_by_what_the_job_did() -> None:
    script = Script()
    for number in range(80):
        script.train(1)
        script.spend(20, 2.0)
        script.spend(12, 0.0)  # waits for something else, within a step
        script.spend(20, 2.0)
        if number % 20 == 10:  # evaluation, checkpoint: longer than any step
            script.spend(300, 1.0)
            script.spend(500, 0.0)
    a = analysed(script)
    lengths = {p: {round(g.seconds, 3) for g in a.gaps if g.phase == p} for p in PHASES}
    assert lengths["data"] == {0.04}
    assert lengths["pause"] == {0.5, 0.012}  # all that lies in the long stretch
    assert lengths["step"] == {0.012}


def test_a_histogram_counts_each_gap_once() -> None:
    script = Script()
    for wait in (3, 5, 9, 10, 30, 99, 100, 700, 1500):
        script.train(8, wait_ms=wait)
    a = analysed(script)
    for phase in PHASES:
        counts, shares = a.histogram(phase)
        assert len(counts) == len(shares) == len(EDGES_SECONDS)
        assert sum(counts) == sum(gap.phase == phase for gap in a.gaps)
        long = sum(shares[1:])
        assert long == pytest.approx(a.gap_share[phase])
    counts, _ = a.histogram("data")
    assert counts[0] == 5  # 3 ms: of 8, less the warm-up's
    assert counts[1] == 16  # 5 and 9 ms
    assert counts[-1] == 7  # the last step has no gap behind it


def test_little_work_does_not_fill_a_gap_and_much_does() -> None:
    script = Script()
    script.train(40)
    heartbeat, busy = Script(), Script()
    for one, cores in ((heartbeat, 0.05), (busy, 0.5)):
        for _ in range(40):
            one.spend(60, 2.0)
            one.step()
            one.spend(40, cores, Activity.WAITING)
    assert analysed(heartbeat).gap_share["data"] == pytest.approx(0.4 * 0.975)
    assert analysed(busy).gap_share["data"] == 0


def test_steps_that_are_shorter_than_a_sample_are_counted() -> None:
    script = Script()
    for _ in range(4000):
        for _ in range(3):
            script.step()
        script.spend(1, 2.0)
    a = analysed(script)
    assert a.step_median_seconds == pytest.approx(1 / 3000, rel=0.01)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [(0, "no step was seen"), (3, "only 3 steps were seen"), (15, "only 11 steps in 1.1 s")],
)
def test_too_little_is_said_instead_of_nonsense(steps: int, reason: str) -> None:
    script = Script()
    script.spend(5000, 1.0)
    script.train(steps)
    with pytest.raises(TooLittle, match=reason):
        analysed(script)


SMAPS = """\
7f0000000000-7f0004000000 rw-p 00000000 00:00 0
Rss:               16384 kB
Referenced:         8192 kB
Anonymous:         16384 kB
VmFlags: rd wr mr mw me nr hg
7f0004000000-7f0008000000 ---p 00000000 00:00 0
Rss:                   0 kB
Referenced:            0 kB
VmFlags: mr mw me nr
55d000000000-55d000400000 rw-p 00000000 00:00 0                          [heap]
Rss:                4096 kB
Referenced:         4096 kB
VmFlags: rd wr mr mw me ac
7f1000000000-7f1000100000 rw-p 00000000 00:00 0
Rss:                1024 kB
Referenced:         1024 kB
VmFlags: rd wr mr mw me ac
7f2000000000-7f2000100000 r-xp 00000000 08:01 1234                       /usr/lib/libc.so.6
Rss:                 512 kB
Referenced:          512 kB
VmFlags: rd ex mr mw me
"""
MIB = 1 << 20


def test_the_kernels_text_tells_what_was_touched() -> None:
    found = list(mappings(SMAPS.splitlines(keepends=True)))
    assert found[0] == Mapping(True, True, 16 * MIB, 8 * MIB)
    assert [mapping.managed for mapping in found] == [True, False, False, False, False]
    assert found[3] == Mapping(True, False, MIB, MIB)
    assert not found[4].anonymous


def test_cold_memory_is_that_of_tensors_where_they_can_be_told() -> None:
    found = list(mappings(SMAPS.splitlines()))
    tensors = of_mappings(found, 16 * MIB, 2.0, 10)
    assert tensors == Touched("tensors", 16 * MIB, 8 * MIB, 2.0, 10)
    assert tensors.share == 0.5
    private = of_mappings(found, 100 * MIB, 2.0, 10)  # the job holds more than we found
    assert private == Touched("private memory", 17 * MIB, 9 * MIB, 2.0, 10)
    assert of_mappings([], 0, 2.0, 10) is None


def test_the_tree_of_a_process_is_found(tmp_path: Path) -> None:
    for pid, thread, children in ((1, 1, "2 3 "), (1, 9, "4 "), (2, 2, ""), (3, 3, ""), (4, 4, "")):
        folder = tmp_path / str(pid) / "task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "children").write_text(children)
    assert sorted(descendants(1, tmp_path)) == [1, 2, 3, 4]
    assert descendants(7, tmp_path) == []


PROFILE = Profile(
    name="train",
    command=("python", "train.py"),
    exit_code=0,
    ended_by="itself",
    cores=CORES,
    outside_share=0.004,
    steal_share=0.0,
    sample_seconds=0.003,
    analysis=trained(),
    reason="",
    touched=(
        Touched("tensors", 600 * MIB, 300 * MIB, 2.1, 21),
        Touched("tensors", 600 * MIB, 330 * MIB, 2.0, 20),
    ),
    touched_problem="",
    memory={"peak_device_bytes": 600 * MIB},
)


def test_the_sentence_says_what_the_issue_says() -> None:
    assert sentence(PROFILE) == (
        "a neighbour could use 55 % of this device at 1 % slowdown; memory can shrink to 55 %"
    )


def test_the_report_says_what_the_sentence_rests_on() -> None:
    text = describe(PROFILE)
    for words in (
        "profile of train, alone on 2 cores (exit code 0)",
        "56 x 100 ms in 5.6 s",
        "45 % of the device's time",
        "40 %, 10.0 a second: 40 % waiting for data",
        "15 %: cores it leaves idle while it computes",
        "330 MiB of 600 MiB of tensors touched in 2.0 s (20 steps)",
        "used 0.4 % of the machine meanwhile",
    ):
        assert words in text, text
    assert text.splitlines()[-1] == sentence(PROFILE)


def test_a_disturbed_machine_is_said() -> None:
    loud = replace(PROFILE, outside_share=0.2)
    assert "used 20 % of the machine meanwhile: NOT quiet" in describe(loud)
    assert to_json(loud)["judged"] is False
    assert to_json(PROFILE)["judged"] is True


def test_too_little_has_no_figures() -> None:
    short = replace(PROFILE, analysis=None, reason="no step was seen", touched=())
    assert sentence(short) == "cannot say what a neighbour could take: no step was seen"
    assert "%" not in sentence(short)
    told = to_json(short)
    assert (told["judged"], told["device"], told["gaps"], told["memory"]) == (False,) + (None,) * 3
    assert told["reason"] == "no step was seen"


def test_memory_that_could_not_be_measured_is_not_in_the_sentence() -> None:
    blind = replace(PROFILE, touched=(), touched_problem="/proc/7/clear_refs: Permission denied")
    assert "memory" not in sentence(blind)
    assert "at most 600 MiB of tensors; what of it is cold is not known: /proc/7" in describe(blind)


def test_the_json_has_what_the_page_says() -> None:
    told = to_json(PROFILE)
    assert told["schema"] == 1
    device = told["device"]
    assert device["neighbour_share"] == pytest.approx(1 - 0.45 / 1.01)
    parts = ("busy_share", "gap_share", "short_gap_share", "beside_share")
    assert math.fsum(device[part] for part in parts) == pytest.approx(1)
    assert set(told["gaps"]["phases"]) == set(PHASES)
    assert told["memory"]["shrink_to_share"] == pytest.approx(0.55)
    assert told["memory"]["cold_bytes"] == 270 * MIB
    assert told["job"] == {
        "name": "train",
        "command": ["python", "train.py"],
        "exit_code": 0,
        "ended_by": "itself",
    }


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    from commensal.profiling.picture import draw

    for number, profile in enumerate((PROFILE, replace(PROFILE, touched=()))):
        draw(tmp_path / f"{number}.png", profile)
        assert (tmp_path / f"{number}.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw(tmp_path / "none.png", replace(PROFILE, analysis=None))
