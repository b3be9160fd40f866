# SPDX-License-Identifier: Apache-2.0
"""What a submitted job prints: the files that its engine keeps, now and as they grow."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from commensal._cluster import Cluster

__all__ = ["print_output"]

_LOOK_SECONDS = 0.2
_ENDED = frozenset({"finished", "failed", "cancelled", "lost"})


class _Rank:
    """One rank's file, read line by line, also after it was rotated away."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None
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


def print_output(cluster: Cluster, job: str, follow: bool, as_json: bool) -> int:
    """Print what a job's newest attempt has printed; with `follow`, until it ends.

    With several ranks each line begins with the rank. Returns the exit code.
    """
    files: dict[str, _Rank] = {}
    with suppress(KeyboardInterrupt):
        while True:
            answer = cluster.ask("logs", id=job)
            ended = answer["state"] in _ENDED
            for path in answer["files"]:
                files.setdefault(path, _Rank(Path(path)))
            for number, rank in enumerate(files.values()):
                for line in rank.lines(last=ended or not follow):
                    _print(line, number, len(files), as_json)
            if ended or not follow:
                break
            time.sleep(_LOOK_SECONDS)
    return 0


def _print(line: str, rank: int, ranks: int, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"rank": rank, "text": line}), flush=True)
    else:
        print(f"[{rank}] {line}" if ranks > 1 else line, flush=True)
