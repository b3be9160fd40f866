# SPDX-License-Identifier: Apache-2.0
"""Starts the processes that measure (`cell.py`), gives them orders, and ends those that hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from stack_dump import abort_tree
from stage_report import on_simulated_driver

__all__ = ["PEERS", "Cell", "CellFailed", "MissingPeer"]

HERE = Path(__file__).resolve().parent
PEERS = {"saver": "torch_memory_saver", "saver_retained": "torch_memory_saver"}
# As what a cell's process is started, if not alone: as a job of commensal.
JOBS = {
    "guaranteed": ["--guaranteed"],
    "opportunistic": ["--opportunistic"],
    "antman": ["--opportunistic"],
}
LAST_WORDS = 2000


class CellFailed(RuntimeError):
    """A cell crashed, hung, or there was no time for it; says which and its last words."""


class MissingPeer(CellFailed):
    """A peer is not installed here."""


def launcher(variant: str) -> list[str]:
    if variant not in JOBS:
        return []
    return [shutil.which("commensal") or "commensal", "run", *JOBS[variant], "--quiet", "--"]


class Cell:
    """A process that measures something when it is told to.

    Made by a `with` statement; at its end the process is ended too. Every method raises
    `CellFailed`.
    """

    def __init__(self, name: str, variant: str, folder: Path) -> None:
        """Starts the process, which imports what it needs and touches no card before `make`."""
        self.label = f"{name} ({variant})"
        self._variant = variant
        self._folder = folder
        self._deadline = 0.0
        self._said = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  closed in `close`
        read, write = os.pipe()
        self._answers = os.fdopen(read, "rb", buffering=0)
        self._rest = b""
        command = [*launcher(variant), sys.executable, str(HERE / "cell.py"), name]
        command += ["--answers", str(write)]
        host_memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
        environment = os.environ | {
            "COMMENSAL_GPU_MEMORY": "elastic",  # of a guaranteed job it is native
            "COMMENSAL_RUNTIME_DIR": str(folder / "run"),
            "COMMENSAL_HOST_CAP": str(host_memory // 2),
        }
        if on_simulated_driver():  # the host computes little, and spinning threads would cost more
            environment["OMP_NUM_THREADS"] = "1"
        if variant == "antman":
            environment["COMMENSAL_MEMORY_POLICY"] = "antman"
        if variant == "expandable":
            environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            pass_fds=[write],
            start_new_session=True,  # so that its children end with it
        )
        os.close(write)

    def __enter__(self) -> Cell:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The job's too: `commensal run` becomes the script."""
        return self._process.pid

    def make(self, deadline: float, **settings: object) -> Cell:
        """Have it make what orders need; what then takes longer than until `deadline` fails."""
        self._deadline = deadline
        self._write({"variant": self._variant, "folder": str(self._folder), **settings})
        self.answer()
        return self

    def order(self, what: str = "run", **details: object) -> dict[str, Any]:
        """Have something done; return what it tells."""
        self.send(what, **details)
        return self.answer()

    def send(self, what: str = "run", **details: object) -> None:
        """Have something done; `answer` must follow."""
        self._write({"do": what, **details})

    def answer(self) -> dict[str, Any]:
        """Return what was told of the order that was sent."""
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], self._left())
            if not ready:
                continue
            part = self._answers.read(1 << 16)
            if not part:
                raise self._ended()
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told

    def close(self) -> None:
        """End the process with all that it started: what it told is here already."""
        assert self._process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold a process for long
            self._process.wait(timeout=20.0)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._answers.close()
        self._said.close()

    def _write(self, line: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answer` says how it ended
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0.0:
            abort_tree(self._process.pid)
            raise CellFailed(f"{self.label}: not done in time")
        return left

    def _ended(self) -> CellFailed:
        code = self._process.wait()
        self._said.seek(0)
        words = self._said.read().decode(errors="replace")
        peer = PEERS.get(self._variant)
        if peer and f"No module named '{peer}'" in words:
            return MissingPeer(f"no package {peer}")
        return CellFailed(f"{self.label} ended with code {code}: {words[-LAST_WORDS:].strip()}")
