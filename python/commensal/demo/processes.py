# SPDX-License-Identifier: Apache-2.0
"""Starts the demo's processes: the two example scripts, plain or under commensal, and a daemon.

They end with the demo, whatever ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from commensal import _core
from commensal._lifetime import killed_with_us
from commensal.demo.runs import CpuSample, Event, JobRecord, Step, read_log

__all__ = ["Daemon", "DemoError", "Job", "examples_folder", "plain_environment"]

INSTANCE = "demo"
# A machine that is busy with something else must not end a demo.
ANSWER_MS = 20_000


class DemoError(RuntimeError):
    """The demo cannot go on, or one of its checks failed; the message is one sentence."""


def examples_folder() -> Path:
    """Return where the example scripts are: beside this package, or in the source tree.

    Raises:
        DemoError: they are in neither place.
    """
    here = Path(__file__).resolve()
    places = [here.parent / "examples", here.parents[3] / "examples"]
    for place in places:
        if (place / "digits_cnn.py").exists():
            return place
    raise DemoError(f"no example scripts in {' or '.join(str(place) for place in places)}")


def program(name: str) -> str:
    """Return a program that was installed together with this interpreter, or is on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or str(beside)


def plain_environment() -> dict[str, str]:
    """Return this environment without anything that would make a script a job of ours."""
    return {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}


class Job:
    """One run of an example script; its output goes to a file in `folder`.

    Leaving the `with` block ends the process if it still runs.
    """

    def __init__(
        self,
        name: str,
        script: Sequence[str],
        folder: Path,
        *,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log.jsonl"
        self.result = folder / f"{name}.result.json"
        self.output = folder / f"{name}.out"
        self._steps: list[Step] = []
        self._events: list[Event] = []
        self._position = 0
        folder.mkdir(parents=True, exist_ok=True)
        for old in (self.log, self.result, self.output):
            old.unlink(missing_ok=True)
        command = [*launcher, sys.executable, *script]
        command += ["--log", str(self.log), "--result", str(self.result)]
        given = plain_environment() if environment is None else environment
        # What a script leaves behind when it is killed lies in our folder, too.
        self._process = start(command, {**given, "TMPDIR": str(folder)}, self.output)

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end_process(self._process)

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def steps(self) -> Sequence[Step]:
        """Return the steps that the script has logged so far; reads only what is new."""
        self._read_on()
        return self._steps

    def steps_done(self) -> int:
        return len(self.steps())

    def events(self) -> Sequence[Event]:
        """Return the events that the script has logged so far."""
        self._read_on()
        return self._events

    def _read_on(self) -> None:
        with contextlib.suppress(FileNotFoundError), self.log.open() as log:
            log.seek(self._position)
            steps, events, self._position = read_log(log)
            self._steps += steps
            self._events += events

    def stop(self) -> JobRecord:
        """End the job if it still runs, and return the steps it did: there may be no result."""
        if not self.running():
            return self.record()
        end_process(self._process)
        return JobRecord(steps=tuple(self.steps()), events=tuple(self.events()))

    def record(self, stats: Mapping[str, object] | None = None) -> JobRecord:
        """Wait for the job's end and return what the script wrote.

        Raises:
            DemoError: it failed; the message has the end of its output.
        """
        code = self._process.wait()
        if code != 0 or not self.result.exists():
            tail = self.output.read_text(errors="replace")[-2000:]
            raise DemoError(f"the {self.name} job ended with exit code {code}:\n{tail}")
        return JobRecord(
            steps=tuple(self.steps()),
            events=tuple(self.events()),
            sha256=json.loads(self.result.read_text())["sha256"],
            stats=stats or {},
        )


def start(
    command: Sequence[str], environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start a process that is killed when this one ends; its output goes to a file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            # Two system calls, which need no lock that another thread of ours may hold.
            preexec_fn=killed_with_us(),  # noqa: PLW1509
        )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and kill it if it does not within five seconds."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@dataclass
class Daemon:
    """The demo's own node coordinator, in a folder of its own.

    What it divides is a GPU's memory, contexts and all, or the host's as far as it is managed.
    """

    runtime_dir: Path
    budget_bytes: int
    on_gpu: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def __enter__(self) -> Daemon:
        self.runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [program("commensald"), "--instance", INSTANCE, "--foreground"]
        command += ["--runtime-dir", str(self.runtime_dir)]
        budget = "--gpu-memory-budget" if self.on_gpu else "--memory-budget"
        command += [budget, f"{self.budget_bytes}"]
        self._process = start(command, plain_environment(), self.runtime_dir / "daemon.out")
        deadline = time.monotonic() + 10.0
        while True:
            try:
                self.status()
                return self
            except ConnectionError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    end_process(self._process)
                    tail = (self.runtime_dir / "daemon.out").read_text(errors="replace")[-1000:]
                    raise DemoError(f"commensald did not start: {error}\n{tail}") from error
                time.sleep(0.05)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            end_process(self._process)

    @property
    def socket(self) -> str:
        return str(self.runtime_dir / f"{INSTANCE}.sock")

    def environment(self) -> dict[str, str]:
        """Return the environment of jobs that belong to this daemon."""
        elastic = {"COMMENSAL_GPU_MEMORY": "elastic"} if self.on_gpu else {}
        return {
            **plain_environment(),
            **elastic,
            "COMMENSAL_INSTANCE": INSTANCE,
            "COMMENSAL_RUNTIME_DIR": str(self.runtime_dir),
        }

    def launcher(self, job_class: str, name: str, *options: str) -> list[str]:
        """Return the command that goes before a script to run it under commensal."""
        return [program("commensal"), "run", f"--{job_class}", "--name", name, *options, "--"]

    def status(self) -> dict[str, object]:
        """Return what `commensal status --json` prints."""
        answer = json.loads(_core.control_status(self.socket, "", ANSWER_MS))
        if not isinstance(answer, dict):
            raise DemoError(f"the coordinator's status is no object: {answer!r}")
        return answer

    def set_memory(self, job: str, max_bytes: int) -> None:
        """Do what `commensal set JOB --memory` does.

        Raises:
            DemoError: the coordinator refused.
        """
        try:
            _, _, outcome, reason = _core.control_set(
                self.socket,
                job,
                ANSWER_MS,
                terms={"memory": (0, max_bytes)},
                paused=None,
                job_class=None,
            )
        except _core.CoordinatorError as error:
            outcome, reason = "refused", str(error)
        if outcome == "refused":
            raise DemoError(f"setting {job} to {max_bytes} bytes was refused: {reason}")


def children(pid: int) -> Iterator[int]:
    """Yield a process and everything below it."""
    yield pid
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                listed = Path(f"/proc/{pid}/task/{task}/children").read_text()
                for child in listed.split():
                    yield from children(int(child))


class CpuSampler:
    """Reads, every few milliseconds, how long a job's threads ran: the kernel's own count."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._files = {
            job: [
                path
                for pid in children(root)
                for path in Path(f"/proc/{pid}/task").glob("*/schedstat")
            ]
            for job, root in pids.items()
        }

    def run(self, seconds: float, period: float = 0.004) -> tuple[CpuSample, ...]:
        """Sample for a while, in the calling thread."""
        samples: list[CpuSample] = []
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            for job, paths in self._files.items():
                total = 0
                for path in paths:
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        total += int(path.read_text().split()[0])
                samples.append(CpuSample(now, job, total / 1e9))
            time.sleep(period)
        return tuple(samples)
