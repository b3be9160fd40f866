# SPDX-License-Identifier: Apache-2.0
"""Turns `commensal run` into the script, and leaves a watcher that outlives it.

The script takes the place of this process: same pid, descriptors, terminal, process group. So
signals, job control and the exit code are the script's own, with nothing in between to pass on.
What is left to do after its end, the watcher does: a process of its own session, which no signal
to the script's group or terminal reaches.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

__all__ = ["CANNOT_EXECUTE", "NOT_FOUND", "CannotStart", "become", "leave_watcher", "may_renice"]

NOT_FOUND = 127
CANNOT_EXECUTE = 126

_CAP_SYS_NICE = 23
_ABOVE_STANDARD = 3
# Python ignores these from its start; a program expects their default.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


class CannotStart(Exception):
    """The command could not be started; `code` is the shell's exit code for that."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def become(command: Sequence[str], environ: Mapping[str, str], *, idle_class: bool) -> NoReturn:
    """Replace this process by a command.

    `idle_class` starts it in the kernel's idle class where that is allowed.

    @raises CannotStart.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    scheduler = os.sched_getscheduler(0)
    if idle_class:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for number in _PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except (FileNotFoundError, NotADirectoryError):
        code, message = NOT_FOUND, f"command not found: {command[0]}"
    except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
        reason = error.strerror if isinstance(error, OSError) else str(error)
        code, message = CANNOT_EXECUTE, f"cannot execute {command[0]}: {reason}"
    if idle_class:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, scheduler, os.sched_param(0))
    raise CannotStart(message, code)


def leave_watcher(at_end: Callable[[], None]) -> None:
    """Call `at_end` in a detached process when this process, whatever it becomes, has ended.

    The watcher keeps stderr alone: a pipe on it closes when `at_end` is done.

    @raises OSError if there can be none.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    own = os.pidfd_open(os.getpid())
    # Clear of the numbers that the watcher's standard descriptors take.
    pidfd = fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
    os.close(own)
    child = os.fork()
    if child != 0:
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):  # our starter ignores SIGCHLD
            os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:  # nobody's child: the script finds no process that it did not start
            _let_go_except(pidfd)
            select.select([pidfd], [], [])
            at_end()
    finally:
        os._exit(0)


def _let_go_except(pidfd: int) -> None:
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    limit = os.sysconf("SC_OPEN_MAX")
    os.closerange(_ABOVE_STANDARD, pidfd)
    os.closerange(pidfd + 1, limit)


def may_renice() -> bool:
    """Return whether this process may enter the idle class and leave it again (CAP_SYS_NICE)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)
