# SPDX-License-Identifier: Apache-2.0
"""How much of a process's memory it touches: what it does not touch for a while is cold.

Linux lets a user clear the "referenced" bits of the pages of their own process and read later
which pages were touched since (/proc/PID/clear_refs and /proc/PID/smaps). A huge page is touched
as a whole. The process is not stopped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from commensal.profiling.job_page import JobPage

__all__ = ["Mapping", "TouchWindows", "Touched", "mappings", "of_mappings"]

WINDOW_SECONDS = 2.0
WINDOW_STEPS = 10
MOST_WINDOWS = 8
_KIB = 1024
_HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ (\d+)\s*(.*)")


@dataclass(frozen=True)
class Mapping:
    """One mapping of /proc/PID/smaps; sizes in bytes."""

    anonymous: bool  # private memory without a file
    managed: bool  # looks like the allocator's own: no reserve, huge pages wanted
    resident_bytes: int
    touched_bytes: int


@dataclass(frozen=True)
class Touched:
    """What was resident at a window's end, and what of it was touched in the window."""

    what: str  # which memory this is about
    resident_bytes: int
    touched_bytes: int
    seconds: float
    steps: int

    @property
    def share(self) -> float:
        return min(1.0, self.touched_bytes / max(1, self.resident_bytes))


def mappings(lines: Iterable[str]) -> Iterator[Mapping]:
    """Read the text of /proc/PID/smaps."""
    access, file, values, flags = "", True, {"Rss": 0, "Referenced": 0}, []
    for line in lines:
        if match := _HEADER.match(line):
            access, file = match[1], match[2] != "0" or bool(match[3])
            values = {"Rss": 0, "Referenced": 0}
            continue
        key, _, rest = line.partition(":")
        if key in values:
            values[key] = int(rest.split()[0]) * _KIB
        elif key == "VmFlags":
            flags = rest.split()
            anonymous = access == "rw-p" and not file
            managed = anonymous and "nr" in flags and "hg" in flags
            yield Mapping(anonymous, managed, values["Rss"], values["Referenced"])


def of_mappings(
    found: Iterable[Mapping], device_bytes: int, seconds: float, steps: int
) -> Touched | None:
    """Sum up the managed mappings; all private memory if those are not what the job reports."""
    listed = list(found)
    managed = [mapping for mapping in listed if mapping.managed]
    what = "tensors"
    if sum(mapping.resident_bytes for mapping in managed) < device_bytes / 2:
        managed = [mapping for mapping in listed if mapping.anonymous]
        what = "private memory"
    resident = sum(mapping.resident_bytes for mapping in managed)
    touched = sum(mapping.touched_bytes for mapping in managed)
    return Touched(what, resident, touched, seconds, steps) if resident else None


class TouchWindows:
    """Opens one window after the other while the job trains; call `look` now and then."""

    def __init__(self, pid: int, page: JobPage, proc: Path = Path("/proc")) -> None:
        self._page = page
        self._folder = proc / str(pid)
        self._since: tuple[float, int] | None = None
        self.found: list[Touched] = []
        self.problem = ""  # why there is nothing

    def look(self, now: float) -> None:
        """Close the window if it was long enough, and open the next one."""
        if self.problem or len(self.found) >= MOST_WINDOWS:
            return
        steps = self._page.step_number
        try:
            if self._since is None:
                self._open(now, steps)
                return
            seconds, done = now - self._since[0], steps - self._since[1]
            if seconds < WINDOW_SECONDS or done < WINDOW_STEPS:
                return
            with (self._folder / "smaps").open() as lines:
                touched = of_mappings(mappings(lines), self._page.device_bytes, seconds, done)
            if touched is not None:
                self.found.append(touched)
            self._open(now, steps)
        except (FileNotFoundError, ProcessLookupError):
            return  # the process has ended
        except OSError as error:
            self.problem = f"{error.filename or self._folder}: {error.strerror}"

    def _open(self, now: float, steps: int) -> None:
        (self._folder / "clear_refs").write_text("1")
        self._since = (now, steps)
