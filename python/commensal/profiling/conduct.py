# SPDX-License-Identifier: Apache-2.0
"""Runs one script alone, as a guaranteed job with a coordinator of its own, and watches it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal._environment import JobSettings, new_job_id
from commensal._lifetime import temporary_folder
from commensal._report.quiet import QuietGuard, Usage, verdict_between
from commensal._say import say
from commensal._terms import JobTerms
from commensal.profiling.analysis import WARM_UP_STEPS, Analysis, Samples, TooLittle, analyse
from commensal.profiling.clocks import TreeClock
from commensal.profiling.job_page import JobPage, activity_of, find_job_page
from commensal.profiling.report import Profile
from commensal.profiling.touched import TouchWindows

__all__ = ["SAMPLE_SECONDS", "CannotRun", "Limits", "run_profile"]

SAMPLE_SECONDS = 0.003
LOOK_SECONDS = 0.25
# Of samples: an hour. What comes later is not looked at.
MOST_SAMPLES = 1_200_000
# With --seconds, a script has so long to make its first steps before it is ended without.
START_SECONDS = 60.0
END_SECONDS = 10.0
_ENDED = frozenset({signal.SIGTERM, signal.SIGHUP})


class CannotRun(Exception):
    """The command could not be started; `code` is the shell's exit code for that."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Limits:
    """When to end the script; None: it ends itself. Both count from the end of its warm-up."""

    seconds: float | None = None
    steps: int | None = None


@dataclass
class _Seen:
    """What the two watching threads share. Each field has one writer."""

    clock: TreeClock
    samples: Samples = field(default_factory=Samples)  # the sampler's
    page: JobPage | None = None  # the others are the looker's
    pid: int = 0  # of the process that has the page
    trained: Usage | None = None  # the machine's use when the warm-up ended
    windows: TouchWindows | None = None


def run_profile(command: Sequence[str], name: str, limits: Limits) -> Profile:
    """Run a script until it or a limit ends it, and return what was seen.

    The script has this process's stdin, stdout, stderr and process group.

    @raises CannotRun.
    """

    def coordinator_in(folder: Path) -> Coordinator:
        return Coordinator("profile", folder / "run")

    def stop(folder: Path) -> None:  # if we were killed: the script goes on without
        _stop(coordinator_in(folder))

    with temporary_folder("commensal-profile-", before_removal=stop) as folder:
        coordinator = coordinator_in(folder)
        if reason := coordinator.ensure_running():
            say(f"no coordinator for the profile, the job runs on its own limits: {reason}")
        settings = JobSettings(
            job_id=new_job_id(name),
            name=name,
            job_class="guaranteed",
            terms=JobTerms(idle_class=False),
            instance=coordinator.instance,
            runtime_dir=coordinator.runtime_dir,
            quiet=True,
        )
        try:
            return _watched(command, settings, coordinator, limits)
        finally:
            _stop(coordinator)


def _watched(
    command: Sequence[str], settings: JobSettings, coordinator: Coordinator, limits: Limits
) -> Profile:
    guard, before = QuietGuard(), QuietGuard().usage()
    launched_ns = time.monotonic_ns()
    script = _start(command, settings)
    seen = _Seen(TreeClock(script.pid))
    seen.clock.look()
    done = threading.Event()
    looker = threading.Thread(target=_look_on, args=(seen, guard, done), name="looker")
    with _passing_on(script):
        looker.start()
        try:
            ended_by = _sample(script, seen, limits, launched_ns)
        finally:
            if script.poll() is None:
                _end(script, seen.clock)
            done.set()
            looker.join()
    verdict = verdict_between(seen.trained or before, guard.usage())
    cores = float(len(os.sched_getaffinity(0)))
    analysis, reason = _analyse(seen, cores, launched_ns)
    windows = seen.windows
    return Profile(
        name=settings.name,
        command=tuple(command),
        exit_code=0 if ended_by != "itself" else _exit_code(script.returncode),
        ended_by=ended_by,
        cores=cores,
        outside_share=verdict.outside_share,
        steal_share=verdict.steal_share,
        sample_seconds=SAMPLE_SECONDS,
        analysis=analysis,
        reason=reason,
        touched=tuple(windows.found) if windows else (),
        touched_problem=windows.problem if windows else "",
        memory=_last_memory(coordinator, settings.job_id),
    )


