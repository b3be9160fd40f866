# SPDX-License-Identifier: Apache-2.0
"""`qssf` under Helios' semantics, beside the rules of Helios' artifact written down tick by tick.

The artifact (S-Lab-System-Group/HeliosArtifact, QSSF Service) cannot run here: it needs logs and a
trained model. Its rules of the queue, of places and of the estimate from history can.
"""

from __future__ import annotations

import csv
import difflib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("commensal-simulate")
NODES, GPUS = 4, 8


@dataclass(eq=False)
class Job:
    submit: int
    duration: int
    gpus: int
    user: str
    name: str
    priority: float | None = None
    places: dict[int, int] = field(default_factory=dict)
    end: int = 0


class Estimator:
    """The mean of the user's jobs of this name, or of the two closest ones."""

    def __init__(self) -> None:
        self.ended: list[Job] = []
        self.names: list[str] = []

    def learn(self, job: Job) -> None:
        self.ended.append(job)
        if job.name not in self.names:
            self.names.append(job.name)

    def service(self, job: Job) -> float:
        if not self.ended:
            return 0.0  # ours: the artifact always has months of history
        of_user = [old for old in self.ended if old.user == job.user]
        close = difflib.get_close_matches(job.name, self.names, n=2, cutoff=0.6)
        if not close:
            return mean(of_user or self.ended) * job.gpus
        names = close[:1] if close[0] == job.name else close
        of_user = [old for old in of_user if old.name in names]
        if not of_user:
            return mean([old for old in self.ended if old.name in names]) * job.gpus
        alike = [old for old in of_user if old.gpus == job.gpus]
        return int(mean(alike or of_user) * job.gpus)


def mean(jobs: Sequence[Job]) -> float:
    return sum(job.duration for job in jobs) / len(jobs)


def place(free: list[int], gpus: int) -> dict[int, int] | None:
    """Consolidate: the fullest node that fits; larger jobs on free nodes, and the rest beside."""
    if gpus <= GPUS:
        fits = [node for node in range(NODES) if free[node] >= gpus]
        return {min(fits, key=lambda node: free[node]): gpus} if fits else None
    whole, rest = divmod(gpus, GPUS)
    empty = [node for node in range(NODES) if free[node] == GPUS][:whole]
    if len(empty) < whole:
        return None
    places = dict.fromkeys(empty, GPUS)
    if rest:
        fits = [node for node in range(NODES) if node not in places and free[node] >= rest]
        if not fits:
            return None
        places[max(fits, key=lambda node: free[node])] = rest
    return places


def by_the_rules(jobs: list[Job]) -> float:
    """Return the mean completion time."""
    jobs = sorted(jobs, key=lambda job: (job.submit, job.gpus, job.duration))
    coming, queue, running = list(jobs), list[Job](), list[Job]()
    free, estimator, now = [GPUS] * NODES, Estimator(), jobs[0].submit
    while coming or queue or running:
        for job in [job for job in running if job.end == now]:
            running.remove(job)
            for node, gpus in job.places.items():
                free[node] += gpus
            estimator.learn(job)
        new = [job for job in coming if job.submit == now]
        coming = coming[len(new) :]
        queue = sorted(queue + new, key=lambda job: job.gpus)
        if len(queue) > len(new):
            for job in queue:
                if job.priority is None:
                    job.priority = estimator.service(job)
            queue.sort(key=lambda job: job.priority or 0.0)
        while queue and (places := place(free, queue[0].gpus)) is not None:
            job = queue.pop(0)
            job.places, job.end = places, now + job.duration
            for node, gpus in places.items():
                free[node] -= gpus
            running.append(job)
        # The artifact ticks each second; nothing happens at others.
        ticks = [job.end for job in running] + [job.submit for job in coming[:1]]
        if any(job.priority is None for job in queue):
            ticks.append(now + 1)
        now = min(ticks, default=now)
    return sum(job.end - job.submit for job in jobs) / len(jobs)


def simulated(*arguments: str) -> dict[str, list[dict[str, dict[str, float]]]]:
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=True)
    answer: dict[str, list[dict[str, dict[str, float]]]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(("seed", "load"), [("1", "1.3"), ("2", "0.8"), ("3", "1.0")])
def test_equals_the_rules_of_the_artifact(tmp_path: Path, seed: str, load: str) -> None:
    trace = str(tmp_path / "jobs.csv")
    like = ("jobs=300", "median-seconds=30", "gpus=32", f"load={load}")
    options = [word for option in like for word in ("--option", option)]
    simulated("--generate", "recurrent", "--out", trace, "--seed", seed, *options)
    with open(trace, newline="") as file:
        jobs = [
            Job(int(r["submit"]), int(r["duration"]), int(r["gpus"]), r["user"], r["name"])
            for r in csv.DictReader(file)
        ]
    cluster = ("--nodes", str(NODES), "--gpus-per-node", str(GPUS))
    base = ("--trace", trace, *cluster, "--semantics", "helios", "--policy")
    ours = simulated(*base, "qssf")["results"][0]["metrics"]["avg_jct"]
    assert ours == pytest.approx(by_the_rules(jobs), rel=1e-12)
    assert ours != simulated(*base, "fifo")["results"][0]["metrics"]["avg_jct"]
