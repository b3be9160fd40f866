# SPDX-License-Identifier: Apache-2.0
"""What a coordinator answered once (`commensal status --json`), and variations of it."""

from __future__ import annotations

from typing import Any

__all__ = ["Record", "job", "machine"]

Record = dict[str, Any]


def job(name: str, job_class: str = "opportunistic", **more: Any) -> Record:
    return {
        "job": {"id": f"{name}-1234abcd", "name": name, "class": job_class, "tenant": "vision"},
        "memory": {
            "device_bytes": 3 << 28,
            "host_bytes": 1 << 20,
            "parked_bytes": 0,
            "limit_bytes": 1 << 30,
            "deferred_bytes": 4096,
            "deferred_reason": "thread x blocks signals",
            "notes": ["no slower tier"],
        },
        "gate": {
            "law": "gap",
            "state": "closed",
            "share": 1.0,
            "reason": "a burst",
            "closed_seconds_total": 150.0,
        },
        "step": {"number": 123456, "median_seconds": 0.0123},
        "activity": {"state": "busy"},
        "lease": {
            "granted_bytes": 1 << 30,
            "target_bytes": 1 << 30,
            "reason": "opportunistic: its maximum fits",
        },
        "share": {"now": 0.02, "reason": "the objective is kept"},
        "members": [{"pid": 7, "role": "helper", "rank": 0}, {"pid": 8, "role": "rank", "rank": 1}],
        "slowdown": 0.0123,
        "slowdown_error": 0.004,
        "started_seconds_ago": 300.0,
        "ended": False,
        **more,
    }


def machine(*jobs: Record) -> Record:
    return {
        "coordinator": {"instance": "default", "pid": 42, "uptime_seconds": 90.0},
        "devices": [
            {
                "id": "host",
                "cores": 2.0,
                "capacity_bytes": 8 << 30,
                "granted_bytes": 1 << 30,
                "free_bytes": 7 << 30,
            }
        ],
        "jobs": list(jobs),
    }
