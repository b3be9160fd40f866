# SPDX-License-Identifier: Apache-2.0
"""Starts Python programs by a fork of a process that has imported PyTorch: 0.1 s in place of 3.

`start` starts commands as `subprocess.Popen` does, and forks for two kinds: `python SCRIPT ...` (or
`python -c CODE`) and `commensal run ...`, of which only the exec of another Python is left out;
other commands start sooner by themselves. To the program `import torch` is what it always is: it
calls the entry points of the group `torch.backends`, so commensal is activated there. The process
is a child of the caller's, with its own pid, streams, environment and working folder.

What differs from a fresh process: `/proc/PID/cmdline` and `/proc/PID/environ`; what a library reads
from its environment when it is loaded (variables of those kinds choose the process that is forked,
`_AT_START`, but one that `commensal run` sets itself comes too late); and the end, which runs
Python's exit handlers but not those of C. Tests that look at any of that have the marker
`fresh_process`, and COMMENSAL_FRESH_PROCESSES=1 starts all anew.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zygote import is_program

_COMMENSAL = str(Path(sys.executable).parent / "commensal")
# What is read when a program or a library begins.
_AT_START = (
    *("LD_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "GLIBC_", "LC_", "LANG"),
    *("PYTHON", "PYTORCH_", "TORCH_"),
)
_MOST = 4  # processes to fork from, at a time
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def start(
    command: Sequence[str], *, env: Mapping[str, str], fresh: bool = False, **options: Any
) -> subprocess.Popen[str]:
    """Start a command, by a fork where that is possible; `options` as of `subprocess.Popen`.

    `fresh`: as a new process in any case.
    """
    sanitized = "asan" in env.get("LD_PRELOAD", "")  # its runtime does not like to be forked
    fresh = fresh or sanitized or os.environ.get("COMMENSAL_FRESH_PROCESSES") == "1"
    begin = subprocess.Popen if fresh or not _can_fork(command) else _Forked
    return begin(list(command), env=env, text=True, **options)


def _can_fork(command: Sequence[str]) -> bool:
    if command[0] == sys.executable:
        return is_program(command)
    return list(command[:2]) == [_COMMENSAL, "run"]


class _Forked(subprocess.Popen[str]):
    """A process that was forked, with all that `subprocess.Popen` offers."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] = ".",
        start_new_session: bool = False,
        **streams: Any,
    ) -> None:
        self._request = {
            "command": list(command),
            "environ": dict(env),
            "folder": os.path.abspath(cwd),
            "session": start_new_session,
        }
        super().__init__(list(command), **streams)

    def _execute_child(self, *arguments: Any) -> None:
        # As subprocess.py calls it on POSIX in Python 3.10 to 3.14: after ten options come the six
        # ends of the pipes.
        pipes = arguments[10:16]
        theirs = [pipes[0], pipes[3], pipes[5]]
        streams = [number if end == -1 else end for number, end in enumerate(theirs)]
        try:
            with _lock:
                self.pid = _zygote_for(self._request["environ"]).fork(self._request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class _Zygote:
    """A process that has imported PyTorch, and waits to be forked (zygote.py)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        clean = {k: v for k, v in environ.items() if not k.startswith("COMMENSAL_")}
        clean["OPENBLAS_NUM_THREADS"] = "1"  # NumPy would start threads
        program = str(Path(__file__).with_name("zygote.py"))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, program, str(theirs.fileno())],
                env=clean,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int:
        """Start a program; return its pid, that of a child of this process."""
        # Its parent there leaves it at once: so we become its parent.
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._ours, [json.dumps(request).encode()], streams)
            return int(self._ours.recv(64))
        except (OSError, ValueError) as error:
            code = self._process.wait(60)
            raise RuntimeError(f"zygote.py has ended with {code}: see its stderr") from error
        finally:
            _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


_lock = threading.Lock()
_zygotes: dict[frozenset[tuple[str, str]], _Zygote] = {}


def _zygote_for(environ: Mapping[str, str]) -> _Zygote:
    key = frozenset((k, v) for k, v in environ.items() if k.startswith(_AT_START))
    zygote = _zygotes.pop(key, None) or _Zygote(environ)
    _zygotes[key] = zygote  # the last is the one that was used last
    if len(_zygotes) > _MOST:
        _zygotes.pop(next(iter(_zygotes))).close()
    return zygote


@atexit.register
def _close_all() -> None:
    for zygote in _zygotes.values():
        zygote.close()
    _zygotes.clear()
