# SPDX-License-Identifier: Apache-2.0
"""What each twin does from its start in Slurm to its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commensal._say import say, stand_in_for_closed_streams
from commensal.slurm_auto._class import tell_here
from commensal.slurm_auto._commands import Done, Slurm
from commensal.slurm_auto._pair import (
    GUARANTEED,
    OPPORTUNISTIC,
    Record,
    Step,
    covers,
    exit_code_of,
    step_of_guaranteed,
)
from commensal.slurm_auto._script import body_of, environ_for, run_script, settle_output

__all__ = ["Job", "as_guaranteed", "as_opportunistic", "main"]

_LOOK = 30.0  # seconds between questions to Slurm while the other twin runs
_GLANCE = 1.0  # between looks at the pair's folder


class Ended(Exception):
    """Slurm has told this job to end."""


@contextmanager
def ending() -> Iterator[None]:
    """Make SIGTERM an exception, so that what was told can be taken back."""

    def end(_number: int, _frame: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class Job:
    """This twin, and all that it does to others: a test puts its own here.

    `run` runs the script as of a class, calling the tick of `run_script`, and returns its code.
    """

    pair: str
    job: int
    node: str
    nodes: str
    record: Record
    slurm: Slurm
    run: Callable[[str, Callable[[], float | None]], int]
    tell: Callable[[int, str], list[str]] = tell_here
    sleep: Callable[[float], None] = time.sleep
    program: str = "commensal-slurm-auto"

    def tell_all(self, other: int, job_class: str, nodes: Sequence[str]) -> None:
        """Tell each node of the other twin of what class its jobs are; say what came of it."""
        for node in nodes:
            if node == self.node:
                lines = self.tell(other, job_class)
            else:
                words = [self.program, "tell", str(other), job_class]
                done = self.slurm.run_on(self.job, node, words)
                lines = done.output.splitlines() if done.code == 0 else [done.problem]
            for line in lines:
                say(f"{node}: {line}")


def as_opportunistic(job: Job) -> int:
    """Run the script in a seat, unless the other twin runs it; bind that one to these nodes."""
    if job.record.claim(OPPORTUNISTIC) != OPPORTUNISTIC:
        say("the guaranteed twin runs the script")
        return 0
    job.record.begin()
    code = job.run(OPPORTUNISTIC, _Binding(job))
    try:
        job.record.end(code)
    except OSError as error:  # the other one then goes by the state that Slurm shows
        say(f"how the script ended cannot be written down: {error}")
    twins = job.slurm.twins(job.pair) or {}
    mine, other = twins.get(OPPORTUNISTIC), twins.get(GUARANTEED)
    # Is Slurm ending this one, it may be to run it again: then the other one may take over.
    if mine is None or mine.ends or other is None:
        return code
    if other.waits and job.slurm.cancel_waiting(other.job):
        twins = job.slurm.twins(job.pair) or {}
        other = twins.get(GUARANTEED)
    if other is not None and other.is_over:
        job.record.forget(job.slurm.pairs)
    return code


class _Binding:
    """Lets the other twin start on the nodes of this one only. Asks ever less often."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pause = 1.0

    def __call__(self) -> float | None:
        twins = self._job.slurm.twins(self._job.pair)
        other = (twins or {}).get(GUARANTEED)
        if twins is not None and (other is None or other.is_over):
            return None
        if other is not None and other.waits and self._job.slurm.bind(other.job, self._job.nodes):
            return None
        self._pause = min(2 * self._pause, _LOOK)
        return self._pause


def as_guaranteed(job: Job) -> int:
    """Run the script, or hold the devices for the twin that runs it in a seat on them."""
    owner = job.record.claim(GUARANTEED)
    while True:
        twins = job.slurm.twins(job.pair)
        other = (twins or {}).get(OPPORTUNISTIC)
        step = step_of_guaranteed(owner, other, answered=twins is not None)
        if step is Step.RUN:
            return _run_alone(job)
        if step is Step.LEAVE:
            code = exit_code_of(job.record.ended(), other)
            say(f"the script has run in the twin's seat; it ended with {code}")
            job.record.forget(job.slurm.pairs)
            return code
        if step is Step.TAKE:
            assert other is not None
            owner = _take(job, other.job)
        elif step is Step.HOLD:
            assert other is not None
            code_now = _hold(job, other.job)
            if code_now is not None:
                return code_now
        if step is not Step.HOLD and owner != GUARANTEED:
            job.sleep(_GLANCE)


def _run_alone(job: Job) -> int:
    twins = job.slurm.twins(job.pair) or {}
    other = twins.get(OPPORTUNISTIC)
    # It may have started by now: then it finds whose the script is, and ends by itself.
    if other is not None and other.waits:
        job.slurm.cancel_waiting(other.job)
    code = job.run(GUARANTEED, lambda: None)
    other = (job.slurm.twins(job.pair) or {}).get(OPPORTUNISTIC)
    if other is not None and other.is_over:
        job.record.forget(job.slurm.pairs)
    return code


