# SPDX-License-Identifier: Apache-2.0
"""Reads the page on which a job's process publishes what it does (coordinator/wire/pages.h)."""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

__all__ = ["Activity", "JobPage", "MemoryNow"]

_MAGIC = 0x314A4C534E4D4F43  # kJobPageMagic
_VERSION = 1
_SIZE = 16384
_HEADER = struct.Struct("=QIIQ")  # magic, version, size, owner's pid
_LINK = "/memfd:commensal-job"

_ACTIVITY = 136
_STEP_NUMBER = 192
_MEMORY = struct.Struct("=6Q")  # limit, device, host, parked, live, cached
_MEMORY_AT = 224


class Activity:
    """What a job is doing, as the page tells it."""

    UNKNOWN, BUSY, WAITING, PAUSED = range(4)


@dataclass(frozen=True)
class MemoryNow:
    """Managed memory of a process, in bytes."""

    device_bytes: int
    live_bytes: int
    cached_bytes: int


class JobPage:
    """One process's page, read-only. Each word is valid alone; two may not belong together."""

    def __init__(self, page: mmap.mmap, pid: int) -> None:
        self._page = page
        self._words = memoryview(page).cast("Q")
        self.pid = pid

    @classmethod
    def find(cls, pid: int) -> JobPage | None:
        """Return a process's own page; None if it has none (yet) or is not ours to look at."""
        folder = f"/proc/{pid}/fd"
        try:
            numbers = os.listdir(folder)
        except OSError:
            return None
        for number in numbers:
            try:
                if not os.readlink(f"{folder}/{number}").startswith(_LINK):
                    continue
                with open(f"{folder}/{number}", "rb") as file:
                    page = mmap.mmap(file.fileno(), _SIZE, prot=mmap.PROT_READ)
            except (OSError, ValueError):  # closed meanwhile, or too short
                continue
            if _HEADER.unpack_from(page)[:3] == (_MAGIC, _VERSION, _SIZE):
                return cls(page, pid)
            page.close()
        return None

    @property
    def activity(self) -> int:
        return self._words[_ACTIVITY // 8]

    @property
    def step_number(self) -> int:
        return self._words[_STEP_NUMBER // 8]

    @property
    def memory(self) -> MemoryNow:
        _, device, _, _, live, cached = _MEMORY.unpack_from(self._page, _MEMORY_AT)
        return MemoryNow(device, live, cached)
