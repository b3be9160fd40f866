# SPDX-License-Identifier: Apache-2.0
"""A coordinator of a cluster, for a benchmark."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
from harness import BenchmarkError

from commensal import _core
from commensal._coordinator import find_program
from commensal.demo.processes import plain_environment

ANSWER_MS = 120_000


class Coordinator:
    """A coordinator of its own, with its folders. @raises BenchmarkError: it does not start."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        folder.chmod(0o700)
        self.pid = 0

    def start(self) -> float:
        """Start it; return the seconds until it has answered."""
        program = find_program("commensal-coordinator")
        if program is None:
            raise BenchmarkError("commensal-coordinator is not installed")
        begin = time.monotonic()
        done = subprocess.run(
            [
                str(program),
                *("--runtime-dir", str(self.folder), "--state-dir", str(self.folder / "state")),
                *("--log-level", "warning", *self._options),
            ],
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise BenchmarkError(done.stderr.strip())
        self.pid = int(self.ask("nodes")["coordinator"]["pid"])
        return time.monotonic() - begin

    def frame(self, request: str, **fields: Any) -> str:
        text = json.dumps({"v": 1, "type": request} | fields)
        socket = str(self.folder / "cluster-default.sock")
        return str(_core.control_frame(socket, text, ANSWER_MS))

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.frame(request, **fields))
        if answer["type"] == "error":
            raise BenchmarkError(answer["what"])
        return answer

    def end_jobs(self) -> None:
        """End what runs, so that no process is left behind."""
        self.ask("drain", node=self.ask("nodes")["nodes"][0]["name"])
        for job in self.ask("queue")["jobs"]:
            if job["state"] != "queued":
                self.ask("cancel", id=job["id"])
        deadline = time.monotonic() + 60
        while any(job["cancelling"] for job in self.ask("queue")["jobs"]):
            if time.monotonic() > deadline:
                raise BenchmarkError("the job that ran does not end")
            time.sleep(0.2)

    def kill(self) -> None:
        if self.pid == 0:
            return
        process = psutil.Process(self.pid)
        process.send_signal(signal.SIGKILL)
        self.pid = 0
        # It is nobody's child here: wait until it is gone.
        psutil.wait_procs([process], timeout=30)
