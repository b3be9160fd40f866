# SPDX-License-Identifier: Apache-2.0
"""The life of a submitted job, written for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import Any

__all__ = ["describe_life"]

_WAITS = frozenset({"submitted", "queued", "reserved"})


def describe_life(told: dict[str, Any]) -> Iterator[str]:
    """Write the answer to an `explain` of the cluster's coordinator."""
    job, spec = told["job"], told["spec"]
    state = job["state"]
    if "class" in job:
        state += f" as {job['class']}"
    yield f"job {job['id']} ({job['name']}) of tenant {job['tenant']}: {state}"
    devices = "device" if job["gpus"] == 1 else "devices"
    yield f"  asked for {job['gpus']} {devices}, {job['asked']}: {shlex.join(spec['command'])}"
    if job["placement"]:
        places = (f"{place['node']}:{place['device']}" for place in job["placement"])
        yield f"  on {', '.join(places)}"
    if job["state"] in _WAITS:
        yield f"  {job['reason']}"
    if job["state"] == "parked":
        yield f"  {job['reason']}; 'commensal resume {job['id']}' queues it again"
    if "rule" in job:
        yield f"  its rule: {job['rule']}"
    yield ""
    for number, line in enumerate(told["history"]):
        at = datetime.fromtimestamp(line["at_ms"] / 1000).isoformat(" ", "milliseconds")
        # Where the state stays, the reason says what has happened: "cancelled by its user".
        stays = number > 0 and line["from"] == line["to"]
        change = "" if stays else line["to"]
        reason = "" if line["reason"] == change else line["reason"]
        yield f"  {at}  {change:<12} {reason}".rstrip()
