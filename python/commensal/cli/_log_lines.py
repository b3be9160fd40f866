# SPDX-License-Identifier: Apache-2.0
"""The coordinator's log: which lines are a job's, and how to follow files that are rotated."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TextIO

__all__ = ["Entry", "LogReader", "Selection", "find_job", "registered_jobs"]

_ENTRY = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+) (.*)")
_REGISTERED = re.compile(r"job (\S+): registered\b")
_RANDOM_END = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True)
class Entry:
    """One line of the log; `time` as written, in local time."""

    time: str
    level: str
    text: str

    @classmethod
    def parse(cls, line: str) -> Entry | None:
        """Read a line; None if it does not begin an entry."""
        match = _ENTRY.fullmatch(line)
        return cls(*match.groups()) if match else None

    def __str__(self) -> str:
        return f"{self.time} {self.level} {self.text}"

    def to_json(self, job: str) -> dict[str, object]:
        """Return the object of docs/stats.md; its time names the zone."""
        time = datetime.fromisoformat(self.time).astimezone().isoformat(timespec="milliseconds")
        return {"schema": 1, "time": time, "level": self.level, "job": job, "text": self.text}


class Selection:
    """Takes a job's entries out of a stream of lines; an entry may have several lines."""

    def __init__(self, job_id: str) -> None:
        # A whole word: no other job's id begins or ends like this.
        self._id = re.compile(rf"(?<![\w.-]){re.escape(job_id)}(?![\w-]|\.\w)")
        self._last: Entry | None = None

    def feed(self, line: str) -> Entry | None:
        """Return what there is to print for a line; None: it is not about this job."""
        entry = Entry.parse(line)
        if entry is None:  # goes on what the line before began
            return self._last and Entry(self._last.time, self._last.level, line)
        self._last = entry if self._id.search(entry.text) else None
        return self._last


def registered_jobs(lines: Iterable[str]) -> dict[str, str]:
    """Return the jobs that registered in a log, id to name, the oldest first.

    The log has ids only; an id is made of the name and a random end.
    """
    found: dict[str, str] = {}
    for line in lines:
        if match := _REGISTERED.search(line):
            found[match[1]] = _RANDOM_END.sub("", match[1])
    return found


def find_job(wanted: str, live: dict[str, str], gone: dict[str, str]) -> str:
    """Return the id that an id or a name stands for: a live job's, else the last one's.

    `live` and `gone` map ids to names, the oldest first.

    @raises LookupError, with a message that names the jobs there are.
    """
    if wanted in live or wanted in gone:
        return wanted
    running = [job_id for job_id, name in live.items() if name == wanted]
    if len(running) > 1:
        raise LookupError(f"more than one job has the name {wanted!r}: {', '.join(running)}")
    called_so = running or [job_id for job_id, name in gone.items() if name == wanted]
    if called_so:
        return called_so[-1]
    every = [f"{job_id} ({name})" for job_id, name in {**gone, **live}.items()]
    there_are = f"there are: {', '.join(every)}" if every else "the log has no job"
    raise LookupError(f"no job is called {wanted!r}; {there_are}")


class LogReader:
    """Reads a log from its first line, older files included, and then what is new in it.

    Follows the log when it is rotated meanwhile.

    @raises OSError if the log cannot be read; older files may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = _open(path)
        self._begun = ""  # of a line whose end is not written yet

    def older(self) -> Iterator[str]:
        """Yield the lines of the rotated files, the oldest first."""
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        name = re.compile(rf"{stem}\.(\d+){suffix}")
        numbered = {
            int(match[1]): file
            for file in self._path.parent.iterdir()
            if (match := name.fullmatch(file.name))
        }
        for number in sorted(numbered, reverse=True):
            try:
                with _open(numbered[number]) as lines:
                    if not self._is_open(numbered[number]):  # rotated while we looked
                        yield from (line.rstrip("\n") for line in lines)
            except FileNotFoundError:
                continue

    def read(self) -> list[str]:
        """Return the complete lines that came since the last call; the first time, all."""
        lines = self._drain()
        if self._file is None or not self._is_open(self._path):
            lines += self._drain()  # written between the look and the rotation
            self.close()
            try:
                self._file = _open(self._path)
            except FileNotFoundError:
                return lines  # the next one is about to be made
            lines += self._drain()
        return lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _drain(self) -> list[str]:
        if self._file is None:
            return []
        *lines, self._begun = (self._begun + self._file.read()).split("\n")
        return lines

    def _is_open(self, path: Path) -> bool:
        if self._file is None:
            return False
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            return False


def _open(path: Path) -> TextIO:
    return open(path, encoding="utf-8", errors="replace")
