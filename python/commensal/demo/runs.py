# SPDX-License-Identifier: Apache-2.0
"""What a job wrote while it ran, and what was seen of it from outside: plain records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TextIO

__all__ = [
    "CpuSample",
    "DeviceUse",
    "Event",
    "JobRecord",
    "MemorySample",
    "Mode",
    "Step",
    "WindowRecord",
    "read_log",
]


class Mode(str, Enum):
    """What runs in a window."""

    GUARANTEED_ALONE = "guaranteed_alone"
    OPPORTUNISTIC_ALONE = "opportunistic_alone"
    DEFAULT = "default"
    COMMENSAL = "commensal"


@dataclass(frozen=True)
class Step:
    """One step by the script's own clock; `end` is on the machine's monotonic clock."""

    end: float
    seconds: float
    wait_seconds: float
    batch: int
    loss: str

    @property
    def begin(self) -> float:
        return self.end - self.seconds

    @property
    def busy_seconds(self) -> float:
        """The step without the time that its storage is stated to take."""
        return self.seconds - self.wait_seconds


@dataclass(frozen=True)
class Event:
    """Something that happened at a time: a doubled batch, a limit that was set or granted."""

    time: float
    what: str
    value: float = 0.0
    job: str = ""
    reason: str = ""


@dataclass(frozen=True)
class MemorySample:
    """A job's memory and gate, as the coordinator knows them."""

    time: float
    job: str
    limit_bytes: int | None
    device_bytes: int
    host_bytes: int
    host_touched_bytes: int
    moved_out_bytes_total: int
    moved_in_bytes_total: int
    gate_state: str
    gate_closed_seconds: float
    moved_ahead_bytes_total: int = 0  # older recordings do not have it


@dataclass(frozen=True)
class CpuSample:
    """Processor seconds that a job's threads had used at a time, as the kernel counts them."""

    time: float
    job: str
    cpu_seconds: float


@dataclass(frozen=True)
class DeviceUse:
    """Who used a GPU's time in the seconds before, as the coordinator tells; docs/stats.md."""

    time: float
    seconds: float
    guaranteed_share: float
    opportunistic_share: float
    oracle_share: float | None
    efficiency: float | None


@dataclass(frozen=True)
class JobRecord:
    """One run of one job."""

    steps: tuple[Step, ...]
    events: tuple[Event, ...] = ()
    sha256: str = ""
    stats: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WindowRecord:
    """One window: its mode, its jobs (by name) and what was sampled meanwhile.

    Older recordings have neither `device` nor `warm_up`.
    """

    mode: Mode
    round: int
    jobs: Mapping[str, JobRecord]
    events: tuple[Event, ...] = ()
    memory: tuple[MemorySample, ...] = ()
    cpu: tuple[CpuSample, ...] = ()
    device: tuple[DeviceUse, ...] = ()
    warm_up: int = 0  # first steps of each job that count for nothing


def read_log(log: TextIO) -> tuple[list[Step], list[Event], int]:
    """Read on in the JSON lines that an example script writes.

    Returns the steps and the events, and where to read on: a line still being written is left.
    """
    steps: list[Step] = []
    events: list[Event] = []
    position = log.tell()
    while (line := log.readline()).endswith("\n"):
        position = log.tell()
        row = json.loads(line)
        if "step" in row:
            steps.append(
                Step(row["time"], row["seconds"], row["wait_seconds"], row["batch"], row["loss"])
            )
        else:
            events.append(Event(row["time"], row["event"], float(row.get("seconds", 0.0))))
    return steps, events, position
