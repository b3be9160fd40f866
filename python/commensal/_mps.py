# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Multi-Process Service (MPS): whether one runs here, and who uses it.

Its daemon is the operator's to start. A process becomes a client when CUDA starts in it and a
daemon answers in its pipe directory; where none does, CUDA goes on without MPS. So a process is
kept out by a pipe directory in which nothing answers.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from commensal._environment import JobClass

__all__ = ["Daemon", "Plan", "find_daemon", "held_share", "plan_use"]

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
THREAD_PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CLIENT_PRIORITY = "CUDA_MPS_CLIENT_PRIORITY"
BELOW_NORMAL = "1"

_DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
_PID_FILE = "nvidia-cuda-mps-control.pid"
_PROGRAM = "nvidia-cuda-mps"  # as /proc/PID/comm cuts it


@dataclass(frozen=True)
class Daemon:
    """The control daemon of a pipe directory, or why there is none."""

    folder: Path
    pid: int | None
    reason: str = ""


def find_daemon(environ: Mapping[str, str], processes: Path = Path("/proc")) -> Daemon:
    """Look for the daemon that CUDA would ask in this environment. Asks it nothing."""
    folder = Path(environ.get(PIPE_DIRECTORY) or _DEFAULT_DIRECTORY)
    try:
        return Daemon(folder, _running(folder, processes))
    except FileNotFoundError as error:
        return Daemon(folder, None, f"no MPS control daemon: {error.filename} is missing")
    except OSError as error:
        return Daemon(folder, None, f"no MPS control daemon that this user may ask: {error}")
    except _NoDaemonError as error:
        return Daemon(folder, None, str(error))


class _NoDaemonError(Exception):
    """Says why what is in a pipe directory is no daemon."""


def _running(folder: Path, processes: Path) -> int:
    """Return the daemon's process. @raises OSError, _NoDaemonError."""
    mode = (folder / "control").stat().st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        raise _NoDaemonError(f"no MPS control daemon: {folder / 'control'} is no pipe")
    file = folder / _PID_FILE
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isascii() or not text.isdigit():
        raise _NoDaemonError(f"no MPS control daemon: {file} holds no process id: {text!r}")
    try:
        program = (processes / text / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        raise _NoDaemonError(
            f"the MPS control daemon has ended: there is no process {text}"
        ) from None
    if not program.startswith(_PROGRAM):
        raise _NoDaemonError(f"the MPS control daemon has ended: process {text} is {program!r}")
    return int(text)


@dataclass(frozen=True)
class Plan:
    """What a job's environment gets for MPS, and why."""

    variables: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    unmet: bool = False  # its user asked for MPS, and there is none


def plan_use(
    job_class: JobClass,
    wanted: bool | None,
    sm_share: float | None,
    daemon: Daemon,
    environ: Mapping[str, str],
    nowhere: Path,
) -> Plan:
    """Decide whether a job becomes a client of MPS. What its user has set stays.

    `wanted` None: opportunistic jobs do, guaranteed ones do not, because a fatal fault of any
    client ends all of them. `nowhere` is a folder where no daemon answers.
    """
    use = wanted if wanted is not None else job_class == "opportunistic"
    if daemon.pid is None:
        return Plan(reason=daemon.reason, unmet=wanted is True)
    if not use:
        why = "--no-mps" if wanted is False else "a guaranteed job's default"
        return Plan({PIPE_DIRECTORY: str(nowhere)}, f"kept out of MPS: {why}")
    variables = {}
    if job_class == "opportunistic":
        variables[CLIENT_PRIORITY] = BELOW_NORMAL
        if sm_share is not None and sm_share < 1.0:
            variables[THREAD_PERCENTAGE] = f"{100.0 * sm_share:.6g}"
    variables = {name: value for name, value in variables.items() if name not in environ}
    return Plan(variables, f"a client of MPS (control daemon {daemon.pid})")


def held_share(environ: Mapping[str, str], processes: Path = Path("/proc")) -> str:
    """Say that MPS bounds this process's multiprocessors; empty: it does not."""
    percentage = environ.get(THREAD_PERCENTAGE, "")
    if not percentage or find_daemon(environ, processes).pid is None:
        return ""
    return f"MPS holds it as long as the process lives: {THREAD_PERCENTAGE} is {percentage}"
