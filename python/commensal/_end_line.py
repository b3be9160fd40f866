# SPDX-License-Identifier: Apache-2.0
"""The one line at the end of a job: what sharing did for it.

The job's first process says it when it exits; where it could not (it was killed, or imported no
PyTorch), the watcher that `commensal run` left behind does.

What is known comes from the files that the job's processes left when they ended, and from the
coordinator's record where a process was killed. A part that nobody knows is left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal._environment import JobSettings, default_runtime_dir
from commensal._quantities import format_bytes, format_seconds
from commensal._say import say

__all__ = ["Ending", "collect", "describe_end", "tell_end"]

_ANSWER = timedelta(milliseconds=500)
_NO_IMPORT = "the script did not import PyTorch"
_TOLD = "told"  # a file beside the summaries: the line has been said


@dataclass(frozen=True)
class Ending:
    """What is known about a job that ended; None: not known."""

    active: bool
    failure: str = ""  # why nothing was active
    shared_seconds: float | None = None
    given_back_bytes: int | None = None
    moves: int | None = None
    longest_pause_seconds: float | None = None
    neighbour_slowdown: float | None = None
    own_slowdown: float | None = None


def collect(settings: JobSettings, coordinator: Coordinator, seconds: float) -> Ending:
    """Gather what is known of a job that ran for `seconds` and has just ended."""
    left = _read_left(settings.summary_file)
    jobs = _ask(coordinator)
    own = next((job for job in jobs if _job_field(job, "id") == settings.job_id), None)
    reports = left.reports or ([own] if own is not None else [])
    if not reports and not left.active:
        return Ending(active=False, failure=left.failure)
    others = [job for job in jobs if _job_field(job, "id") != settings.job_id]
    memories = [report.get("memory", {}) for report in reports]
    return Ending(
        active=True,
        shared_seconds=_shared_seconds(own, others, seconds),
        given_back_bytes=_total(memories, "given_back_bytes_total"),
        moves=_total(memories, "moves_total"),
        longest_pause_seconds=max(_known(memories, "longest_pause_seconds"), default=None),
        neighbour_slowdown=max(
            _known([job for job in others if _is_neighbour(job)], "slowdown"),
            default=None,
        ),
        own_slowdown=next(iter(_known([own] if own else [], "slowdown")), None),
    )


def describe_end(ending: Ending) -> str:
    """Return the line, for example "shared 12 min, gave back 3.1 GiB in 4 moves"."""
    if not ending.active:
        return f"nothing was managed: {ending.failure}"
    parts = []
    if ending.shared_seconds is not None:
        shared = ending.shared_seconds
        parts.append(f"shared {format_seconds(shared)}" if shared > 0 else "had no neighbour")
    if ending.given_back_bytes is not None:
        moved = f"gave back {format_bytes(ending.given_back_bytes)}"
        if ending.moves:
            moved += f" in {ending.moves} {'move' if ending.moves == 1 else 'moves'}"
        parts.append(moved)
    if ending.moves and ending.longest_pause_seconds is not None:
        parts.append(f"longest pause {format_seconds(ending.longest_pause_seconds)}")
    if ending.neighbour_slowdown is not None:
        parts.append(f"neighbour {ending.neighbour_slowdown:+.1%}".replace("%", " %"))
    if ending.own_slowdown is not None:
        parts.append(f"own steps {ending.own_slowdown:+.1%}".replace("%", " %"))
    return ", ".join(parts) or "was active; it was ended before it could report"


def tell_end(settings: JobSettings, why_unmanaged: Callable[[], str] = lambda: _NO_IMPORT) -> None:
    """Print the line on stderr, once a job; the script's end is not ours to spoil.

    `why_unmanaged` is asked where no process of the job has said why it was not active.
    """
    if settings.launch is None or settings.summary_file is None:
        return
    try:
        (settings.summary_file.parent / _TOLD).touch(exist_ok=False)
    except OSError:
        return  # said already, or the folder is gone
    try:
        seconds = time.monotonic() - settings.launch.at_seconds
        coordinator = Coordinator(
            settings.instance, settings.runtime_dir or default_runtime_dir(os.environ)
        )
        ending = collect(settings, coordinator, seconds)
        if not ending.active and not ending.failure:
            ending = replace(ending, failure=why_unmanaged())
        line = describe_end(ending)
    except Exception as error:
        line = f"no summary: {error!r}"
    say(line)


@dataclass(frozen=True)
class _Left:
    """What the job's processes left beside the summary file."""

    reports: list[dict[str, Any]]
    active: bool
    failure: str


def _read_left(summary: Path | None) -> _Left:
    reports: list[dict[str, Any]] = []
    active, failure = False, ""
    if summary is None:
        return _Left(reports, active, failure)
    for entry in sorted(os.scandir(summary.parent), key=lambda item: item.name):
        text = Path(entry.path).read_text(encoding="utf-8", errors="replace")
        if entry.name.endswith(".active"):
            active = True
        elif entry.name.endswith(".failed"):
            failure = text
        elif entry.name != _TOLD:
            try:
                report = json.loads(text)
            except ValueError:
                continue  # a process was killed while it wrote
            if isinstance(report, dict) and _job_field(report, "role") != "helper":
                reports.append(report)
    return _Left(reports, active, failure)


def _ask(coordinator: Coordinator) -> list[dict[str, Any]]:
    if not coordinator.listens():
        return []
    try:
        return list(coordinator.status(timeout=_ANSWER).get("jobs", []))
    except (Unreachable, Refused, ImportError):
        return []


def _shared_seconds(
    own: dict[str, Any] | None, others: list[dict[str, Any]], seconds: float
) -> float | None:
    """Return how long others were there while this job ran; None if nobody knows."""
    if own is None:
        return None
    stays = []
    for job in others:
        left = job.get("ended_seconds_ago", None if job.get("ended") else 0.0)
        if left is None:
            return None
        came = min(seconds, float(job.get("started_seconds_ago", 0.0)))
        stays.append((float(left), came))
    shared, counted = 0.0, 0.0
    for left, came in sorted(stays):  # both in seconds before the end
        shared += max(0.0, came - max(left, counted))
        counted = max(counted, came)
    return shared


def _is_neighbour(job: dict[str, Any]) -> bool:
    return _job_field(job, "class") == "guaranteed" and not job.get("ended")


def _job_field(job: dict[str, Any], key: str) -> Any:
    return job.get("job", {}).get(key)


def _known(items: list[dict[str, Any]], key: str) -> list[float]:
    return [float(item[key]) for item in items if isinstance(item.get(key), (int, float))]


def _total(items: list[dict[str, Any]], key: str) -> int | None:
    known = _known(items, key)
    return int(sum(known)) if known else None
