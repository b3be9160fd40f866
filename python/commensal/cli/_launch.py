# SPDX-License-Identifier: Apache-2.0
"""Turns `commensal run` into the script.

The script takes the place of this process: same pid, descriptors, terminal, process group. So
signals, job control and the exit code are the script's own, with nothing in between to pass on.
What is left to do after its end, a watcher does (_lifetime.py).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from commensal._say import flush_streams

__all__ = ["CANNOT_EXECUTE", "NOT_FOUND", "CannotStart", "become", "may_renice"]

NOT_FOUND = 127
CANNOT_EXECUTE = 126

_CAP_SYS_NICE = 23
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
    flush_streams()
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


def may_renice() -> bool:
    """Return whether this process may enter the idle class and leave it again (CAP_SYS_NICE)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)
