# SPDX-License-Identifier: Apache-2.0
"""Tells whether the machine was quiet enough for a measurement, and repeats it if it was not.

A window is disturbed if processes outside of the measuring process's own tree used more than 3 %
of the machine, or if the hypervisor stole more than 1 % of it. Everything comes from /proc.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["MOST_REPEATS", "Judged", "QuietGuard", "Usage", "Verdict"]

MOST_OUTSIDE = 0.03
MOST_STEAL = 0.01
MOST_REPEATS = 3

_KERNEL_THREAD_PARENT = 2  # kthreadd

T = TypeVar("T")


@dataclass(frozen=True)
class Usage:
    """Processor time since the machine started, in clock ticks summed over all cores."""

    all: int
    busy: int
    steal: int
    own: int
    kernel: int


@dataclass(frozen=True)
class Verdict:
    """What a window saw of the rest of the machine; shares are of the whole machine, 0..1."""

    outside_share: float
    steal_share: float
    own_share: float

    @property
    def quiet(self) -> bool:
        return self.outside_share <= MOST_OUTSIDE and self.steal_share <= MOST_STEAL

    @property
    def reason(self) -> str:
        """Say what disturbed the window; empty if nothing did."""
        found = []
        if self.outside_share > MOST_OUTSIDE:
            found.append(
                f"other processes used {self.outside_share:.1%} of the machine"
                f" (most: {MOST_OUTSIDE:.0%})"
            )
        if self.steal_share > MOST_STEAL:
            found.append(f"steal was {self.steal_share:.1%} (most: {MOST_STEAL:.0%})")
        return "; ".join(found)


@dataclass(frozen=True)
class Judged(Generic[T]):
    """The result of the last window that ran, and how quiet each try was."""

    value: T
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> bool:
        return self.verdicts[-1].quiet

    @property
    def reason(self) -> str:
        return self.verdicts[-1].reason


@dataclass(frozen=True)
class _Process:
    parent: int
    ticks: int


class QuietGuard:
    """Reads how much of the machine this process's tree, and everybody else, used."""

    def __init__(self, proc: Path = Path("/proc"), root_pid: int | None = None) -> None:
        self._proc = proc
        self._root_pid = os.getpid() if root_pid is None else root_pid

    def usage(self) -> Usage:
        """Read the totals now.

        A process that ended counts through the parent that waited for it, so the tree's time only
        grows. Kernel threads are no processes outside: they work for whoever writes or reads.
        """
        first = (self._proc / "stat").read_text().splitlines()[0].split()
        user, nice, system, idle, iowait, irq, softirq, steal = (int(x) for x in first[1:9])
        busy = user + nice + system + irq + softirq
        processes = self._processes()
        return Usage(
            all=busy + idle + iowait + steal,
            busy=busy,
            steal=steal,
            own=sum(processes[pid].ticks for pid in self._tree(processes)),
            kernel=sum(p.ticks for p in processes.values() if p.parent == _KERNEL_THREAD_PARENT),
        )

    def measure(
        self,
        window: Callable[[], T],
        *,
        most_repeats: int = MOST_REPEATS,
        on_repeat: Callable[[Verdict], None] = lambda verdict: None,
    ) -> Judged[T]:
        """Run a window, and again while it was disturbed, `most_repeats` times at most."""
        verdicts: list[Verdict] = []
        while True:
            before = self.usage()
            value = window()
            verdicts.append(verdict_between(before, self.usage()))
            if verdicts[-1].quiet or len(verdicts) > most_repeats:
                return Judged(value, tuple(verdicts))
            on_repeat(verdicts[-1])

    def _processes(self) -> dict[int, _Process]:
        found: dict[int, _Process] = {}
        for folder in self._proc.iterdir():
            if not folder.name.isdigit():
                continue
            try:
                text = (folder / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended while we were looking
            # The name in parentheses may hold anything, parentheses included.
            fields = text.rpartition(")")[2].split()
            found[int(folder.name)] = _Process(
                parent=int(fields[1]), ticks=sum(int(x) for x in fields[11:15])
            )
        return found

    def _tree(self, processes: dict[int, _Process]) -> set[int]:
        tree = {self._root_pid} & processes.keys()
        grown = True
        while grown:
            children = {pid for pid, p in processes.items() if p.parent in tree} - tree
            grown = bool(children)
            tree |= children
        return tree


def verdict_between(before: Usage, after: Usage) -> Verdict:
    """Compare two readings of the same machine."""
    total = max(1, after.all - before.all)
    own = after.own - before.own
    outside = (after.busy - before.busy) - own - (after.kernel - before.kernel)
    return Verdict(
        outside_share=max(0, outside) / total,
        steal_share=(after.steal - before.steal) / total,
        own_share=own / total,
    )
