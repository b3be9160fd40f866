# SPDX-License-Identifier: Apache-2.0
"""Records what the windows of a pair of jobs say, or why they say nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from gpu_sensors import Sensors
from pair_figures import PairRecord, clean_pairs, oracle
from pair_modes import (
    APART,
    EQUAL,
    KERNELS_DO_NOTHING,
    OF_MODE,
    OURS,
    RIVALS,
    Jobs,
    figures_of,
)
from pair_picture import Point, draw
from stage_report import TIME_WAS_UP, StageReport, on_simulated_driver

DRAWS = 500  # of a bootstrap interval


def tell_tail(
    report: StageReport, name: str, values: Sequence[float], most: float | None, **facts: object
) -> None:
    """Record the 99th percentile of times, with the others beside it."""
    if not values:
        report.not_run(name, "nothing was seen")
        return
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    facts |= {"of": "p99", "n": len(ordered), "p50": statistics.median(ordered), "max": ordered[-1]}
    report.value(name, p99, "s", most=most, **facts)


def tell_sharing(
    report: StageReport, jobs: Jobs, modes: Sequence[str], record: PairRecord, picture: Path
) -> str:
    """Record slowdown, harvest and what they are compared with; draw them.

    Returns why there is no picture; empty: there is one.
    """
    names = [name for name in figures_of(jobs, modes) if not name.startswith(APART)]
    missing = ""
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        missing = f"no package {error.name}"
    for name in names if missing or on_simulated_driver() else ():
        if on_simulated_driver():
            report.not_simulated(name, KERNELS_DO_NOTHING)
        else:
            report.not_run(name, missing)
    if missing or on_simulated_driver():
        return missing or KERNELS_DO_NOTHING
    busy = [pair.busy for pairs in record.modes.values() for pair in pairs]
    most = oracle(statistics.median(busy)) if busy else 0.0
    if busy:
        report.value("busy_share", busy, "of the time", wanted=jobs.busy)
        report.value("oracle", most, "of the time")
    else:
        report.not_run("busy_share", TIME_WAS_UP)
        report.not_run("oracle", TIME_WAS_UP)
    tell_mode(report, jobs, EQUAL, record, most)
    found = {mode: tell_mode(report, jobs, mode, record, most) for mode in modes}
    points = {mode: point for mode, point in found.items() if point is not None}
    tell_rivals(report, modes, points)
    title = f"{jobs.guaranteed}+{jobs.opportunistic}, {record.card}"
    return draw(points, most, title, picture)


def tell_mode(
    report: StageReport, jobs: Jobs, mode: str, record: PairRecord, most: float
) -> Point | None:
    """Record the figures of a mode. `most`: the oracle."""
    from commensal.demo.statistics import paired_ratio_interval

    every = record.modes.get(mode, [])
    pairs = clean_pairs(every)
    names = [f"{mode}.slowdown"] if mode == EQUAL else [f"{mode}.{name}" for name in OF_MODE]
    if not pairs:
        reason = TIME_WAS_UP
        if every:
            reason = f"the clock moved, or a job made no step, in each of {len(every)} pairs"
        for name in names:
            report.not_run(name, reason)
        return None
    both = [(pair.shared, pair.alone) for pair in pairs]
    facts = {"pairs": len(pairs), "dropped": len(every) - len(pairs)}
    found = []
    for name, part, target in zip(names, (0.5, 0.99), (0.01, 0.03), strict=False):
        slower = paired_ratio_interval(both, part=part, draws=DRAWS).shifted(-1.0)
        interval = {"low": slower.low, "high": slower.high}
        bound = target if mode == OURS else None
        report.value(name, slower.value, "ratio", most=bound, **facts, **interval)
        found.append(slower)
    if mode == EQUAL:
        return None
    slowdown = found[0]
    harvests = [pair.progress / pair.seconds / record.calibration["alone_rate"] for pair in pairs]
    harvest = statistics.median(harvests)
    in_sum = harvest + 1.0 / (1.0 + slowdown.value)
    report.value(names[2], harvest, "of alone", windows=harvests, sum_of_rates=in_sum)
    if most > 0.0:
        least = 0.85 if mode == OURS and jobs.name == "e1" else None
        report.value(names[3], harvest / most, "of the oracle", least=least)
    else:
        report.not_run(names[3], "the guaranteed job leaves nothing")
    return Point(harvest, slowdown.value, slowdown.low, slowdown.high)


def tell_rivals(report: StageReport, modes: Sequence[str], points: dict[str, Point]) -> None:
    """Record how far our law is ahead of each other one."""
    for rival in modes:
        if rival not in RIVALS or OURS not in modes:
            continue
        names = f"{OURS}.slowdown_less.{rival}", f"{OURS}.harvest_over.{rival}"
        if rival not in points or OURS not in points:
            for name in names:
                report.not_run(name, "one of both was not measured")
            continue
        ours, theirs = points[OURS], points[rival]
        report.value(names[0], ours.slowdown - theirs.slowdown, "ratio", most=0.0)
        report.value(names[1], ours.harvest / max(1e-9, theirs.harvest), "x", least=1.0)


def tell_sensors(report: StageReport, sensors: Sensors | None, reason: str) -> None:
    """Record what the card told while both jobs were there."""
    readings = sensors.readings if sensors else []
    for name, unit, values in (
        ("sm_clock", "MHz", [one.sm_mhz for one in readings]),
        ("power", "W", [one.milliwatts / 1e3 for one in readings]),
        ("temperature", "degrees C", [one.celsius for one in readings]),
    ):
        if on_simulated_driver():
            report.not_simulated(name, "the driver has no sensors")
        elif values:
            report.value(name, values, unit, readings=values, problem=reason)
        else:
            report.not_run(name, reason or TIME_WAS_UP)
