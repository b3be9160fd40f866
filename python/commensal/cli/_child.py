# SPDX-License-Identifier: Apache-2.0
"""Runs the script as a child that notices nothing: same descriptors, terminal, signals, end.

The child stays in our process group, so the terminal's own signals (Ctrl-C, Ctrl-Z) reach it
directly; those the kernel marks as its own and we do not repeat them. What a process sends to us
alone is passed on. Should we be killed, the child is killed with us, as if it were in our place.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

__all__ = ["CANNOT_EXECUTE", "NOT_FOUND", "CannotStart", "end_like", "may_renice", "run_child"]

NOT_FOUND = 127
CANNOT_EXECUTE = 126

_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_FROM_KERNEL = 0x80  # SI_KERNEL: a key of the terminal, which went to the whole group
_PR_SET_PDEATHSIG = 1
_CAP_SYS_NICE = 23


class CannotStart(Exception):
    """The command could not be started; `code` is the shell's exit code for that."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run_child(command: Sequence[str], environ: Mapping[str, str], *, idle_class: bool) -> int:
    """Run a command to its end; return its exit code, or -n if signal n ended it.

    `idle_class` starts it in the kernel's idle class where that is allowed.

    @raises CannotStart.
    """
    # A signal that our starter ignores (nohup) is ignored by the child too: nothing to pass on.
    waited = {s for s in _FORWARDED if signal.getsignal(s) is not signal.SIG_IGN}
    old_child_action = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waited.add(signal.SIGCHLD)
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    try:
        child = _start(command, environ, _prepare(old_mask, old_child_action, idle_class))
        return _attend(child, waited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
        signal.signal(signal.SIGCHLD, old_child_action)


def _start(
    command: Sequence[str], environ: Mapping[str, str], prepare: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            list(command),
            env=dict(environ),
            close_fds=False,
            preexec_fn=prepare,  # noqa: PLW1509  (this process has one thread)
        )
    except FileNotFoundError:
        raise CannotStart(f"command not found: {command[0]}", NOT_FOUND) from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in an argument
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CannotStart(f"cannot execute {command[0]}: {reason}", CANNOT_EXECUTE) from None


def _prepare(
    mask: set[signal.Signals] | set[int], child_action: object, idle_class: bool
) -> Callable[[], None]:
    """Return what the child does between fork and exec."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl
    ignored_children = child_action is signal.SIG_IGN

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(CANNOT_EXECUTE)
        if idle_class:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        if ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    return prepare


def _attend(child: subprocess.Popen[bytes], waited: set[signal.Signals]) -> int:
    """Pass signals on until the child ends."""
    while (code := child.poll()) is None:
        received = signal.sigwaitinfo(waited)
        number = received.si_signo
        if number == signal.SIGCHLD:
            continue
        if received.si_code != _FROM_KERNEL or number == signal.SIGCONT:
            child.send_signal(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)
    while signal.sigtimedwait(waited, 0) is not None:
        pass  # what arrived together with the child's end has done its work
    return code


def may_renice() -> bool:
    """Return whether this process may enter the idle class and leave it again (CAP_SYS_NICE)."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)


def end_like(code: int) -> NoReturn:
    """End this process as the child ended: with its code, or by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):  # KILL and STOP have no action to set
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
        code = 128 - code  # a signal that ends nobody
    sys.exit(code)
