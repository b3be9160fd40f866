# SPDX-License-Identifier: Apache-2.0
"""What a profile says: sentences and a table for people, one object for scripts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commensal._quantities import format_bytes, format_seconds
from commensal.profiling.analysis import (
    EDGES_SECONDS,
    LEAST_GAP_SECONDS,
    PHASES,
    Analysis,
    oracle_share,
)
from commensal.profiling.touched import Touched

__all__ = ["PHASE_NAMES", "SLOWDOWN", "Profile", "describe", "sentence", "to_json"]

SLOWDOWN = 0.01  # what the sentence allows, and the coordinator's usual objective
MOST_OUTSIDE = 0.03
MOST_STEAL = 0.01

PHASE_NAMES = {"data": "waiting for data", "pause": "between steps", "step": "within steps"}


@dataclass(frozen=True)
class Profile:
    """What was measured; `analysis` is None where there was too little, `reason` says why."""

    name: str
    command: tuple[str, ...]
    exit_code: int
    ended_by: str  # "itself", "--seconds" or "--steps"
    cores: float
    outside_share: float
    steal_share: float
    sample_seconds: float
    analysis: Analysis | None
    reason: str
    touched: tuple[Touched, ...]
    touched_problem: str
    memory: dict[str, Any]  # of the job's last report; empty: there was none

    @property
    def quiet(self) -> bool:
        return self.outside_share <= MOST_OUTSIDE and self.steal_share <= MOST_STEAL

    @property
    def most_touched(self) -> Touched | None:
        """The window in which the largest share was touched."""
        return max(self.touched, key=lambda window: window.share, default=None)


def sentence(profile: Profile) -> str:
    """Say in one sentence what a neighbour could take, or why that cannot be said."""
    if profile.analysis is None:
        return f"cannot say what a neighbour could take: {profile.reason}"
    parts = []
    free = oracle_share(profile.analysis.busy_share, SLOWDOWN)
    parts.append(
        f"a neighbour could use {_percent(free)} of this device at {_percent(SLOWDOWN)} slowdown"
    )
    touched = profile.most_touched
    if touched is not None:
        parts.append(f"memory can shrink to {_percent(touched.share)}")
    return "; ".join(parts)


def describe(profile: Profile) -> str:
    """Return the whole report as lines of text."""
    code = f"exit code {profile.exit_code}"
    ended = f"ended by {profile.ended_by}" if profile.ended_by != "itself" else code
    lines = [f"profile of {profile.name}, alone on {profile.cores:g} cores ({ended})"]
    rows = _rows(profile.analysis) if profile.analysis is not None else []
    rows.append(("memory", _memory(profile)))
    rows.append(("others", _others(profile)))
    lines += [f"  {name:<15} {text}" for name, text in rows]
    return "\n".join([*lines, sentence(profile)])


def _rows(a: Analysis) -> list[tuple[str, str]]:
    step = format_seconds(a.step_median_seconds)
    least = format_seconds(LEAST_GAP_SECONDS)
    phases = ", ".join(
        f"{_percent(a.gap_share[phase])} {PHASE_NAMES[phase]}"
        for phase in PHASES
        if a.gap_share[phase] >= 0.0005
    )
    found = f"{_percent(a.gaps_share)}, {a.gaps_per_second:.1f} a second"
    return [
        ("steps", f"{a.steps} x {step} in {a.seconds:.1f} s, after {a.start_seconds:.1f} s"),
        ("busy", f"{_percent(a.busy_share)} of the device's time"),
        (f"gaps >= {least}", f"{found}: {phases}" if phases else found),
        ("shorter gaps", _percent(a.short_gap_share)),
        ("beside it", f"{_percent(a.beside_share)}: cores it leaves idle while it computes"),
    ]


def _memory(profile: Profile) -> str:
    touched = profile.most_touched
    if touched is not None:
        return (
            f"{format_bytes(touched.touched_bytes)} of {format_bytes(touched.resident_bytes)} of "
            f"{touched.what} touched in {touched.seconds:.1f} s ({touched.steps} steps)"
        )
    why = profile.touched_problem or "it ended before a window of time was over"
    peak = profile.memory.get("peak_device_bytes")
    most = "" if not peak else f"at most {format_bytes(peak)} of tensors; "
    return f"{most}what of it is cold is not known: {why}"


def _others(profile: Profile) -> str:
    used = f"used {_percent(profile.outside_share)} of the machine meanwhile"
    if profile.steal_share >= 0.0005:
        used += f", the hypervisor took {_percent(profile.steal_share)}"
    return used if profile.quiet else f"{used}: NOT quiet, take these figures as rough"


def to_json(profile: Profile) -> dict[str, Any]:
    """Return the object of docs/stats.md."""
    a, touched = profile.analysis, profile.most_touched
    return {
        "schema": 1,
        "judged": a is not None and profile.quiet,
        "reason": profile.reason or ("" if profile.quiet else _others(profile)),
        "sentence": sentence(profile),
        "job": {
            "name": profile.name,
            "command": list(profile.command),
            "exit_code": profile.exit_code,
            "ended_by": profile.ended_by,
        },
        "machine": {
            "cores": profile.cores,
            "outside_share": profile.outside_share,
            "steal_share": profile.steal_share,
            "quiet": profile.quiet,
        },
        "window": None if a is None else _window(profile, a),
        "device": None if a is None else _device(a),
        "gaps": None if a is None else _gaps(a),
        "memory": None if touched is None else _touched(touched),
        "memory_problem": "" if touched is not None else profile.touched_problem,
        "statistics": profile.memory or None,
    }


def _window(profile: Profile, a: Analysis) -> dict[str, Any]:
    return {
        "start_seconds": a.start_seconds,
        "seconds": a.seconds,
        "steps": a.steps,
        "step_median_seconds": a.step_median_seconds,
        "sample_seconds": profile.sample_seconds,
    }


def _device(a: Analysis) -> dict[str, Any]:
    return {
        "busy_share": a.busy_share,
        "gap_share": a.gaps_share,
        "short_gap_share": a.short_gap_share,
        "beside_share": a.beside_share,
        "slowdown": SLOWDOWN,
        "neighbour_share": oracle_share(a.busy_share, SLOWDOWN),
    }


def _gaps(a: Analysis) -> dict[str, Any]:
    phases = {}
    for phase in PHASES:
        counts, shares = a.histogram(phase)
        phases[phase] = {"share": a.gap_share[phase], "counts": counts, "shares": shares}
    return {
        "least_seconds": LEAST_GAP_SECONDS,
        "per_second": a.gaps_per_second,
        "edges_seconds": list(EDGES_SECONDS),
        "phases": phases,
    }


def _touched(touched: Touched) -> dict[str, Any]:
    return {
        "what": touched.what,
        "resident_bytes": touched.resident_bytes,
        "touched_bytes": touched.touched_bytes,
        "cold_bytes": max(0, touched.resident_bytes - touched.touched_bytes),
        "shrink_to_share": touched.share,
        "seconds": touched.seconds,
        "steps": touched.steps,
    }


def _percent(share: float) -> str:
    """Write a share as people read it: "43 %", but "2.1 %"."""
    digits = 1 if abs(share) < 0.0995 and round(share * 100, 1) % 1 else 0
    return f"{share * 100:.{digits}f} %"