def _take(job: Job, other: int) -> str:
    """Make the script this one's if the other twin can be kept from starting again.

    `scancel` looks first and cancels then; a job that is held is one that Slurm itself keeps from
    starting in between.
    """
    if not job.slurm.hold(other):
        return OPPORTUNISTIC
    now = (job.slurm.twins(job.pair) or {}).get(OPPORTUNISTIC)
    if now is None or not now.waits:  # it has started: it is not to stay held for a next time
        job.slurm.release(other)
        return OPPORTUNISTIC
    job.record.take()  # before it is gone: who dies in between runs the script when it is requeued
    job.slurm.cancel(other)
    say(f"job {other} was requeued, and this one runs the script from its beginning")
    return GUARANTEED


def _hold(job: Job, other: int) -> int | None:
    """Hold the devices until the other twin has ended or is requeued; return a code to leave with
    at once."""
    given, used = job.slurm.devices(job.job, "gpu"), job.slurm.devices(other, "seat")
    if not given or not used:  # Slurm is silent, or has them not on its nodes yet
        job.sleep(_GLANCE)
        return None
    if not covers(given, used):
        return _try_again(job, other, given, used)
    say(f"job {other} runs the script; its devices are held for it")
    try:
        with ending():
            while True:
                job.tell_all(other, GUARANTEED, sorted(used))
                slept = 0.0
                while slept < _LOOK and job.record.ended() is None:
                    job.sleep(_GLANCE)
                    slept += _GLANCE
                twins = job.slurm.twins(job.pair)
                now = (twins or {}).get(OPPORTUNISTIC)
                if twins is None:
                    job.sleep(_GLANCE)
                elif now is None or now.is_over or now.waits or now.ends:
                    return None
                elif job.record.ended() is not None:
                    job.sleep(_GLANCE)  # its last moments
    except Ended:
        say(f"job {other} goes on as an opportunistic one")
        job.tell_all(other, OPPORTUNISTIC, sorted(used))
        return 128 + signal.SIGTERM


def _try_again(
    job: Job, other: int, given: dict[str, set[int]], used: dict[str, set[int]]
) -> int | None:
    """Give the devices back and queue for others, as far as Slurm lets a job be requeued."""
    say(f"Slurm gave {_words(given)}, and job {other} runs on {_words(used)}")
    done: Done = job.slurm.requeue(job.job)
    if done.code != 0:
        say(f"job {other} stays opportunistic: {done.problem}")
        return 0
    job.sleep(2 * _LOOK)  # Slurm ends this job meanwhile
    return None


def _words(devices: dict[str, set[int]]) -> str:
    return ", ".join(f"{node}:{sorted(numbers)}" for node, numbers in sorted(devices.items()))


def seats_of(slurm: Slurm, job: int, nodes: int) -> str | None:
    """Return the devices under a job's seats for CUDA_VISIBLE_DEVICES, where it needs them named.

    On several nodes one variable cannot say it; where Slurm hides other devices it need not.
    """
    devices = slurm.devices(job, "seat") if nodes == 1 else None
    numbers = sorted(next(iter(devices.values()), ())) if devices else []
    if not numbers or slurm.hides_devices():
        return None
    return ",".join(str(number) for number in numbers)


def main(argv: Sequence[str] | None = None) -> int:
    """Be a twin: CLASS PAIR SCRIPT WORDS...; or, on a further node of one: tell JOB CLASS."""
    stand_in_for_closed_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    environ = os.environ
    try:
        if len(words) == 3 and words[0] == "tell":
            print(*tell_here(int(words[1]), words[2]), sep="\n", end="")
            return 0
        if len(words) < 3 or words[0] not in (GUARANTEED, OPPORTUNISTIC):
            say("commensal-slurm-auto is started by Slurm, in jobs of sbatch --commensal=auto")
            return 2
        job_class, pair, script, *rest = words
        job, nodes = int(environ["SLURM_JOB_ID"]), environ["SLURM_JOB_NODELIST"]
        slurm, record = Slurm(), Record(Path.home(), pair)
        text = body_of(Path(script).read_bytes())

        def run(of: str, tick: Callable[[], float | None]) -> int:
            devices = None
            if of == OPPORTUNISTIC:
                devices = seats_of(slurm, job, int(environ.get("SLURM_JOB_NUM_NODES", "1")))
            settle_output(of)
            file = record.keep_script(text, of)
            return run_script([file, *rest], environ_for(of, environ, devices), tick)

        node = environ.get("SLURMD_NODENAME", "")
        twin = Job(pair, job, node, nodes, record, slurm, run, program=sys.argv[0])
        return as_guaranteed(twin) if job_class == GUARANTEED else as_opportunistic(twin)
    except (OSError, KeyError, ValueError) as error:
        say(f"--commensal=auto: nothing was run: {error!r}")
        return 1
