# SPDX-License-Identifier: Apache-2.0
"""What a submitted job prints: the files that its engine keeps, now and as they grow.

Those of a coordinator on this machine are read here; of another one it is asked for them.
"""

from __future__ import annotations

import codecs
import json
import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import IO

from commensal._cluster import Cluster
from commensal._say import say

__all__ = ["describe_silence", "print_output"]

_LOOK_SECONDS = 0.2
_ENDED = frozenset({"finished", "failed", "cancelled", "lost"})


class _Rank(ABC):
    """One rank's output, read line by line."""

    def __init__(self) -> None:
        self._rest = ""

    def lines(self, *, last: bool) -> list[str]:
        """Return whole lines that are new; with `last` also one without its end."""
        text = self._rest + self._new_text()
        lines = text.split("\n")
        self._rest = lines.pop()
        if last and self._rest:
            lines.append(self._rest)
            self._rest = ""
        return lines

    @abstractmethod
    def _new_text(self) -> str:
        """Return what is new."""


class _File(_Rank):
    """A file of this machine, also after it was rotated away."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file: IO[str] | None = None

    def _new_text(self) -> str:
        text = ""
        if self._file is not None:
            text = self._file.read()
            if self._is_current():
                return text
            text += self._file.read()  # what came before it was rotated
            self._file.close()
            self._file = None
        with suppress(FileNotFoundError):
            self._file = self._path.open(encoding="utf-8", errors="replace")
            text += self._file.read()
        return text

    def _is_current(self) -> bool:
        assert self._file is not None
        try:
            return os.fstat(self._file.fileno()).st_ino == self._path.stat().st_ino
        except FileNotFoundError:
            return True  # it is being rotated: the next look tells


class _Remote(_Rank):
    """A file of the coordinator's machine."""

    def __init__(self, cluster: Cluster, job: str, attempt: int, rank: int) -> None:
        super().__init__()
        self._cluster = cluster
        self._question = {"id": job, "attempt": attempt, "rank": rank}
        self._place = {"file": "", "offset": 0}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def _new_text(self) -> str:
        text, more = "", True
        while more:
            answer = self._cluster.ask("read_log", **self._question, **self._place)
            self._place = {"file": answer["file"], "offset": answer["offset"]}
            # A character a byte: that is how any bytes come through JSON.
            text += self._decoder.decode(answer["text"].encode("latin-1"))
            more = answer["more"]
        return text


def print_output(cluster: Cluster, job: str, follow: bool, as_json: bool) -> int:
    """Print what a job's newest attempt has printed; with `follow`, until it ends.

    With several ranks each line begins with the rank. That there is nothing is said on stderr.
    Returns the exit code.
    """
    files: dict[str, _Rank] = {}
    printed = False
    with suppress(KeyboardInterrupt):
        while True:
            answer = cluster.ask("logs", id=job)
            ended = answer["state"] in _ENDED
            for number, path in enumerate(answer["files"]):
                if path not in files and cluster.remote is None:
                    files[path] = _File(Path(path))
                elif path not in files:
                    files[path] = _Remote(cluster, job, answer["attempt"], number)
            for number, rank in enumerate(files.values()):
                for line in rank.lines(last=ended or not follow):
                    _print(line, number, len(files), as_json)
                    printed = True
            if ended or not follow:
                if not printed:
                    say(describe_silence(job, answer["attempt"], answer["state"]))
                break
            time.sleep(_LOOK_SECONDS)
    return 0


def describe_silence(job: str, attempt: int, state: str) -> str:
    """Say that a job has printed nothing, and whether that may change."""
    which = f"attempt {attempt} of job {job}" if attempt > 1 else f"job {job}"
    yet = "" if state in _ENDED else " yet"
    return f"{which} has printed nothing{yet}: it is {state}"


def _print(line: str, rank: int, ranks: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"rank": rank, "text": line}), flush=True)
    else:
        print(f"[{rank}] {line}" if ranks > 1 else line, flush=True)
