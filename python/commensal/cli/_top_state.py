# SPDX-License-Identifier: Apache-2.0
"""What `commensal top` remembers between two refreshes: decisions, closed gates, busy cores."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commensal._quantities import format_bytes

__all__ = ["BusyCores", "Decision", "Frame", "Watch", "busy_ticks"]

Record = dict[str, Any]

CLOSED_WINDOW_SECONDS = 5.0
LEAST_WINDOW_SECONDS = 1.5
MOST_DECISIONS = 200


@dataclass(frozen=True)
class Decision:
    """A change that was seen, with the coordinator's reason."""

    at_seconds: float | None  # since the epoch; None: it stood when watching began
    job: str
    what: str
    reason: str

    def to_json(self) -> Record:
        return {
            "time_seconds": self.at_seconds,
            "job": self.job,
            "what": self.what,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Frame:
    """All that one picture shows."""

    status: Record  # `commensal status --json`
    time_seconds: float  # since the epoch
    busy_share: float | None  # of the device's cores, by everybody
    closed_shares: dict[str, float]  # by job id: of the last seconds, the gate closed
    decisions: tuple[Decision, ...] = field(default=())  # the oldest first
    trouble: str = ""  # why the status is old; empty: it is not

    def to_json(self, new: Iterable[Decision]) -> Record:
        """Return one line of `top --json`; of the decisions, those that are new."""
        return {
            "schema": 1,
            "time_seconds": self.time_seconds,
            "devices": [
                {
                    "id": device["id"],
                    "busy_share": self.busy_share if device["id"] == "host" else None,
                }
                for device in self.status["devices"]
            ],
            "closed_shares": self.closed_shares,
            "decisions": [decision.to_json() for decision in new],
            "status": self.status,
        }


class Watch:
    """Compares each status with the ones before."""

    def __init__(self) -> None:
        self.decisions: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        self._seen: dict[tuple[str, str], tuple[str, str]] = {}
        self._closed: dict[str, deque[tuple[float, float]]] = {}
        self._began = False

    def observe(self, status: Record, now: float) -> list[Decision]:
        """Take in a status at a time since the epoch; return what was decided meanwhile."""
        new = [
            decision
            for record in status["jobs"]
            for decision in self._compare(record, now if self._began else None)
        ]
        self._began = True
        self.decisions.extend(new)
        ids = set()
        for record in _running(status):
            ids.add(record["job"]["id"])
            samples = self._closed.setdefault(record["job"]["id"], deque())
            samples.append((now, record.get("gate", {}).get("closed_seconds_total", 0.0)))
            while len(samples) > 2 and now - samples[1][0] >= CLOSED_WINDOW_SECONDS:
                samples.popleft()
        for gone in self._closed.keys() - ids:
            del self._closed[gone]
        return new

    def closed_shares(self, status: Record) -> dict[str, float]:
        """Return how much of the last seconds each gate was closed; at first, of its life."""
        shares = {}
        for record in _running(status):
            job_id, lived = record["job"]["id"], record.get("started_seconds_ago") or 0.0
            samples = self._closed.get(job_id) or deque([(0.0, 0.0)])
            (first, closed_then), (last, closed_now) = samples[0], samples[-1]
            if last - first >= LEAST_WINDOW_SECONDS:
                share = (closed_now - closed_then) / (last - first)
            else:
                share = closed_now / lived if lived > 0 else 0.0
            shares[job_id] = min(1.0, max(0.0, share))
        return shares

    def _compare(self, record: Record, at: float | None) -> list[Decision]:
        job_id, name = record["job"]["id"], record["job"]["name"]
        found = []
        for topic, what, reason in _decided(record):
            # A reason with other numbers is the same reason; a limit with other bytes is not.
            token = (what if topic != "share" else "", re.sub(r"[\d.]+", "#", reason))
            before = self._seen.get((job_id, topic))
            self._seen[job_id, topic] = token
            if before == token or (before is None and topic in ("paused", "ended") and not what):
                continue
            if topic == "paused" and not what:
                found.append(Decision(at, name, "resumed", ""))
            elif what and not (record.get("ended") and topic != "ended"):
                found.append(Decision(at, name, what, reason))
        return [] if at is None and record.get("ended") else found


def _decided(record: Record) -> list[tuple[str, str, str]]:
    """Return (topic, what, reason) for all that is decided about a job now."""
    lease, share = record.get("lease", {}), record.get("share", {})
    decided = []
    if lease.get("target_bytes") is not None:
        what = f"limit {format_bytes(lease['target_bytes'])}"
        decided.append(("limit", what, lease.get("reason") or ""))
    if share.get("now") is not None and record["job"]["class"] == "opportunistic":
        decided.append(("share", f"share {share['now']:.2f}", share.get("reason") or ""))
    decided.append(("paused", "paused" if record.get("paused") else "", ""))
    decided.append(("ended", "ended" if record.get("ended") else "", record.get("exit_reason", "")))
    return decided


def _running(status: Record) -> list[Record]:
    return [record for record in status["jobs"] if not record.get("ended")]


def busy_ticks(stat: str, cores: Collection[int]) -> tuple[int, int]:
    """Return (busy, all) ticks of some cores from the text of /proc/stat."""
    busy = total = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if not name.startswith("cpu") or not name[3:].isdigit() or int(name[3:]) not in cores:
            continue
        user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
        used = user + nice + system + irq + softirq + steal
        busy += used
        total += used + idle + iowait
    return busy, total


class BusyCores:
    """Tells how busy the cores were that this process may use: those of the device."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._cores = os.sched_getaffinity(0)
        self._before = busy_ticks(stat.read_text(), self._cores)
        self._share: float | None = None

    def share(self) -> float | None:
        """Return the busy share since the last call; None if no tick has passed yet."""
        busy, total = busy_ticks(self._stat.read_text(), self._cores)
        if total > self._before[1]:
            self._share = (busy - self._before[0]) / (total - self._before[1])
            self._before = busy, total
        return self._share
