# SPDX-License-Identifier: Apache-2.0
"""A small measurement, as if recorded: its figures are known."""

from __future__ import annotations

from dataclasses import replace

from commensal._report.quiet import Verdict
from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Measurement
from commensal.demo.plan import FULL
from commensal.demo.runs import CpuSample, Event, JobRecord, MemorySample, Mode, Step, WindowRecord

MIB = 1 << 20


def job(
    step_ms: float, *, count: int = 20, start: float = 0.0, wait_ms: float = 0.0, sha: str = "a"
) -> JobRecord:
    """Return a job with equal steps, one after the other."""
    seconds = (step_ms + wait_ms) / 1e3
    steps = tuple(
        Step(start + (i + 1) * seconds, seconds, wait_ms / 1e3, 32, float(i).hex())
        for i in range(count)
    )
    return JobRecord(steps=steps, sha256=sha)


def with_stats(record: JobRecord, moved: int = 0) -> JobRecord:
    """Add what the step tracker and the allocator said at the job's end."""
    period = record.steps[1].end - record.steps[0].end
    return JobRecord(
        record.steps,
        (Event(record.steps[9].end, "double"), Event(record.steps[12].end, "evaluation", 0.02)),
        record.sha256,
        {
            "step": {"number": len(record.steps), "median_seconds": period},
            "memory": {
                "moved_bytes_total": moved,
                "moved_ahead_bytes_total": 100 * MIB,
                "longest_pause_seconds": 0.004,
            },
        },
    )


def memory_samples(limits_mib: list[int], live_mib: int = 200) -> tuple[MemorySample, ...]:
    """Return what an obedient job shows while its limit changes; ten samples a second."""
    samples = []
    out = back = host = 0
    for i, limit in enumerate(limits_mib):
        wanted = max(0, live_mib - limit)
        out += max(0, wanted - host)
        back += max(0, host - wanted)
        host = wanted
        samples.append(
            MemorySample(
                time=i / 10,
                job=OPPORTUNISTIC,
                limit_bytes=limit * MIB,
                device_bytes=(live_mib - host) * MIB,
                host_bytes=host * MIB,
                host_touched_bytes=0,
                moved_out_bytes_total=out * MIB,
                moved_ahead_bytes_total=out // 2 * MIB,
                moved_in_bytes_total=back * MIB,
                gate_state="open",
                gate_closed_seconds=0.0,
            )
        )
    return tuple(samples)


def recorded_measurement() -> Measurement:
    """Two jobs, one round: sharing by default doubles the guaranteed step, ours adds 1 %."""
    limits = [224, 224, 72, 72, 224, 224, 72, 224, 72, 224]
    cpu = tuple(
        CpuSample(0.1 + i * 0.004, name, i * 0.002)
        for i in range(200)
        for name in (GUARANTEED, OPPORTUNISTIC)
    )
    windows = (
        WindowRecord(Mode.GUARANTEED_ALONE, 0, {GUARANTEED: job(20, wait_ms=30)}),
        WindowRecord(Mode.OPPORTUNISTIC_ALONE, 0, {OPPORTUNISTIC: job(50)}),
        WindowRecord(
            Mode.DEFAULT,
            0,
            {
                OPPORTUNISTIC: job(100, count=15, sha=""),
                GUARANTEED: job(40, wait_ms=30),
            },
            cpu=cpu,
        ),
        WindowRecord(
            Mode.COMMENSAL,
            0,
            {
                OPPORTUNISTIC: with_stats(job(80), moved=600 * MIB),
                GUARANTEED: with_stats(job(20.2, wait_ms=30)),
            },
            events=(
                Event(0.0, "grant", 224.0 * MIB, OPPORTUNISTIC, "its maximum fits"),
                Event(0.2, "set", 72.0 * MIB, OPPORTUNISTIC),
                Event(0.2, "grant", 72.0 * MIB, OPPORTUNISTIC, "what guaranteed jobs leave"),
                Event(0.4, "set", 224.0 * MIB, OPPORTUNISTIC),
            ),
            memory=(
                *memory_samples(limits),
                *(replace(s, job=GUARANTEED) for s in memory_samples([64] * 10, live_mib=60)),
            ),
            cpu=cpu,
        ),
    )
    return Measurement(
        plan=FULL,
        windows=windows,
        verdicts=(Verdict(0.001, 0.0, 0.5),) * len(windows),
        judged=True,
        notes=(),
        machine={"processor": "a processor", "cores": 2},
    )
