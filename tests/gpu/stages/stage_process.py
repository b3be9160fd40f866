# SPDX-License-Identifier: Apache-2.0
"""A stage as a process: its log, its end at a limit, and where its processes were then."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stack_dump import LATE, dump_stacks, program_of, send

__all__ = ["StageProcess"]

MARK = "STAGE_MARK"
STACKS = Path(__file__).resolve().parent / "stacks"
END_SECONDS = 5.0  # for processes that a driver holds


class StageProcess:
    """A running stage. What it starts is known by a variable in its environment, whatever sessions
    and groups it is in; all of it ends with the stage.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self._mark = f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        self._label = f"{name}: " if environment.get("STAGE_BESIDE") else ""
        self._log = log
        path = f"{STACKS}:{environment.get('PYTHONPATH', '')}".rstrip(":")
        self._file = log.open("ab", buffering=0)
        self._process = subprocess.Popen(
            command,
            env={**environment, MARK: self._mark, "STAGE_STACKS": str(log), "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._reader.start()

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Return the stage's exit code; of one that is not done dump the stacks, and end it."""
        code = self._process.poll()
        if code is None:
            code = LATE
            self._say("not done at its limit; stacks of its Python processes are in its log")
            dump_stacks(self._pids(), self._log)
        self.end()
        return code

    def end(self) -> None:
        """End what is left of the stage."""
        left = self._pids()
        if left and self._process.poll() is not None:
            self._say(f"ended what it left behind: {', '.join(map(program_of, left))}")
        end = time.monotonic() + END_SECONDS
        while left and time.monotonic() < end:
            for pid in left:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)
            left = self._pids()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._reader.join(1.0)
        self._file.close()

    def _pids(self) -> list[int]:
        """Return the stage's processes, the oldest first."""
        mark = f"{MARK}={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return sorted(found)

    def _copy(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._write(line)
            sys.stdout.write(self._label + line.decode(errors="replace"))
            sys.stdout.flush()

    def _say(self, words: str) -> None:
        self._write(f"== {words}\n".encode())
        print(f"{self._label}== {words}", file=sys.stderr, flush=True)

    def _write(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):  # it is closed: what comes late is lost
            self._file.write(line)
