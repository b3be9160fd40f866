# SPDX-License-Identifier: Apache-2.0
"""A world of its own for each test of package and command line, and a deadline for each."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest

from commensal._cluster import Cluster as Asked
from commensal._coordinator import Coordinator, Unreachable

DEADLINE = 240.0  # of one process; alone on a machine, nothing here needs a twentieth of it

COMMENSAL = Path(sys.executable).parent / "commensal"


def wait_until(what: str, condition: Callable[[], object], deadline: float = DEADLINE) -> None:
    """Wait for a condition; fail with `what` if it does not come."""
    begin = time.monotonic()
    asked = begin
    while not condition():
        now = time.monotonic()
        if now > begin + deadline:
            pytest.fail(f"not within {deadline:.0f} s: {what}")
        time.sleep(max(0.02, now - asked))  # who asks by a process must not keep a core for that
        asked = time.monotonic()


@dataclass
class World:
    """A runtime folder and environment that no other test shares."""

    folder: Path
    fresh: bool = False  # programs are started anew, and not by a fork (forked.py)
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environ(self) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
        # Unbuffered, a printed line is two writes, and those of two ranks to one pipe can mix.
        for name in ("RANK", "WORLD_SIZE", "XDG_RUNTIME_DIR", "PYTHONUNBUFFERED"):
            clean.pop(name, None)
        # Few threads: several processes share two cores here.
        return clean | {
            "COMMENSAL_RUNTIME_DIR": str(self.runtime_dir),
            "COMMENSAL_STATE_DIR": str(self.folder / "state"),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(self.folder),  # where a job's processes report to
        }

    @property
    def runtime_dir(self) -> Path:
        return self.folder / "run"

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def start(
        self, command: Sequence[str], *, start_new_session: bool = False, **environ: str
    ) -> subprocess.Popen[str]:
        process = forked.start(
            command,
            fresh=self.fresh,
            env=self.environ | environ,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=start_new_session,
        )
        self.processes.append(process)
        return process

    def run(
        self, command: Sequence[str], stdin: str = "", **environ: str
    ) -> subprocess.CompletedProcess[str]:
        process = self.start(command, **environ)
        try:
            output, errors = process.communicate(stdin, timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        finally:
            self.processes.remove(process)
        return subprocess.CompletedProcess(list(command), process.returncode, output, errors)

    def commensal(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return self.run([str(COMMENSAL), *arguments], **environ)

    # Both ask from this process: a command for each look would take most of the time of a wait.

    def status(self, job: str = "", instance: str = "default") -> dict[str, Any]:
        """The object of `commensal status --json`; empty if no coordinator answers."""
        try:
            return Coordinator(instance, self.runtime_dir).status(job)
        except Unreachable:
            return {}

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """The answer of the cluster's coordinator to one request."""
        return Asked("default", self.runtime_dir).ask(request, **fields)

    def daemons(self) -> list[psutil.Process]:
        """The coordinators that serve this world's folder."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            command = process.info["cmdline"] or []
            if process.info["name"] == "commensald" and str(self.runtime_dir) in command:
                found.append(process)
        return found

    def close(self) -> None:
        for process in self.processes:
            kill_tree(process)
            process.communicate()
        for daemon in self.daemons():
            with contextlib.suppress(psutil.NoSuchProcess):
                daemon.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """Kill a process and all that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def read_line(process: subprocess.Popen[str], wanted: str) -> str:
    """Read stdout up to the line that contains `wanted`; fail if the process ends before, or if it
    does not come."""
    assert process.stdout is not None
    late = threading.Timer(DEADLINE, kill_tree, [process])
    late.start()
    try:
        for line in process.stdout:
            if wanted in line:
                return line
        _, errors = process.communicate(timeout=DEADLINE)
    finally:
        late.cancel()
    pytest.fail(f"ended with {process.returncode} before {wanted!r}: {errors}")
