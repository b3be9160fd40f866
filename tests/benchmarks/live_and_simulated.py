# SPDX-License-Identifier: Apache-2.0
"""The same jobs on a live coordinator and in the simulator: what both say of how long they took.

Jobs are short processes that only wait, on devices that exist by name. Live times have what the
simulator does not know: starting a process, noticing its end, writing both down.
"""

from __future__ import annotations

import csv
import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cluster_process import Coordinator
from harness import Bar, Bench, BenchmarkError, Result

from commensal.simulation.program import failure, find_simulator

DEVICES = 8
POLICY = "antman"
QUOTAS = {"vision": 6, "speech": 4}
SEED = 9
GAP = 0.5  # seconds between two submissions, in the mean
RUN = 1.5  # seconds: the median of how long jobs run
SPREAD = 0.7  # deviation of its logarithm
GPUS = ((1, 0.7), (2, 0.2), (4, 0.1))


@dataclass(frozen=True)
class Job:
    """One job of the workload; times in seconds."""

    submit: float
    duration: float
    gpus: int
    tenant: str


def workload(count: int) -> list[Job]:
    """Draw jobs: Poisson arrivals, durations of a lognormal distribution."""
    draw = np.random.default_rng(SEED)
    at = np.cumsum(draw.exponential(GAP, count))
    run = np.round(np.clip(draw.lognormal(np.log(RUN), SPREAD, count), 0.2, 12.0), 3)
    gpus = draw.choice([size for size, _ in GPUS], count, p=[share for _, share in GPUS])
    tenants = draw.choice(list(QUOTAS), count)
    return [
        Job(round(float(when), 3), float(seconds), int(size), str(tenant))
        for when, seconds, size, tenant in zip(at, run, gpus, tenants, strict=True)
    ]


def run(*, quick: bool) -> Result:
    """Run the workload on a live coordinator, then in the simulator, and compare."""
    result = Result(
        "live_and_simulated",
        f"The same jobs, live and simulated: {POLICY}, {DEVICES} devices, two tenants",
        ["completion", "live", "simulated", "ratio"],
    )
    jobs = workload(20 if quick else 200)
    bench = Bench(result, quick=quick)
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as name:
        live = bench.window(f"{len(jobs)} jobs, live", lambda: live_times(jobs))
        simulated = simulated_times(jobs, Path(name))
    for what, of in (
        ("average", np.mean),
        ("median", np.median),
        ("95th percentile", lambda times: np.percentile(times, 95)),
    ):
        ours, theirs = float(of(live)), float(of(simulated))
        result.rows.append((what, f"{ours:.3f} s", f"{theirs:.3f} s", f"{ours / theirs:.3f}"))
        result.figures[what] = {"live_s": ours, "simulated_s": theirs}
        if what == "average":
            off = abs(ours / theirs - 1) * 100
            result.bars.append(Bar("average completion, apart", off, most=10.0, unit=" %"))
    result.figures |= {
        "jobs": len(jobs),
        "policy": POLICY,
        "live_s": live,
        "simulated_s": simulated,
    }
    return result


def live_times(jobs: list[Job]) -> list[float]:
    """Submit each at its time; return how long each took until its end, as the coordinator says."""
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as name:
        coordinator = Coordinator(
            Path(name), *("--devices", str(DEVICES)), *("--policy", POLICY), *("--commensal", "")
        )
        try:
            coordinator.start()
            for tenant, quota in QUOTAS.items():
                coordinator.ask("quota", tenant=tenant, quota=quota)
            begin = time.monotonic()
            ids = []
            for job in jobs:
                time.sleep(max(0.0, job.submit - (time.monotonic() - begin)))
                ids.append(coordinator.ask("submit", job=request(job))["id"])
            wait_until_over(coordinator, 60 + 3 * sum(job.duration for job in jobs))
            ended = {job["id"]: job for job in coordinator.ask("queue", all=True)["jobs"]}
        finally:
            if coordinator.pid:
                coordinator.end_jobs()
            coordinator.kill()
    wrong = [job for job in ended.values() if job["state"] != "finished"]
    if wrong or len(ended) != len(jobs):
        raise BenchmarkError(f"{len(ended)} of {len(jobs)} jobs ended, {len(wrong)} of them badly")
    return [(ended[id]["changed_ms"] - ended[id]["submitted_ms"]) / 1e3 for id in ids]


def request(job: Job) -> dict[str, Any]:
    """Write a job whose first rank takes that long; the others wait for the same time."""
    return {
        **{"name": "wait", "tenant": job.tenant, "class": "guaranteed", "gpus": job.gpus},
        **{"cpu_milli": 0, "host_memory_mib": 0, "environment": {}, "directory": "/"},
        "command": ["/bin/sleep", f"{job.duration:.3f}"],
    }


def wait_until_over(coordinator: Coordinator, most: float) -> None:
    deadline = time.monotonic() + most
    while coordinator.ask("queue")["jobs"]:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the jobs were not over after {most:.0f} s")
        time.sleep(0.5)


def simulated_times(jobs: list[Job], folder: Path) -> list[float]:
    """Put the same jobs through the same policy; return how long each took."""
    trace, cluster, out = (folder / name for name in ("jobs.csv", "cluster.json", "out.csv"))
    with trace.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("job", "submit", "duration", "gpus", "tenant", "class"))
        for number, job in enumerate(jobs):
            writer.writerow((number, job.submit, job.duration, job.gpus, job.tenant, "guaranteed"))
    cluster.write_text(
        json.dumps(
            {
                "nodes": [{"name": "n", "gpus": DEVICES}],
                "tenants": [{"name": name, "quota": quota} for name, quota in QUOTAS.items()],
            }
        )
    )
    done = subprocess.run(
        [
            *(find_simulator(), "--trace", trace, "--format", "commensal", "--cluster", cluster),
            *("--policy", POLICY, "--semantics", "commensal", "--jobs-out", out),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(str(failure(done.returncode, done.stderr)))
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) != len(jobs):
        raise BenchmarkError(f"the simulator ran {len(rows)} of {len(jobs)} jobs")
    return [float(row["jct"]) for row in rows]
