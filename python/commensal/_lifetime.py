# SPDX-License-Identifier: Apache-2.0
"""Ties processes and folders to the end of this process, however it ends: kill -9 included."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from commensal._say import flush_streams

__all__ = ["killed_with_us", "leave_watcher", "temporary_folder"]

_ABOVE_STANDARD = 3
_PR_SET_PDEATHSIG = 1
_GONE_SECONDS = 10.0


def killed_with_us() -> Callable[[], None]:
    """Return what a child calls before it becomes its program: it is killed when we end.

    For `subprocess.Popen(preexec_fn=...)` in the main thread: the kernel watches the thread that
    started the child. What the child starts is not killed, but loses its parent.
    """
    import ctypes

    parent = os.getpid()
    libc = ctypes.CDLL(None, use_errno=True)  # here: the child should load nothing

    def tie() -> None:
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent:  # that was too late
            os._exit(1)

    return tie


@contextmanager
def temporary_folder(
    prefix: str, before_removal: Callable[[Path], None] | None = None
) -> Iterator[Path]:
    """Make a folder that is removed at the end of the block, or of this process.

    `before_removal` is only called in the second case, by the watcher that then removes the folder.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix))

    def clear() -> None:
        if not folder.is_dir():
            return
        if before_removal is not None:
            before_removal(folder)
        end = time.monotonic() + _GONE_SECONDS  # those who write there are just being killed
        while folder.is_dir() and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)

    try:
        with contextlib.suppress(OSError):  # no process to spare: then the block's end must do
            leave_watcher(clear)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def leave_watcher(at_end: Callable[[], None]) -> None:
    """Call `at_end` in a detached process when this process, whatever it becomes, has ended.

    The watcher has a session of its own: no signal to our group or terminal reaches it. It keeps
    stderr alone: a pipe on it closes when `at_end` is done.

    @raises OSError if there can be none.
    """
    flush_streams()
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
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise
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
