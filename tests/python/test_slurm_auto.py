# SPDX-License-Identifier: Apache-2.0
"""The twins of `sbatch --commensal=auto`: exactly one runs the script, whatever Slurm does when.

Slurm is a made-up one here; tests/python/test_slurm.py has a real one.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from commensal._coordinator import Change, Refused, Unreachable
from commensal.slurm_auto import main
from commensal.slurm_auto._class import is_of, tell
from commensal.slurm_auto._commands import Done, Slurm, devices_from, run_command, twins_from
from commensal.slurm_auto._pair import (
    GUARANTEED,
    OPPORTUNISTIC,
    Record,
    Step,
    Twin,
    covers,
    exit_code_of,
    step_of_guaranteed,
)
from commensal.slurm_auto._script import body_of, environ_for, run_script, settle_output
from commensal.slurm_auto._twin import Job, as_guaranteed, as_opportunistic, seats_of

PAIR = "0123456789abcdef"
G, O = 12, 13  # noqa: E741  # the guaranteed twin's number, and the other's


class MadeUpSlurm(Slurm):
    """Two jobs and their states; what is done to them is done at once, and noted."""

    def __init__(self, guaranteed: str = "PENDING", opportunistic: str | None = "PENDING") -> None:
        super().__init__(lambda words: pytest.fail(f"not made up: {words}"))
        self.states = {G: guaranteed}
        if opportunistic is not None:
            self.states[O] = opportunistic
        self.given = {G: {"n1": {0}}, O: {"n1": {0}}}
        self.done: list[tuple[Any, ...]] = []
        self.silent = 0  # so many questions are not answered
        self.refuses: set[str] = set()
        self.on_hold: Callable[[], None] = lambda: None
        self.lock = threading.RLock()

    def twins(self, pair: str) -> dict[str, Twin] | None:
        assert pair == PAIR
        with self.lock:
            if self.silent:
                self.silent -= 1
                return None
            names = {G: GUARANTEED, O: OPPORTUNISTIC}
            return {names[job]: Twin(job, state) for job, state in self.states.items()}

    def devices(self, job: int, kind: str) -> dict[str, set[int]] | None:
        assert kind == {G: "gpu", O: "seat"}[job]
        return self.given[job]

    def hides_devices(self) -> bool:
        return "hide" in self.refuses

    def _note(self, verb: str, *words: Any) -> bool:
        with self.lock:
            self.done.append((verb, *words))
        return verb not in self.refuses

    def hold(self, job: int) -> bool:
        self.on_hold()
        return self._note("hold", job)

    def release(self, job: int) -> bool:
        return self._note("release", job)

    def cancel(self, job: int) -> bool:
        with self.lock:
            self.states[job] = "CANCELLED"
        return self._note("cancel", job)

    def cancel_waiting(self, job: int) -> bool:
        with self.lock:
            if self.states[job] == "PENDING":
                self.states[job] = "CANCELLED"
        return self._note("cancel waiting", job)

    def bind(self, job: int, nodes: str) -> bool:
        return self._note("bind", job, nodes)

    def requeue(self, job: int) -> Done:
        return Done(0, "") if self._note("requeue", job) else Done(1, "", "no requeue here")

    def run_on(self, job: int, node: str, words: Sequence[str]) -> Done:
        self._note("run on", job, node, *words)
        return Done(1, "", "srun: no") if "run on" in self.refuses else Done(0, "a-1 is x: applied")


class World:
    """A pair, and what its script was run as."""

    def __init__(self, folder: Path, slurm: MadeUpSlurm) -> None:
        self.slurm = slurm
        self.record = Record(folder, PAIR)
        self.runs: list[str] = []
        self.told: list[tuple[int, str]] = []
        self.slept = 0.0
        self.then: list[Callable[[], None]] = []  # one for each time that a twin sleeps
        self.during: Callable[[], None] = lambda: None
        self.code = 7

    def job(self, job: int, **changes: Any) -> Job:
        return Job(
            **{
                "pair": PAIR,
                "job": job,
                "node": "n1",
                "nodes": "n[1-2]",
                "record": self.record,
                "slurm": self.slurm,
                "run": self.run,
                "tell": self.tell,
                "sleep": self.sleep,
            }
            | changes
        )

    def run(self, of: str, tick: Callable[[], float | None]) -> int:
        self.runs.append(of)
        pause: float | None = 0.0
        for _ in range(20):
            if pause is not None:
                pause = tick()
        self.during()
        return self.code

    def tell(self, job: int, job_class: str) -> list[str]:
        self.told.append((job, job_class))
        return [f"train-1 is {job_class}: applied"]

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        if self.then:
            self.then.pop(0)()
        assert self.slept < 1000, "it never ends"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, MadeUpSlurm())


# --- decisions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "state", "step"),
    [
        (GUARANTEED, None, Step.RUN),
        (GUARANTEED, "RUNNING", Step.RUN),
        (OPPORTUNISTIC, None, Step.LEAVE),
        (OPPORTUNISTIC, "COMPLETED", Step.LEAVE),
        (OPPORTUNISTIC, "CANCELLED", Step.LEAVE),
        (OPPORTUNISTIC, "NODE_FAIL", Step.LEAVE),
        (OPPORTUNISTIC, "PENDING", Step.TAKE),
        (OPPORTUNISTIC, "REQUEUED", Step.TAKE),
        (OPPORTUNISTIC, "COMPLETING", Step.WAIT),
        (OPPORTUNISTIC, "RUNNING", Step.HOLD),
        (OPPORTUNISTIC, "SUSPENDED", Step.HOLD),
        (OPPORTUNISTIC, "A_STATE_OF_TOMORROW", Step.HOLD),
    ],
)
def test_the_step_of_the_guaranteed_twin(owner: str, state: str | None, step: Step) -> None:
    other = None if state is None else Twin(O, state)
    assert step_of_guaranteed(owner, other, answered=True) is step
    silent = step_of_guaranteed(owner, None, answered=False)
    assert silent is (Step.RUN if owner == GUARANTEED else Step.WAIT)


@pytest.mark.parametrize(
    ("recorded", "state", "code"),
    [(7, "RUNNING", 7), (0, None, 0), (None, "COMPLETED", 0), (None, "FAILED", 1), (None, None, 1)],
)
def test_the_code_it_leaves_with(recorded: int | None, state: str | None, code: int) -> None:
    assert exit_code_of(recorded, None if state is None else Twin(O, state)) == code


def test_devices_cover_others_node_by_node() -> None:
    assert covers({"n1": {0, 1}, "n2": {3}}, {"n1": {1}, "n2": {3}})
    assert not covers({"n1": {0, 1}, "n2": {2}}, {"n1": {1}, "n2": {3}})
    assert not covers({"n2": {1}}, {"n1": {1}})
    assert covers({"n2": set()}, {"n1": set()})  # a job without devices


# --- the record -------------------------------------------------------------------------------


def test_of_many_that_claim_at_once_one_has_it(tmp_path: Path) -> None:
    for turn in range(20):
        record = Record(tmp_path, f"{turn:016x}")
        barrier = threading.Barrier(8)
        answers: list[tuple[str, str]] = []

        def claim(
            name: str,
            record: Record = record,
            barrier: threading.Barrier = barrier,
            answers: list[tuple[str, str]] = answers,
        ) -> None:
            barrier.wait()
            answers.append((name, record.claim(name)))

        names = [f"twin {number}" for number in range(8)]
        threads = [threading.Thread(target=claim, args=[name]) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 8 and len({owner for _, owner in answers}) == 1
        assert [name for name, owner in answers if name == owner] == [record.owner()]


def test_processes_that_claim_at_once_agree(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from commensal.slurm_auto._pair import Record\n"
        "sys.stdin.read(); print(Record(Path(sys.argv[1]), 'ab').claim(sys.argv[2]))"
    )
    claims = [
        subprocess.Popen(
            [sys.executable, "-c", text, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in (GUARANTEED, OPPORTUNISTIC)
    ]
    for claim in claims:
        assert claim.stdin is not None
        claim.stdin.close()
        claim.stdin = None
    owners = [claim.communicate(timeout=240)[0].strip() for claim in claims]
    assert owners[0] == owners[1] == Record(tmp_path, "ab").owner()


def test_a_claim_stands_and_can_be_taken_over(tmp_path: Path) -> None:
    record = Record(tmp_path, PAIR)
    assert record.claim(OPPORTUNISTIC) == OPPORTUNISTIC
    assert record.claim(GUARANTEED) == OPPORTUNISTIC
    assert record.claim(OPPORTUNISTIC) == OPPORTUNISTIC  # requeued
    record.end(3)
    assert record.ended() == 3
    record.begin()
    assert record.ended() is None
    record.take()
    assert record.claim(OPPORTUNISTIC) == GUARANTEED
    assert {path.name for path in record.folder.iterdir()} == {"owner"}
    assert record.folder.stat().st_mode & 0o777 == 0o700
    old = record.base / "old"
    old.mkdir()
    os.utime(old, (0, 0))
    young = Record(tmp_path, "ff")
    young.claim(GUARANTEED)
    long = Record(
        tmp_path, "aa"
    )  # one that runs for months, or whose folder a wrong clock has made
    long.claim(OPPORTUNISTIC)
    os.utime(long.folder, (0, 0))
    record.forget(lambda: None)  # Slurm does not answer
    assert set(record.base.iterdir()) == {old, young.folder, long.folder}
    record.forget(lambda: {"aa", "ff"})
    assert set(record.base.iterdir()) == {young.folder, long.folder}


def test_slurm_is_asked_only_where_a_folder_is_old(tmp_path: Path) -> None:
    Record(tmp_path, "ff").claim(GUARANTEED)
    Record(tmp_path, PAIR).forget(lambda: pytest.fail("asked"))


def test_pairs_are_those_with_a_job_that_is_not_over() -> None:
    lines = [
        "7 RUNNING commensal-auto:aa:opportunistic",
        "8 COMPLETED commensal-auto:aa:guaranteed",
        "9 CANCELLED commensal-auto:bb:guaranteed",
        "10 PENDING commensal-auto:cc:guaranteed",
        "11 RUNNING another-plugin:dd:x",
        "12 RUNNING",
    ]
    assert Slurm(lambda _: Done(0, "\n".join(lines))).pairs() == {"aa", "cc"}
    assert Slurm(lambda _: Done(1, "")).pairs() is None


# --- both twins -------------------------------------------------------------------------------


def test_the_guaranteed_one_starts_first_and_the_other_one_goes(world: World) -> None:
    assert as_guaranteed(world.job(G)) == 7
    assert world.runs == [GUARANTEED]
    assert world.slurm.done == [("cancel waiting", O)]
    assert not world.record.folder.exists()


def test_the_other_one_comes_too_late_to_be_cancelled(world: World) -> None:
    world.slurm.states[O] = "RUNNING"
    world.during = lambda: world.runs.append(f"other: {as_opportunistic(world.job(O))}")
    assert as_guaranteed(world.job(G)) == 7
    assert world.runs == [GUARANTEED, "other: 0"]
    # Slurm has not said that it is over: what it would find is kept.
    assert world.record.claim(OPPORTUNISTIC) == GUARANTEED


def test_without_a_second_twin_the_first_one_runs(world: World) -> None:
    del world.slurm.states[O]
    assert as_guaranteed(world.job(G)) == 7
    assert world.runs == [GUARANTEED] and world.slurm.done == []
    # It may be about to be submitted.
    assert as_opportunistic(world.job(O)) == 0
    assert world.runs == [GUARANTEED]


def test_in_a_seat_it_binds_the_other_one_and_ends_it(world: World) -> None:
    world.slurm.states[O] = "RUNNING"
    assert as_opportunistic(world.job(O)) == 7
    assert world.runs == [OPPORTUNISTIC]
    assert world.slurm.done == [("bind", G, "n[1-2]"), ("cancel waiting", G)]
    assert not world.record.folder.exists()


def test_it_binds_once_slurm_answers_and_the_other_one_waits(world: World) -> None:
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.slurm.silent = 3
    asked = itertools.count()

    def twins(pair: str) -> dict[str, Twin] | None:
        if next(asked) == 6:
            world.slurm.states[G] = "PENDING"  # it was requeued for other devices
        return MadeUpSlurm.twins(world.slurm, pair)

    world.slurm.twins = twins  # type: ignore[method-assign]
    assert as_opportunistic(world.job(O)) == 7
    assert world.slurm.done[0] == ("bind", G, "n[1-2]")
    assert [done[0] for done in world.slurm.done].count("bind") == 1


def test_it_goes_on_alone_when_the_other_one_was_cancelled(world: World) -> None:
    world.slurm.states = {G: "CANCELLED", O: "RUNNING"}
    assert as_opportunistic(world.job(O)) == 7
    assert world.slurm.done == [] and world.runs == [OPPORTUNISTIC]


@pytest.mark.parametrize("state", ["COMPLETING", None])
def test_whom_slurm_is_ending_leaves_the_other_one_alone(world: World, state: str | None) -> None:
    """It may be requeued: the other one is to take over then."""
    world.slurm.states[O] = "RUNNING"

    def preempted() -> None:
        if state is None:
            world.slurm.silent = 99
        else:
            world.slurm.states[O] = state

    world.during = preempted
    assert as_opportunistic(world.job(O)) == 7
    assert ("cancel waiting", G) not in world.slurm.done
    assert world.record.owner() == OPPORTUNISTIC and world.record.ended() == 7


def test_requeued_and_started_again_it_runs_again(world: World) -> None:
    world.slurm.states[O] = "RUNNING"
    world.during = lambda: world.slurm.states.update({O: "COMPLETING"})
    world.code = 143
    assert as_opportunistic(world.job(O)) == 143
    world.slurm.states[O] = "RUNNING"
    world.during = lambda: None
    world.code = 0
    assert as_opportunistic(world.job(O, nodes="n4")) == 0
    assert world.runs == [OPPORTUNISTIC, OPPORTUNISTIC]
    assert ("bind", G, "n4") in world.slurm.done and world.slurm.states[G] == "CANCELLED"


def test_requeued_and_waiting_it_is_taken_over_from(world: World) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.record.end(143)  # of the run that was ended
    world.slurm.states = {G: "RUNNING", O: "PENDING"}
    assert as_guaranteed(world.job(G)) == 7
    assert world.slurm.done == [("hold", O), ("cancel", O)] and world.runs == [GUARANTEED]


def test_what_starts_while_it_is_taken_over_from_runs_on(world: World) -> None:
    """Between the question and the hold Slurm starts it: it is released, and held for."""
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "PENDING"}
    world.slurm.on_hold = lambda: world.slurm.states.update({O: "RUNNING"})

    def ends() -> None:
        world.record.end(5)
        world.slurm.states[O] = "FAILED"

    world.then = [lambda: None, ends]
    assert as_guaranteed(world.job(G)) == 5
    assert world.slurm.done == [("hold", O), ("release", O)]
    assert world.runs == [] and world.told == [(O, GUARANTEED)]


def test_what_cannot_be_held_is_not_taken_over(world: World) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "PENDING"}
    world.slurm.refuses = {"hold"}
    world.then = [lambda: None, world.slurm.refuses.clear]
    assert as_guaranteed(world.job(G)) == 7
    assert [done[0] for done in world.slurm.done] == ["hold", "hold", "hold", "cancel"]


def test_held_devices_are_told_and_left_with_the_script(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.slurm.given = {G: {"n1": {0}, "n2": {1, 2}}, O: {"n1": {0}, "n2": {2}}}
    world.slurm.silent = 2

    def ends() -> None:
        world.record.end(9)

    world.then = [lambda: None] * 5 + [ends, lambda: world.slurm.states.update({O: "COMPLETED"})]
    assert as_guaranteed(world.job(G, program="/x/auto")) == 9
    assert world.runs == [] and world.told[0] == (O, GUARANTEED)
    assert world.slurm.done[0] == ("run on", G, "n2", "/x/auto", "tell", "13", "guaranteed")
    said = capsys.readouterr().err
    assert "job 13 runs the script; its devices are held for it" in said
    assert "n1: train-1 is guaranteed: applied" in said and "n2: a-1 is x: applied" in said
    assert "it ended with 9" in said


def test_what_begins_later_in_the_script_is_told_too(world: World) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.then = [lambda: None] * 95 + [lambda: world.slurm.states.update({O: "COMPLETED"})]
    assert as_guaranteed(world.job(G)) == 0
    assert world.told.count((O, GUARANTEED)) == 4  # every half minute


def test_preempted_while_its_devices_are_held_it_is_taken_over_from(world: World) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    ends = lambda: (world.record.end(143), world.slurm.states.update({O: "COMPLETING"}))  # noqa: E731
    world.then = [lambda: None, ends, lambda: world.slurm.states.update({O: "PENDING"})]
    assert as_guaranteed(world.job(G)) == 7
    assert world.runs == [GUARANTEED] and ("cancel", O) in world.slurm.done


def test_with_other_devices_it_is_requeued(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.slurm.given[G] = {"n1": {1}}

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    world.then = [kill]
    with pytest.raises(Killed):
        as_guaranteed(world.job(G))
    assert world.slurm.done == [("requeue", G)] and world.told == [] and world.runs == []
    assert "Slurm gave n1:[1], and job 13 runs on n1:[0]" in capsys.readouterr().err


def test_where_nothing_is_requeued_the_job_stays_opportunistic(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.slurm.given[G] = {"n2": {0}}
    world.slurm.refuses = {"requeue"}
    assert as_guaranteed(world.job(G)) == 0
    assert "job 13 stays opportunistic: no requeue here" in capsys.readouterr().err
    assert world.runs == [] and world.told == []


def test_ended_by_slurm_it_takes_back_what_it_told(world: World) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING", O: "RUNNING"}
    world.then = [lambda: None, lambda: os.kill(os.getpid(), signal.SIGTERM)]
    before = signal.getsignal(signal.SIGTERM)
    assert as_guaranteed(world.job(G)) == 143
    assert world.told == [(O, GUARANTEED), (O, OPPORTUNISTIC)]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("state", "ended", "code"), [("CANCELLED", None, 1), (None, 4, 4)])
def test_started_after_the_other_ones_end_it_runs_nothing(
    world: World, state: str | None, ended: int | None, code: int
) -> None:
    world.record.claim(OPPORTUNISTIC)
    world.slurm.states = {G: "RUNNING"} | ({O: state} if state else {})
    world.slurm.silent = 3
    if ended is not None:
        world.record.end(ended)
    assert as_guaranteed(world.job(G)) == code
    assert world.runs == [] and not world.record.folder.exists()


def test_requeued_itself_the_owner_runs_again(world: World) -> None:
    world.record.claim(GUARANTEED)
    world.slurm.states = {G: "RUNNING"}
    world.slurm.silent = 2
    assert as_guaranteed(world.job(G)) == 7 and world.runs == [GUARANTEED]


def test_a_full_disk_at_the_end_keeps_the_scripts_code(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world.slurm.states[O] = "RUNNING"

    def full(code: int) -> None:
        raise OSError(28, f"No space left on device ({code})")

    monkeypatch.setattr(world.record, "end", full)
    assert as_opportunistic(world.job(O)) == 7
    assert "how the script ended cannot be written down" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(30))
def test_started_at_the_same_moment_one_runs_the_script(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path, MadeUpSlurm("RUNNING", "RUNNING"))
    chance = random.Random(seed)
    delays = [chance.random() / 500 for _ in range(2)]
    barrier, codes = threading.Barrier(2), {}

    def twin(job: int, flow: Callable[[Job], int], pause: float) -> None:
        barrier.wait()
        threading.Event().wait(pause)
        codes[job] = flow(world.job(job, sleep=lambda _seconds: threading.Event().wait(0.001)))
        world.slurm.states[job] = "COMPLETED" if codes[job] == 0 else "FAILED"

    # Signals are the main thread's: the guaranteed one runs there.
    other = threading.Thread(target=twin, args=[O, as_opportunistic, delays[0]])
    other.start()
    twin(G, as_guaranteed, delays[1])
    other.join()
    assert len(world.runs) == 1, seed
    assert codes == {G: 7, O: 0 if world.runs == [GUARANTEED] else 7}


# --- Slurm's words ----------------------------------------------------------------------------


def test_twins_are_found_by_their_pair() -> None:
    mark = f"commensal-auto:{PAIR}"
    text = (
        f"12   PENDING    {mark}:guaranteed  \n13   RUNNING    {mark}:opportunistic\n"
        "14   RUNNING    commensal-auto:ff:opportunistic\n15    RUNNING     \n"
        "16   RUNNING    a comment of others\n17_[1-2] PENDING commensal-auto:ff:guaranteed\n"
    )
    found = twins_from(text, PAIR)
    assert found == {GUARANTEED: Twin(12, "PENDING"), OPPORTUNISTIC: Twin(13, "RUNNING")}
    assert twins_from("", PAIR) == {}


def test_devices_are_read_by_kind_and_node() -> None:
    text = (
        "JobId=7 Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:a100:2(IDX:0,2-3),seat:1(IDX:5) "
        "  Nodes=n7 CPU_IDs=0-1 Mem=0 GRES= MinCPUsNode=1 Features=(null)"
    )
    assert devices_from(text, "gpu") == {"n[1-2]": {0, 2, 3}, "n7": set()}
    assert devices_from(text, "seat") == {"n[1-2]": {5}, "n7": set()}
    assert devices_from("ReqNodeList=n1", "gpu") == {}


def test_no_device_is_read_from_what_a_user_writes() -> None:
    entry = "JOB_GRES=gpu:1   Nodes=n2 CPU_IDs=1 Mem=100 GRES=gpu:1(IDX:0)"
    claim = "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1)"

    def shown(name: str = "x", command: str = "j.sh", entry: str = entry) -> dict[str, set[int]]:
        text = f"JobId=2 JobName={name} UserId=a(1) {entry} MinCPUsNode=1 Command={command} X=\n"
        return devices_from(text, "gpu")

    assert shown(claim) == shown("x", claim) == shown(f"x\n{claim}") == {"n2": {0}}
    assert shown("x", "Nodes=" + "x" * (1 << 20)) == {"n2": {0}}
    for text in (f"{claim} MinCPUsNode=1", f"x\n   {claim} MinCPUsNode=1 y"):
        assert shown(text) == shown("x", text) == shown(text, entry="") == {}, "not known"
    for numbers in ("", "x", "-1", "1-", "0-99999999999", "1--2"):
        odd = f"Nodes=n1 CPU_IDs= Mem= GRES=gpu:1(IDX:{numbers})"
        assert shown(entry=odd) == {"n1": set()}, numbers


def test_devices_with_types_are_read_over_all_types_of_a_kind() -> None:
    """As Slurm writes them of `--gres=gpu:a100:1,gpu:1g.10gb:2`, in newer versions with sockets."""
    text = (
        "Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:a100:1(IDX:1),gpu:1g.10gb:2(IDX:4-5) "
        "Nodes=n2 CPU_IDs=0 Mem=1 GRES=seat:a100:1(IDX:1),seat:nvidia_h100-sxm5:1(IDX:7) "
        "Nodes=n3 CPU_IDs=0 Mem=1 GRES=gpu:a100:2(IDX:0-1),seat:a100:2(IDX:0,3) MinCPUsNode=1"
    )
    assert devices_from(text, "gpu") == {"n1": {1, 4, 5}, "n2": set(), "n3": {0, 1}}
    assert devices_from(text, "seat") == {"n1": set(), "n2": {1, 7}, "n3": {0, 3}}


@pytest.mark.parametrize(
    ("gpu", "seat", "kept"),
    [
        ("gpu:a100:1(IDX:1)", "seat:a100:1(IDX:1)", True),
        ("gpu:a100:1(IDX:0)", "seat:a100:1(IDX:1)", False),
        # Numbers go over all types of a node: those of one type do not begin with 0.
        ("gpu:a100:1(IDX:0),gpu:h100:1(IDX:3)", "seat:h100:1(IDX:3)", True),
        ("gpu:a100:1(IDX:3)", "seat:1(IDX:3)", True),
    ],
)
def test_devices_under_typed_seats_are_held(gpu: str, seat: str, kept: bool) -> None:
    def run(words: Sequence[str]) -> Done:
        gres = gpu if words[-1] == str(G) else seat
        return Done(0, f"Nodes=n1 CPU_IDs=0 Mem=1 GRES={gres} MinCPUsNode=1")

    slurm = Slurm(run)
    given, used = slurm.devices(G, "gpu"), slurm.devices(O, "seat")
    assert given and used and covers(given, used) is kept
    assert seats_of(slurm, O, 1) == seat[-2]


def test_commands_are_lists_of_words() -> None:
    asked: list[list[str]] = []
    answers = {
        "squeue": f"12 RUNNING commensal-auto:{PAIR}:guaranteed",
        "scontrol --oneliner": "Nodes=n[1-2] CPU_IDs=0 Mem=1 GRES=seat:1(IDX:1) MinCPUsNode=1",
        "scontrol show hostnames": "n1\nn2\n",
        "scontrol show config": "X = y\nConstrainDevices        = yes\n",
    }

    def run(words: Sequence[str]) -> Done:
        asked.append(list(words))
        return Done(0, next((a for k, a in answers.items() if " ".join(words).startswith(k)), ""))

    slurm = Slurm(run)
    assert slurm.twins(PAIR) == {GUARANTEED: Twin(12, "RUNNING")}
    assert slurm.devices(7, "seat") == {"n1": {1}, "n2": {1}}
    assert slurm.hides_devices()
    assert slurm.hold(7) and slurm.release(7) and slurm.cancel(7) and slurm.cancel_waiting(7)
    assert slurm.bind(7, "n[1-2]") and slurm.requeue(7).code == 0
    assert slurm.run_on(7, "n2", ["a b", "c"]).code == 0
    assert ["scancel", "--quiet", "--state=PENDING", "7"] in asked
    assert ["scontrol", "update", "JobId=7", "ReqNodeList=n[1-2]"] in asked
    assert asked[-1][-2:] == ["a b", "c"] and "--nodelist=n2" in asked[-1]


def test_a_slurm_that_fails_is_an_answer() -> None:
    slurm = Slurm(lambda words: Done(1, "", f"{words[0]}: no controller"))
    assert slurm.twins(PAIR) is None and slurm.devices(7, "gpu") is None
    assert not (slurm.hold(7) or slurm.bind(7, "n1") or slurm.cancel(7) or slurm.hides_devices())
    assert slurm.requeue(7).problem == "scontrol: no controller"
    half = Slurm(
        lambda words: Done(
            int("hostnames" in words), "Nodes=n[1-2] CPU_IDs=0 Mem=1 GRES= MinCPUsNode=1"
        )
    )
    assert half.devices(7, "gpu") is None


def test_programs_are_run_without_a_shell(tmp_path: Path) -> None:
    done = run_command([sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id) 'b"])
    assert done == Done(0, "$(id) 'b\n")
    failed = run_command([sys.executable, "-c", "import sys; sys.exit('one\\ntwo')"])
    assert (failed.code, failed.problem) == (1, "one")
    missing = run_command([str(tmp_path / "missing")])
    assert missing.code == -1 and "No such file" in missing.problem


@pytest.mark.parametrize(
    ("devices", "nodes", "hidden", "seats"),
    [
        ({"n1": {3, 1}}, 1, False, "1,3"),
        ({"n1": {3, 1}}, 1, True, None),
        ({"n1": {0}, "n2": {0}}, 2, False, None),
        ({"n1": set()}, 1, False, None),
        (None, 1, False, None),
    ],
)
def test_seats_are_named_where_nobody_else_does(
    world: World, devices: Any, nodes: int, hidden: bool, seats: str | None
) -> None:
    world.slurm.given[O] = devices
    world.slurm.refuses = {"hide"} if hidden else set()
    assert seats_of(world.slurm, O, nodes) == seats


# --- the script -------------------------------------------------------------------------------

HEAD = b"#!/bin/sh\n# commensal-slurm-auto: one of two twins\nexec 'x'\n"


def test_the_users_script_is_what_follows_the_head() -> None:
    text = b"#!/usr/bin/env python3\nprint(1)\n\x00\xff"
    assert body_of(HEAD + text) == text
    for wrong in (b"", b"#!/bin/sh\necho\n", b"#!/bin/sh\necho\nx\ny\n"):
        with pytest.raises(ValueError, match="no script of --commensal=auto"):
            body_of(wrong)


def test_variables_of_the_script() -> None:
    given = {
        "PATH": "/bin",
        "SLURM_GPUS": "2",
        "SLURM_JOB_ID": "7",
        "SLURM_SPANK_COMMENSAL_PAIR": "ab",
        "SLURM_SPANK__SLURM_SPANK_OPTION_commensal_commensal": "auto",
    }
    guaranteed = environ_for(GUARANTEED, given)
    assert guaranteed == {
        "PATH": "/bin",
        "SLURM_GPUS": "2",
        "SLURM_JOB_ID": "7",
        "COMMENSAL_CLASS": GUARANTEED,
    }
    seat = environ_for(OPPORTUNISTIC, given, "1,3")
    assert seat["CUDA_VISIBLE_DEVICES"] == "1,3" and "SLURM_GPUS" not in seat
    own = environ_for(OPPORTUNISTIC, given | {"CUDA_VISIBLE_DEVICES": "0"}, "1")
    assert own["CUDA_VISIBLE_DEVICES"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in environ_for(OPPORTUNISTIC, given)


def script(folder: Path, text: str) -> Path:
    return Record(folder, PAIR).keep_script(text.encode(), GUARANTEED)


def test_a_script_is_run_with_its_words_and_ends_with_its_code(tmp_path: Path) -> None:
    Record(tmp_path, PAIR).claim(GUARANTEED)
    out = tmp_path / "out"
    file = script(tmp_path, '#!/bin/sh\nprintf "%s|" "$@" > "$OUT"; exit 9\n')
    words = [file, "a $(id) 'b", ""]
    assert run_script(words, {"OUT": str(out)}, lambda: None) == 9
    assert out.read_text() == "a $(id) 'b||"
    killed = script(tmp_path, "#!/bin/sh\nkill -KILL $$\n")
    assert run_script([killed], {}, lambda: 0.01) == 137
    with pytest.raises(OSError, match="missing"):
        run_script([tmp_path / "missing"], {}, lambda: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signals_reach_the_script(tmp_path: Path, number: signal.Signals) -> None:
    Record(tmp_path, PAIR).claim(GUARANTEED)
    ready = tmp_path / "ready"
    name = number.name.removeprefix("SIG")
    file = script(
        tmp_path,
        f"#!/bin/sh\ntrap 'exit 5' {name}\n: > {ready}\nwhile :; do sleep 0.05; done\n",
    )
    before = signal.getsignal(number)
    sent = []

    def tick() -> float:
        if ready.exists() and not sent:
            sent.append(os.kill(os.getpid(), number))
        return 0.02

    assert run_script([file], {"PATH": os.environ["PATH"]}, tick) == 5
    assert signal.getsignal(number) is before


def test_output_gets_the_name_that_the_user_gave_it(tmp_path: Path) -> None:
    old = tmp_path / "log.txt"
    old.write_text("of an earlier job\n")
    new = tmp_path / f"log.txt.commensal-{OPPORTUNISTIC}"
    plain = tmp_path / "slurm-7.out"
    with new.open("w") as file, plain.open("w") as other:
        links = [f"/proc/self/fd/{number}" for number in (file.fileno(), file.fileno())]
        settle_output(GUARANTEED, [*links, f"/proc/self/fd/{other.fileno()}"])
        assert new.exists() and plain.exists()
        settle_output(OPPORTUNISTIC, [*links, f"/proc/self/fd/{other.fileno()}"])
        file.write("mine\n")
    assert old.read_text() == "mine\n" and not new.exists() and plain.exists()


# --- what the node is told --------------------------------------------------------------------


class Node:
    def __init__(self, jobs: list[dict[str, Any]], outcome: Any = "applied") -> None:
        self.jobs, self.outcome = jobs, outcome
        self.asked: list[tuple[str, str]] = []

    def status(self) -> dict[str, Any]:
        if self.outcome == "away":
            raise Unreachable("nobody")
        return {"jobs": self.jobs}

    def set(self, job: str, *, job_class: str) -> Change:
        self.asked.append((job, job_class))
        if self.outcome == "gone":
            raise Refused("no job")
        return Change(job, 1, self.outcome, "it waits" if self.outcome == "deferred" else "")


def live(name: str, job_class: str, *pids: int) -> dict[str, Any]:
    return {"job": {"id": name, "class": job_class}, "members": [{"pid": pid} for pid in pids]}


def test_only_jobs_of_that_job_of_slurm_are_told() -> None:
    jobs = [
        live("mine-1", OPPORTUNISTIC, 1, 2),
        live("mine-2", GUARANTEED, 2),
        live("other", OPPORTUNISTIC, 3),
        {"job": {"id": "ended", "class": OPPORTUNISTIC}},
    ]
    of = lambda job, pid: (job, pid) == (O, 2)  # noqa: E731
    for outcome, said in (
        ("applied", "mine-1 is guaranteed: applied"),
        ("deferred", "mine-1 is guaranteed: deferred (it waits)"),
        ("gone", "mine-1: no job"),
    ):
        node = Node(jobs, outcome)
        assert list(tell(node, O, GUARANTEED, of)) == [said]
        assert node.asked == [("mine-1", GUARANTEED)]
    assert list(tell(Node(jobs, "away"), O, GUARANTEED, of)) == []


def test_a_process_is_of_the_job_that_its_variables_name(tmp_path: Path) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "environ").write_bytes(b"A=1\0SLURM_JOB_ID=13\0X_SLURM_JOB_ID=14\0")
    assert is_of(13, 5, tmp_path)
    assert not is_of(14, 5, tmp_path) and not is_of(1, 5, tmp_path) and not is_of(13, 6, tmp_path)


# --- the rules in the controller --------------------------------------------------------------

RULES = Path(__file__).resolve().parents[2] / "coordinator/engines/slurm/files/job_submit.lua"
MADE_UP_SLURM = """
slurm = { SUCCESS = 0, ERROR = -1, said = "" }
function slurm.log_user(text) slurm.said = slurm.said .. text end
function slurm.log_error(text, ...) slurm.said = slurm.said .. string.format(text, ...) end
"""


class Lua:
    """The library that Slurm itself loads for its rules, in this process."""

    def __init__(self) -> None:
        self._lua = lua = ctypes.CDLL("liblua5.1.so.0")
        lua.luaL_newstate.restype = ctypes.c_void_p
        lua.luaL_openlibs.argtypes = lua.lua_close.argtypes = [ctypes.c_void_p]
        lua.luaL_loadstring.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        lua.lua_pcall.argtypes = [ctypes.c_void_p, *[ctypes.c_int] * 3]
        lua.lua_tolstring.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        lua.lua_tolstring.restype = ctypes.c_char_p
        self._state = lua.luaL_newstate()
        lua.luaL_openlibs(self._state)

    def close(self) -> None:
        self._lua.lua_close(self._state)

    def run(self, text: str) -> str:
        """Run a text, and give what it returns."""
        failed = self._lua.luaL_loadstring(self._state, text.encode())
        failed = failed or self._lua.lua_pcall(self._state, 0, 1, 0)
        said = (self._lua.lua_tolstring(self._state, -1, None) or b"").decode()
        assert not failed, said
        return said


def quoted(text: str) -> str:
    assert "]==]" not in text
    return f"[==[{text}]==]"


class Rules:
    """job_submit.lua, with the program of twins filled in, and a made-up controller around it."""

    def __init__(self) -> None:
        self.lua = Lua()
        self.lua.run(MADE_UP_SLURM + RULES.read_text().replace("@AUTO@", "/opt/auto"))

    def submit(self, job_class: str, **fields: str) -> tuple[str, dict[str, str], str]:
        """Return the code, the fields as they are then, and what users read."""
        given = {"script": "#!/bin/sh\necho\n", **fields}
        env = f'"SPANK_COMMENSAL_CLASS={job_class}", "SPANK_COMMENSAL_PAIR={PAIR}"'
        words = ", ".join(f"{name} = {quoted(text)}" for name, text in given.items())
        code = self.lua.run(
            f"slurm.said = ''; job = {{ spank_job_env = {{ {env} }}, {words} }}\n"
            "return tostring(slurm_job_submit(job, {}, 0))"
        )
        after = {name: self.lua.run(f"return job.{name}") for name in (*given, "partition")}
        return code, after, self.lua.run("return slurm.said")


@pytest.fixture
def rules() -> Iterator[Rules]:
    try:
        made = Rules()
    except OSError as problem:
        pytest.skip(f"not installed: the Lua of Slurm's rules ({problem})")
    yield made
    made.lua.close()


@pytest.mark.parametrize(
    ("field", "gpus", "seats"),
    [
        # The words of --gres, --gpus, --gpus-per-task and --gpus-per-socket, as Slurm 22.05 and
        # newer ones write them.
        ("tres_per_node", "gres:gpu:a100:2", "gres:seat:a100:2"),
        ("tres_per_node", "gres/gpu:a100:2", "gres/seat:a100:2"),
        ("tres_per_node", "gres/gpu:a100=2", "gres/seat:a100=2"),
        ("tres_per_node", "gpu:a100", "seat:a100"),
        ("tres_per_node", "gres:gpu:nvidia_h100-sxm5:1", "gres:seat:nvidia_h100-sxm5:1"),
        (
            "tres_per_node",
            "gres:gpu:a100:1,gres:gpu:1g.10gb:2,gres:shm:1",
            "gres:seat:a100:1,gres:seat:1g.10gb:2,gres:shm:1",
        ),
        ("tres_per_job", "gres:gpu:a100:4", "gres:seat:a100:4"),
        ("tres_per_task", "gres:gpu:a100:1", "gres:seat:a100:1"),
        ("tres_per_socket", "gres:gpu:a100:1", "gres:seat:a100:1"),
        ("cpus_per_tres", "gres:gpu:4", "gres:seat:4"),
        ("mem_per_tres", "gres:gpu:4096", "gres:seat:4096"),
        # A type called like the kind, and a resource whose name begins so, stay.
        ("tres_per_node", "gres:gpu:gpu:1", "gres:seat:gpu:1"),
        ("tres_per_node", "gres:gpumem:1", "gres:gpumem:1"),
    ],
)
def test_what_is_asked_for_by_type_is_a_seat_of_that_type(
    rules: Rules, field: str, gpus: str, seats: str
) -> None:
    code, job, said = rules.submit(OPPORTUNISTIC, **{field: gpus})
    assert (code, said) == ("0", "")
    assert (job[field], job["partition"]) == (seats, OPPORTUNISTIC)
    assert f"exec '/opt/auto' opportunistic {PAIR}" in job["script"]
    code, job, said = rules.submit(GUARANTEED, **{field: gpus})
    assert (code, job[field], job["partition"], said) == ("0", gpus, GUARANTEED, "")


def test_a_typed_seat_is_refused_for_a_guaranteed_job(rules: Rules) -> None:
    code, _, said = rules.submit(GUARANTEED, tres_per_node="gres:seat:a100:1")
    assert code == "-1" and said.startswith("a guaranteed job takes --gres=gpu:N")


# --- the program ------------------------------------------------------------------------------


def made_up_programs(folder: Path, squeue: str) -> Path:
    """Programs of Slurm that note their words in `calls`; squeue prints what it is given."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("squeue", "scontrol", "scancel", "srun"):
        text = f'#!/bin/sh\necho {name} "$@" >> "{folder}/calls"\n'
        text += f"cat <<'END'\n{squeue}\nEND\n" if name == "squeue" else ""
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs


