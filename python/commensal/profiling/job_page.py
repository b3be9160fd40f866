# SPDX-License-Identifier: Apache-2.0
"""Finds the page on which a job's process publishes what it does (coordinator/wire/pages.h)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from commensal._core import ACTIVITIES, GAP_PHASES, JOB_PAGE_NAME, JobPage

__all__ = ["Activity", "JobPage", "activity_of", "find_job_page"]

_THREAD = "commensal-files"  # allocator/host/own_descriptors.cpp
_LINK = f"/memfd:{JOB_PAGE_NAME}"


class Activity:
    """What a job is doing, as the page tells it."""

    UNKNOWN, BUSY, WAITING, PAUSED = ACTIVITIES


_BETWEEN_STEPS = frozenset(
    GAP_PHASES.index(name) for name in ("boundary", "checkpoint", "synchronisation")
)


def activity_of(page: JobPage | None) -> int:
    """Return what a job does; waiting is for data or a request, not what follows a step."""
    if page is None:
        return Activity.UNKNOWN
    activity = page.activity
    if activity == Activity.WAITING and (page.wait_phase in _BETWEEN_STEPS or page.device_works):
        return Activity.BUSY
    return activity


def find_job_page(pid: int) -> JobPage | None:
    """Return a process's own page; None if it has none (yet) or is not ours to look at."""
    for folder in _descriptor_folders(pid):
        try:
            numbers = os.listdir(folder)
        except OSError:
            continue
        for number in numbers:
            try:
                if os.readlink(f"{folder}/{number}").startswith(_LINK):
                    return JobPage(f"{folder}/{number}")
            except (OSError, ValueError):  # closed meanwhile, or of another version
                continue
    return None


def _descriptor_folders(pid: int) -> Iterator[str]:
    """Yield where a job's process has its page open: in the table of a thread of ours."""
    for comm in Path(f"/proc/{pid}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            if comm.read_text().rstrip() == _THREAD:
                yield f"{comm.parent}/fd"
