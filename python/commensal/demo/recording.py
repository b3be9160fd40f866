# SPDX-License-Identifier: Apache-2.0
"""Keeps everything that a run recorded in one file, from which its report can be drawn again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from commensal._report.quiet import Verdict
from commensal.demo.figures import Measurement
from commensal.demo.plan import DemoPlan, LimitChange
from commensal.demo.runs import (
    CpuSample,
    DeviceUse,
    Event,
    JobRecord,
    MemorySample,
    Mode,
    Step,
    WindowRecord,
)

__all__ = ["load", "save"]


def save(path: Path, measurement: Measurement) -> None:
    """Write a measurement as compressed JSON."""
    text = json.dumps(asdict(measurement), separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load(path: Path) -> Measurement:
    """Read what `save` wrote."""
    raw = json.loads(gzip.decompress(path.read_bytes()))
    plan: dict[str, Any] = {
        k: tuple(v) if k.endswith("_options") else v for k, v in raw["plan"].items()
    }
    plan["limit_changes"] = tuple(LimitChange(**change) for change in plan["limit_changes"])
    return Measurement(
        plan=DemoPlan(**plan),
        windows=tuple(_window(window) for window in raw["windows"]),
        verdicts=tuple(Verdict(**verdict) for verdict in raw["verdicts"]),
        judged=raw["judged"],
        notes=tuple(raw["notes"]),
        machine=raw["machine"],
    )


def _window(raw: Mapping[str, Any]) -> WindowRecord:
    return WindowRecord(
        mode=Mode(raw["mode"]),
        round=raw["round"],
        jobs={name: _job(job) for name, job in raw["jobs"].items()},
        events=tuple(Event(**event) for event in raw["events"]),
        memory=tuple(MemorySample(**sample) for sample in raw["memory"]),
        cpu=tuple(CpuSample(**sample) for sample in raw["cpu"]),
        device=tuple(DeviceUse(**use) for use in raw.get("device", ())),
        warm_up=raw.get("warm_up", 0),
    )


def _job(raw: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        steps=tuple(Step(**step) for step in raw["steps"]),
        events=tuple(Event(**event) for event in raw["events"]),
        sha256=raw["sha256"],
        stats=raw["stats"],
    )
