# SPDX-License-Identifier: Apache-2.0
"""The node coordinator as the command line sees it: ask it, change a job, start it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from commensal._place import where_listens
from commensal._terms import JobTerms

__all__ = [
    "Change",
    "Coordinator",
    "Refused",
    "Unreachable",
    "find_daemon",
    "find_program",
    "settled",
    "start_daemon",
]

_ANSWER = timedelta(seconds=5)
_START = timedelta(seconds=2)
_PROBE = timedelta(milliseconds=500)
_RUNS_ALREADY = "ended with code 3: "  # of a program that another start has come before


class Unreachable(Exception):
    """No coordinator answers; the message says on which socket."""


class Refused(Exception):
    """The coordinator answered with an error; the message is its reason."""


@dataclass(frozen=True)
class Change:
    """What a coordinator did with a request."""

    job_id: str
    revision: int
    outcome: str  # applied, deferred, stale or refused
    reason: str


@dataclass(frozen=True)
class Coordinator:
    """Names one coordinator of this machine by its instance and its folder."""

    instance: str
    runtime_dir: Path

    @property
    def socket_path(self) -> Path:
        """Where it listens now: asked each time, as it may have moved (_place.py)."""
        return where_listens(self.runtime_dir, self.instance) / f"{self.instance}.sock"

    @property
    def log_path(self) -> Path:
        return where_listens(self.runtime_dir, self.instance) / f"{self.instance}.log"

    def listens(self, patience: timedelta = _PROBE) -> bool:
        """Return whether a process listens on the socket; does not ask it anything."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(patience.total_seconds())
                probe.connect(str(self.socket_path))
        except OSError:
            return False
        return True

    def status(self, job: str = "", timeout: timedelta = _ANSWER) -> dict[str, Any]:
        """Return the object of `commensal status --json` (docs/stats.md).

        @raises Unreachable, Refused (an unknown job).
        """
        from commensal import _core

        try:
            text = _core.control_status(str(self.socket_path), job, _milliseconds(timeout))
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except _core.CoordinatorError as error:
            raise Refused(str(error)) from error
        return cast("dict[str, Any]", json.loads(text))

    def memory_map(self, job: str, pid: int | None = None) -> dict[str, Any]:
        """Return where the memory of a job's process lies (docs/stats.md, "memory map").

        The process itself answers, and says nothing while it is stopped. @raises Unreachable,
        Refused (an unknown job or process).
        """
        from commensal import _core

        try:
            text = _core.control_map(str(self.socket_path), job, pid, _milliseconds(_ANSWER))
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except _core.CoordinatorError as error:
            raise Refused(str(error)) from error
        return cast("dict[str, Any]", json.loads(text))

    def explain(self, job: str, seconds: float, *, series: bool = False) -> dict[str, Any]:
        """Return what happened to a job within the last seconds (docs/stats.md, "explain").

        `series` adds a sample a second of every job. @raises Unreachable, Refused.
        """
        from commensal import _core

        try:
            text = _core.control_explain(
                str(self.socket_path), job, seconds, series, _milliseconds(_ANSWER)
            )
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except _core.CoordinatorError as error:
            raise Refused(str(error)) from error
        return cast("dict[str, Any]", json.loads(text))

    def set(
        self,
        job: str,
        *,
        terms: JobTerms | None = None,
        paused: bool | None = None,
        job_class: str | None = None,
    ) -> Change:
        """Ask for a change of a job. @raises Unreachable, Refused."""
        from commensal import _core

        try:
            return Change(
                *_core.control_set(
                    str(self.socket_path),
                    job,
                    _milliseconds(_ANSWER),
                    terms={} if terms is None else terms.to_core(),
                    paused=paused,
                    job_class=job_class,
                )
            )
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except _core.CoordinatorError as error:
            raise Refused(str(error)) from error

    def ensure_running(self) -> str:
        """Start the daemon unless one listens. Returns why there is none; empty: there is one.

        Never raises: a job runs without a coordinator, too.
        """
        if self.listens():
            return ""
        daemon = find_daemon()
        if daemon is None:
            return "commensald is not installed beside this command"
        options = ["--instance", self.instance, "--runtime-dir", str(self.runtime_dir)]
        reason = start_daemon([str(daemon), *options], self.log_path)
        return settled(reason, self.listens)


def start_daemon(command: Sequence[str], log: Path) -> str:
    """Start a program that detaches itself. Returns why it did not; empty: it is ready."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
    try:
        with tempfile.TemporaryFile() as errors:
            # Detached: no descriptor of ours, so that a pipe on `run` ends with the job.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                close_fds=True,
                start_new_session=True,
                env=environ,
            )
            code = process.wait(_START.total_seconds())
            errors.seek(0)
            said = errors.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"cannot start {command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        return f"{command[0]} did not get ready within {_START.total_seconds():.0f} s"
    if code == 0:
        return ""
    where = f", see {log}" if log.exists() else ""
    reason = next((line for line in reversed(said) if line), "no reason given")
    reason = reason.removeprefix(f"{Path(command[0]).name}: ")
    return f"{command[0]} ended with code {code}: {reason}{where}"


def settled(reason: str, listens: Callable[[], bool]) -> str:
    """Return why no coordinator runs after a start ended with `reason`; empty: one listens.

    Another start may have been quicker: then its coordinator is about to listen.
    """
    deadline = time.monotonic() + _START.total_seconds()
    while not listens():
        if _RUNS_ALREADY not in reason or time.monotonic() > deadline:
            return reason
        time.sleep(0.02)
    return ""


def find_daemon() -> Path | None:
    """Return commensald, if it is installed."""
    return find_program("commensald")


def find_program(name: str) -> Path | None:
    """Return a program of ours: the one beside this command, of this Python, or on the PATH."""
    for folder in (Path(sys.argv[0]).parent, Path(sys.prefix) / "bin"):
        candidate = folder / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    found = shutil.which(name)
    return Path(found) if found else None


def _milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))
