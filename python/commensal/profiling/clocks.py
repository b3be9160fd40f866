# SPDX-License-Identifier: Apache-2.0
"""The processor time of a tree of processes, to the nanosecond, read from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["TreeClock", "descendants"]

_CPUCLOCK_SCHED = 2


class TreeClock:
    """Sums the processor clocks of a process and of those that it starts.

    A process counts from the moment at which `look` finds it. Reading costs a system call a
    process. `read` and `look` may be called from two threads.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._ended_ns = 0  # what processes used that are gone
        self._clocks: dict[int, tuple[int, int]] = {}  # pid: (clock, its value when found)
        self._last: dict[int, int] = {}

    @property
    def pids(self) -> list[int]:
        return list(self._clocks)

    def look(self) -> None:
        """Find processes that were started since the last look."""
        for pid in descendants(self._root):
            if pid not in self._clocks:
                clock = (~pid << 3) | _CPUCLOCK_SCHED  # clock_getcpuclockid(3)
                try:
                    begin = time.clock_gettime_ns(clock)
                except OSError:
                    continue
                self._clocks[pid] = (clock, 0 if pid == self._root else begin)

    def read(self) -> int:
        """Return nanoseconds; never less than before."""
        total = 0
        for pid, (clock, begin) in list(self._clocks.items()):
            try:
                used = time.clock_gettime_ns(clock) - begin
            except OSError:  # it has ended: what it used stays
                self._ended_ns += self._last.pop(pid, 0)
                del self._clocks[pid]
                continue
            self._last[pid] = used
            total += used
        return self._ended_ns + total


def descendants(root: int, proc: Path = Path("/proc")) -> list[int]:
    """Return a process and all that it and its children started, as far as they live."""
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        try:
            threads = os.listdir(proc / str(pid) / "task")
        except OSError:
            continue
        found.append(pid)
        for thread in threads:
            try:
                children = (proc / str(pid) / "task" / thread / "children").read_text()
            except OSError:
                continue
            waiting += map(int, children.split())
    return found
