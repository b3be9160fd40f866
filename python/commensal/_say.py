# SPDX-License-Identifier: Apache-2.0
"""Our own lines: on stderr, marked as ours, and never anywhere else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys

__all__ = ["flush_streams", "say", "stand_in_for_closed_streams"]

_STDERR = 2


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_AT_START = _file_of(_STDERR)


def say(line: str) -> None:
    """Print one line of ours on stderr, whatever state stderr is in.

    Where there is none, or its number leads to another file by now, the line goes nowhere.
    """
    if sys.stderr is None:  # print would take stdout
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed: nobody to tell
        if _leads_elsewhere():
            return
        print(f"commensal: {line}", file=sys.stderr, flush=True)


def _leads_elsewhere() -> bool:
    """Return whether stderr's number has become a regular file that is not for messages.

    A program that closes its standard streams and opens a file gets their numbers for it. The same
    rule holds for lines from C++ (own_descriptors.h).
    """
    try:
        if sys.stderr.fileno() != _STDERR:
            return False
    except (OSError, ValueError, AttributeError):  # an object without a number, as in a notebook
        return False
    if _file_of(_STDERR) == _AT_START:
        return False
    flags = fcntl.fcntl(_STDERR, fcntl.F_GETFL)
    return stat.S_ISREG(os.fstat(_STDERR).st_mode) and not flags & os.O_APPEND


def flush_streams() -> None:
    """Write out what stdout and stderr hold; nobody may be there to take it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def stand_in_for_closed_streams() -> None:
    """Open the null device for each standard stream that this process was started without.

    Python sets such a stream to None, and the next file that is opened gets its number: what any
    library prints would go there. A program that this process starts still finds it closed, as it
    would alone: what is opened here is not inherited. For processes of ours alone.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if _file_of(number) is None:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if number == 0 else "w"))  # noqa: SIM115
