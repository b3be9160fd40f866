# SPDX-License-Identifier: Apache-2.0
"""Imports PyTorch once, then forks a process for each program that forked.py asks for.

    python zygote.py DESCRIPTOR     of a socket: requests and streams come in, pids go out

It has one thread, and runs no op: a pool of threads would not live in what is forked. It ends when
the other end of the socket is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.abc
import importlib.machinery
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

_INTERRUPTED = -1


def is_program(command: Sequence[str]) -> bool:
    """Tell `python SCRIPT` and `python -c CODE` from what has other options."""
    return len(command) > 1 and (command[1] == "-c" or not command[1].startswith("-"))


class _BecomesProgram(BaseException):
    """Leaves `commensal run` where it would replace itself by another Python."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        super().__init__()
        self.command, self.environ = list(command), dict(environ)


class _FindTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives out the module that is there already, and ends its import as PyTorch does."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._spec = torch, torch.__spec__

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torch" else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        del spec
        return self._torch

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        sys.meta_path.remove(self)
        if module._is_device_backend_autoload_enabled():
            module._import_device_backends()


def _serve(ours: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request; return in the new process, with what it is to run and its streams."""
    while True:
        message, streams, _, _ = socket.recv_fds(ours, 1 << 20, 3)
        if not message:
            os._exit(0)
        told, tell = os.pipe()
        middle = os.fork()
        if middle == 0:
            stay, leave = os.pipe()
            program = os.fork()
            if program == 0:
                os.close(leave)
                os.read(stay, 1)  # until it has its parent
                return json.loads(message), streams
            os.write(tell, str(program).encode())
            os._exit(0)
        os.close(tell)
        pid = os.read(told, 64)
        os.close(told)
        os.waitpid(middle, 0)
        for stream in streams:
            os.close(stream)
        ours.send(pid)


def _take(environ: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(environ):
        del os.environ[name]
    os.environ.update(environ)


def _descriptors() -> list[int]:
    return [number for name in os.listdir("/proc/self/fd") if (number := int(name)) > 2]


def _prepare(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Make this process what `subprocess.Popen` would have started."""
    moved = [os.dup(stream) if stream < 3 else stream for stream in streams]
    for number, stream in enumerate(moved):
        os.dup2(stream, number)
    for number in _descriptors():
        with contextlib.suppress(OSError):  # the folder itself
            os.close(number)
    if request["session"]:
        os.setsid()
    os.chdir(request["folder"])
    _take(request["environ"])
    tempfile.tempdir = None  # is chosen by the environment


def _begin_anew() -> None:
    """Leave what an exec would have ended: handlers, descriptors that are closed by it."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            if not os.get_inheritable(descriptor):
                os.close(descriptor)
    sys.excepthook = sys.__excepthook__


def _becomes(file: str, args: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    if file == sys.executable and is_program(args):
        raise _BecomesProgram(args, environ)
    _exec(file, args, environ)


_exec = os.execvpe


def _run_command(command: list[str]) -> None:
    """Be `commensal ...`; one that would become another Python raises _BecomesProgram."""
    from commensal.cli import main

    sys.orig_argv, sys.argv = [sys.executable, *command], command
    os.execvpe = _becomes  # type: ignore[assignment]
    try:
        sys.exit(main())
    finally:
        os.execvpe = _exec


def _program(command: list[str]) -> tuple[CodeType, ModuleType]:
    """Be `python SCRIPT` or `python -c CODE` up to its first line."""
    module = ModuleType("__main__")
    sys.orig_argv = list(command)
    if command[1] == "-c":
        sys.argv, sys.path[0] = ["-c", *command[3:]], ""
        source, name = command[2].encode(), "<string>"
    else:
        sys.argv, sys.path[0] = command[1:], str(Path(command[1]).resolve().parent)
        source, name = Path(command[1]).read_bytes(), command[1]
        module.__file__ = name
    sys.modules["__main__"] = module
    return compile(source, name, "exec", dont_inherit=True), module


def _import_all() -> None:
    import torch
    import torch._dynamo  # noqa: F401 (the first optimizer imports it)

    import commensal._activation
    import commensal._core
    import commensal.cli.run  # noqa: F401

    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise RuntimeError(f"a process with {len(threads)} threads cannot be forked")
    sys.meta_path.insert(0, _FindTorch(sys.modules.pop("torch")))
    gc.collect()
    gc.freeze()  # so that a collection does not write to pages that are shared


def _run(command: list[str]) -> int:
    """Be the program; return its exit code, as Python itself would choose it."""
    try:
        code, module = _program(command)
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        sys.excepthook(type(error), error, trace.tb_next if trace is not None else None)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    else:
        return 0
    return 1


def _end(code: int) -> NoReturn:
    """End as Python does, but for taking modules and libraries apart, which touches every page."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if code == _INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


if __name__ == "__main__":
    _import_all()
    _request, _streams = _serve(socket.socket(fileno=int(sys.argv[1])))
    _prepare(_request, _streams)
    _command = _request["command"]
    if _command[0] != sys.executable:
        try:
            _run_command(_command)
        except _BecomesProgram as _becomes_program:
            _take(_becomes_program.environ)
            _command = _becomes_program.command
    _begin_anew()
    _zygote = sys.modules["__main__"]
    _end(_run(_command))