def _start(command: Sequence[str], settings: JobSettings) -> subprocess.Popen[bytes]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
    kept = {k: v for k, v in os.environ.items() if k == "COMMENSAL_SPILL_DIR"}
    try:
        return subprocess.Popen(list(command), env=inherited | settings.to_environ() | kept)
    except (FileNotFoundError, NotADirectoryError):
        raise CannotRun(f"command not found: {command[0]}", 127) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotRun(f"cannot execute {command[0]}: {reason}", 126) from None


@contextlib.contextmanager
def _passing_on(script: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let the script decide what a signal means. The terminal's Ctrl-C reaches it by itself."""

    def stay(_number: int, _frame: FrameType | None) -> None:
        return

    def pass_on(number: int, _frame: FrameType | None) -> None:
        script.send_signal(number)

    handlers = {signal.SIGINT: stay, **dict.fromkeys(_ENDED, pass_on)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _sample(script: subprocess.Popen[bytes], seen: _Seen, limits: Limits, launched_ns: int) -> str:
    """Sample until the script ends or a limit is reached; return what ended it."""
    pidfd = os.pidfd_open(script.pid)
    samples = seen.samples
    trained_ns = 0  # when the warm-up ended
    next_ns = time.monotonic_ns()
    try:
        while True:
            now = time.monotonic_ns()
            page = seen.page
            steps = page.step_number if page else 0
            if len(samples) < MOST_SAMPLES:
                samples.add(now, seen.clock.read(), activity_of(page), steps)
            if steps > WARM_UP_STEPS and not trained_ns:
                trained_ns = now
            if reached := _reached(limits, now, steps, trained_ns, launched_ns):
                return reached
            next_ns = max(next_ns + int(SAMPLE_SECONDS * 1e9), now)
            if select.select([pidfd], [], [], (next_ns - now) / 1e9)[0]:
                script.wait()
                return "itself"
    finally:
        os.close(pidfd)


def _reached(limits: Limits, now: int, steps: int, trained_ns: int, launched_ns: int) -> str:
    """Return the option that ends the script now; empty: none does."""
    if limits.steps is not None and steps > WARM_UP_STEPS + limits.steps:
        return "--steps"
    if limits.seconds is None:
        return ""
    if trained_ns:
        return "--seconds" if now - trained_ns >= limits.seconds * 1e9 else ""
    late = (now - launched_ns) / 1e9 >= START_SECONDS + limits.seconds
    return "--seconds" if late else ""


def _look_on(seen: _Seen, guard: QuietGuard, done: threading.Event) -> None:
    """Find the job's processes and its page, and look at its memory, now and then."""
    while not done.wait(LOOK_SECONDS):
        seen.clock.look()
        if seen.page is None or seen.page.step_number == 0:
            _find_page(seen)
        page = seen.page
        if page is None or page.step_number <= WARM_UP_STEPS:
            continue
        if seen.trained is None:
            seen.trained = guard.usage()
            seen.windows = TouchWindows(seen.pid, page)
        if seen.windows is not None:
            seen.windows.look(time.monotonic())


def _find_page(seen: _Seen) -> None:
    """Find the page of the process that has made most steps."""
    pages = {pid: page for pid in seen.clock.pids if (page := find_job_page(pid)) is not None}
    if pages:
        seen.pid = max(pages, key=lambda pid: pages[pid].step_number)
        seen.page = pages[seen.pid]


def _end(script: subprocess.Popen[bytes], clock: TreeClock) -> None:
    script.terminate()
    try:
        script.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        clock.look()
        for pid in clock.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        script.wait()


def _analyse(seen: _Seen, cores: float, launched_ns: int) -> tuple[Analysis | None, str]:
    if seen.page is None:
        return None, "the script did not import PyTorch in a Python that has commensal"
    try:
        return analyse(seen.samples, cores, launched_ns), ""
    except TooLittle as error:
        return None, str(error)


def _last_memory(coordinator: Coordinator, job_id: str) -> dict[str, Any]:
    try:
        jobs = coordinator.status(job_id)["jobs"] if coordinator.listens() else []
    except (Unreachable, Refused):
        return {}
    return dict(jobs[0]["memory"]) if jobs else {}


def _stop(coordinator: Coordinator) -> None:
    """End the profile's own coordinator."""
    if not coordinator.listens():
        return
    with contextlib.suppress(Unreachable, Refused, ProcessLookupError):
        pid = int(coordinator.status()["coordinator"]["pid"])
        pidfd = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            select.select([pidfd], [], [], END_SECONDS)
        finally:
            os.close(pidfd)


def _exit_code(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned
