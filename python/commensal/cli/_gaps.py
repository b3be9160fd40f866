# SPDX-License-Identifier: Apache-2.0
"""How a guaranteed job's gaps, and the rules for using them, are written for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commensal._quantities import format_seconds

__all__ = ["LEAST_SHARE", "describe_gap", "describe_gaps", "describe_rules"]

Record = dict[str, Any]

LEAST_SHARE = 0.001  # of the time; less is not worth a word


def describe_gap(gap: Record) -> str:
    """Write one class: "loader 120 a minute of 30 ms (90 % up to 42 ms), 60 % of the time"."""
    return (
        f"{gap['phase']} {gap['per_minute']:.0f} a minute of "
        f"{format_seconds(gap['median_seconds'])} (90 % up to "
        f"{format_seconds(gap['p90_seconds'])}), {100 * gap['share']:.1f} % of the time"
    )


def describe_gaps(gaps: list[Record]) -> str:
    """Write the classes that matter, the one with the most time first; empty: there is none."""
    return "; ".join(describe_gap(gap) for gap in gaps if gap["share"] >= LEAST_SHARE)


def describe_rules(record: Record) -> Iterator[str]:
    """Yield what an opportunistic job may do in gaps, if anything is said about it."""
    if reason := (record.get("gap_rules") or {}).get("reason"):
        yield reason
