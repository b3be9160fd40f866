# SPDX-License-Identifier: Apache-2.0
"""Several policies on one trace, each in a process of its own, as many at a time as cores.

Nothing is left behind when one of them fails or the user ends it: what the processes write goes to
a temporary folder first.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, cast

from commensal.simulation.program import failure

__all__ = ["Interrupted", "Runs", "write_whole"]

LOOK_SECONDS = 0.2
GRACE_SECONDS = 5.0  # to end after SIGTERM

Heard = Callable[[int, int], None]
"""Told how many jobs have ended, of how many, over all runs."""


class Interrupted(Exception):
    """The user ended it by a signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass
class _Run:
    """A process that runs, and what it has said."""

    policy: str
    process: subprocess.Popen[bytes]
    ended: int = 0
    jobs: int = 0
    said: list[str] = field(default_factory=list)
    rest: bytes = b""

    def hear(self, text: bytes) -> None:
        """Take what came on stderr: lines of progress, and others, which are trouble."""
        *lines, self.rest = (self.rest + text).split(b"\n")
        for line in lines:
            if line.startswith(b"{"):
                progress = json.loads(line)
                self.ended, self.jobs = progress["ended"], progress["jobs"]
            else:
                self.said.append(line.decode(errors="replace"))


@dataclass(frozen=True)
class Runs:
    """What is to be run. `arguments` are the same for all policies."""

    program: Path
    policies: Sequence[str]
    arguments: Sequence[str]
    jobs_out: Path | None = None

    def run(self, heard: Heard = lambda _ended, _jobs: None) -> dict[str, Any]:
        """Run all policies; return the object of --json, results in the order of the policies.

        Raises BadInput or SimulatorFailed for the first that fails, and Interrupted for SIGINT and
        SIGTERM; all processes have ended then, and nothing was written.
        """
        with (
            tempfile.TemporaryDirectory(prefix="commensal-simulate-") as name,
            _signals() as caught,
        ):
            folder = Path(name)
            self._run_all(folder, heard, caught)
            answers = [json.loads(self._answer(folder, p).read_bytes()) for p in self.policies]
            together: dict[str, Any] = answers[0]
            together["results"] = [answer["results"][0] for answer in answers]
            if self.jobs_out is not None:
                tables = [self._jobs(folder, policy).read_text() for policy in self.policies]
                write_whole(self.jobs_out, _joined(tables))
            return together

    def _run_all(self, folder: Path, heard: Heard, caught: _Caught) -> None:
        waiting = list(self.policies)
        running: list[_Run] = []
        done: list[_Run] = []
        most = max(1, len(os.sched_getaffinity(0)))
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or running:
                    caught.check()
                    while waiting and len(running) < most:
                        running.append(self._start(waiting.pop(0), folder, selector))
                    for key, _ in selector.select(LOOK_SECONDS):
                        run: _Run = key.data
                        text = os.read(key.fd, 65536)
                        run.hear(text)
                        if not text:
                            selector.unregister(key.fd)
                            running.remove(run)
                            _finish(run)
                            done.append(run)
                    _tell(heard, [*done, *running], len(waiting))
            finally:
                _end(running)

    def _start(self, policy: str, folder: Path, selector: selectors.BaseSelector) -> _Run:
        command: list[str | Path] = [
            self.program,
            *self.arguments,
            "--policy",
            policy,
            "--progress",
        ]
        if self.jobs_out is not None:
            command += ["--jobs-out", str(self._jobs(folder, policy))]
        with self._answer(folder, policy).open("wb") as answer:
            # A session of its own: Ctrl-C comes to us, and we end them.
            process = subprocess.Popen(
                command, stdout=answer, stderr=subprocess.PIPE, start_new_session=True
            )
        run = _Run(policy, process)
        assert process.stderr is not None
        selector.register(process.stderr, selectors.EVENT_READ, run)
        return run

    def _answer(self, folder: Path, policy: str) -> Path:
        return folder / f"{self.policies.index(policy)}.json"

    def _jobs(self, folder: Path, policy: str) -> Path:
        return folder / f"{self.policies.index(policy)}.csv"


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its place and rename it: it is whole, or as it was."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _joined(tables: Sequence[str]) -> str:
    """Return one table of several with the same heading."""
    rows = [table.split("\n", 1)[1] for table in tables]
    return tables[0].split("\n", 1)[0] + "\n" + "".join(rows)


def _finish(run: _Run) -> None:
    code = run.process.wait()
    cast("Any", run.process.stderr).close()
    if code != 0:
        raise failure(code, "\n".join([*run.said, run.rest.decode(errors="replace")]))
    run.ended = run.jobs


def _tell(heard: Heard, runs: Sequence[_Run], waiting: int) -> None:
    """Say how far all are; the jobs are known once one has told them."""
    jobs = max((run.jobs for run in runs), default=0)
    heard(sum(run.ended for run in runs), jobs * (len(runs) + waiting))


def _end(running: Sequence[_Run]) -> None:
    for run in running:
        run.process.terminate()
    for run in running:
        try:
            run.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()
        cast("Any", run.process.stderr).close()


class _Caught:
    """Signals that came, looked at where nothing is lost: a process that has just been started is
    known by then."""

    def __init__(self) -> None:
        self.signum = 0

    def check(self) -> None:
        """Raise Interrupted if a signal came."""
        if self.signum:
            raise Interrupted(self.signum)


@contextmanager
def _signals() -> Iterator[_Caught]:
    """Catch SIGINT and SIGTERM."""
    caught = _Caught()

    def catch(signum: int, _frame: FrameType | None) -> None:
        caught.signum = signum

    before = {s: signal.signal(s, catch) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
