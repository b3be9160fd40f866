# SPDX-License-Identifier: Apache-2.0
"""An explanation as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is Chrome's trace event format: microseconds, one "process" a job, one for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

__all__ = ["to_trace"]

_DEVICE = 1


def to_trace(explanation: dict[str, Any]) -> dict[str, Any]:
    """Turn an explanation with its series into trace events; time 0 is its beginning."""
    length = explanation["asked_seconds"] + explanation.get("until_seconds_ago", 0.0)
    names = {job["id"]: number for number, job in enumerate(explanation["series"], start=2)}
    events = [_name(_DEVICE, "device")]
    for job in explanation["series"]:
        number = names[job["id"]]
        events.append(_name(number, f"{job['name']} ({job['class']})"))
        events += _counters(job["samples"], number, length)
    for decision in explanation["decisions"]:
        events.append(
            {
                "ph": "i",
                "s": "p",
                "name": decision["kind"],
                "pid": names.get(decision["job"], _DEVICE),
                "tid": 0,
                "ts": _at(decision, length),
                "args": {"why": decision["text"]},
            }
        )
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _name(number: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": name}}


def _at(record: dict[str, Any], length: float) -> float:
    return max(0.0, (length - float(record["seconds_ago"])) * 1e6)


def _counters(
    samples: list[dict[str, Any]], number: int, length: float
) -> Iterator[dict[str, Any]]:
    def counter(name: str, sample: dict[str, Any], value: float) -> dict[str, Any]:
        at = _at(sample, length)
        return {"ph": "C", "name": name, "pid": number, "tid": 0, "ts": at, "args": {name: value}}

    for before, sample in pairwise(samples):
        seconds = before["seconds_ago"] - sample["seconds_ago"]
        if seconds <= 0:
            continue
        for name, total in (
            ("gate closed", "closed_seconds_total"),
            ("cores used", "core_seconds_total"),
            ("waiting for data", "waited_seconds_total"),
        ):
            # Where a sample says when the second began, a rate since then stands at its beginning.
            yield counter(name, before, (sample[total] - before[total]) / seconds)
        yield counter("steps a second", before, (sample["steps"] - before["steps"]) / seconds)
        yield counter("share beside it, %", sample, 100 * sample["share"])
        if sample["slowdown"] is not None:
            yield counter("slowdown, %", sample, 100 * sample["slowdown"])
