# SPDX-License-Identifier: Apache-2.0
"""`commensal explain` of a submitted job: its life, line by line."""

from __future__ import annotations

from typing import Any

from commensal.cli._job_life import describe_life


def life(*history: tuple[str, str, str]) -> list[str]:
    """Return the lines of a history of (from, to, reason), without their times."""
    job: dict[str, Any] = {
        **{"id": "7", "name": "train", "tenant": "vision", "gpus": 1, "asked": "auto"},
        **{"state": history[-1][1], "reason": history[-1][2], "placement": []},
    }
    lines = [
        {"at_ms": 1000 * number, "from": before, "to": to, "attempt": 1, "reason": reason}
        for number, (before, to, reason) in enumerate(history)
    ]
    told = {"job": job, "spec": {"command": ["python", "train.py"]}, "history": lines}
    described = list(describe_life(told))
    return [line[len("  1970-01-01 00:00:00.000  ") :] for line in described[-len(history) :]]


def test_a_state_is_named_once_and_what_happens_in_it_by_its_reason() -> None:
    assert life(
        ("submitted", "submitted", "submitted"),
        ("submitted", "queued", "waits for the policy"),
        ("queued", "running", "its ranks were started"),
        ("running", "running", "cancelled by its user"),
        ("running", "cancelled", "cancelled by its user"),
    ) == [
        "submitted",
        "queued       waits for the policy",
        "running      its ranks were started",
        "             cancelled by its user",
        "cancelled    cancelled by its user",
    ]
