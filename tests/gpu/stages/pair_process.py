# SPDX-License-Identifier: Apache-2.0
"""A job of a pair as the stage sees it: orders go in, answers come out, within a deadline."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stack_dump import abort_tree

__all__ = ["JobDied", "PairProcess"]


class JobDied(RuntimeError):
    """A job ended, or does not answer; the message has its last words."""


class PairProcess:
    """A running `pair_job.py`. Leaving the `with` block ends it."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        launcher: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        script: Path | None = None,
    ) -> None:
        self.name = name
        path = script or Path(__file__).resolve().parent / "pair_job.py"
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  # __exit__
        self._process = subprocess.Popen(
            [*launcher, sys.executable, str(path), *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            errors="replace",
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def __enter__(self) -> PairProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._errors.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, order: str, patience: float = 60.0) -> Any:
        """Give an order and return its answer.

        Raises:
            JobDied: it ended, or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended; why is told below
        return self.answer(order, patience)

    def answer(self, order: str, patience: float) -> Any:
        """Wait for an answer."""
        try:
            line = self._answers.get(timeout=patience)
        except queue.Empty:
            abort_tree(self._process.pid)
            raise JobDied(self._last_words(f"no answer to '{order}' in {patience:.0f} s")) from None
        if line is None:
            code = self._process.wait()
            raise JobDied(self._last_words(f"ended with code {code} at '{order}'"))
        told = json.loads(line)
        if isinstance(told, dict) and "error" in told:
            raise JobDied(self._last_words(str(told["error"])))
        return told

    def _last_words(self, what: str) -> str:
        self._errors.seek(0)
        return f"{self.name} {what}: {self._errors.read()[-2000:].strip()}"

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("= "):
                self._answers.put(line[2:])
        self._answers.put(None)