@pytest.mark.parametrize("name", [GUARANTEED, OPPORTUNISTIC])
def test_the_whole_program(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"commensal-auto:{PAIR}"
    mine, its = {GUARANTEED: (G, O), OPPORTUNISTIC: (O, G)}[name]
    other = OPPORTUNISTIC if name == GUARANTEED else GUARANTEED
    lines = f"{mine} RUNNING {mark}:{name}\n{its} PENDING {mark}:{other}"
    programs = made_up_programs(tmp_path, lines)
    out = tmp_path / "out"
    text = f"#!/bin/sh\necho $COMMENSAL_CLASS \"$@\" > '{out}'\nexit 6\n"
    (tmp_path / "slurm_script").write_bytes(HEAD + text.encode())
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", str(mine))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n3")
    assert main([name, PAIR, str(tmp_path / "slurm_script"), "a b", "*"]) == 6
    assert out.read_text() == f"{name} a b *\n"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert f"scancel --quiet --state=PENDING {its}" in calls
    if name == GUARANTEED:
        assert "scontrol update JobId=12 ReqNodeList=n3" not in calls


@pytest.mark.parametrize("words", [[], ["guaranteed", PAIR], ["auto", PAIR, "/x"], ["tell", "1"]])
def test_started_by_hand_it_says_what_it_is(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "is started by Slurm" in capsys.readouterr().err


def test_where_it_cannot_tell_whose_the_script_is_it_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "slurm_script").write_bytes(HEAD + f"#!/bin/sh\n: > '{ran}'\n".encode())
    (tmp_path / "home").write_text("no folder\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n3")
    assert main([GUARANTEED, PAIR, str(tmp_path / "slurm_script")]) == 1
    assert "nothing was run" in capsys.readouterr().err and not ran.exists()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main([GUARANTEED, PAIR, str(tmp_path / "slurm_script")]) == 1
    assert "SLURM_JOB_ID" in capsys.readouterr().err
