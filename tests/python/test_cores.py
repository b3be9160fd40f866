# SPDX-License-Identifier: Apache-2.0
"""Jobs that keep to the cores that a guaranteed one leaves: their results, and their threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

# One thread that never waits: it leaves the other cores, and notices its neighbours.
ALONE_ON_ONE = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
print("ready", flush=True)
while True:
    optimizer.zero_grad()
    model(torch.ones(64, 512)).sum().backward()
    optimizer.step()
"""
# Trains a fixed number of steps, the later ones only when a file is there. Tells the result, and
# what it computed with.
TRAIN = """
import hashlib, json, os, sys, threading, torch
go = sys.argv[1]
torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256), torch.nn.LayerNorm(256)
)
optimizer = torch.optim.Adam(model.parameters())
digest, threads, cpus = hashlib.sha256(), set(), set()
def note():
    threads.add(torch.get_num_threads())
    new = threading.Thread(target=lambda: threads.add(torch.get_num_threads()))
    new.start(), new.join()
    if "commensal" in sys.modules and os.environ.get("COMMENSAL_RUN"):
        import commensal
        cpus.add(commensal.stats()["cores"]["cpus"])
print("ready", flush=True)
for step in range(300):
    while step >= 100 and not os.path.exists(go):
        # Work that is no part of the result, so that the neighbour has something to notice.
        torch.ones(512, 512) @ torch.ones(512, 512)
        with torch.no_grad():
            optimizer.zero_grad()
        spare = torch.nn.Parameter(torch.ones(1))
        spare.grad = torch.zeros(1)
        torch.optim.SGD([spare], lr=0.0).step()
        note()
    loss = model(torch.randn(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
    note()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(json.dumps({"digest": digest.hexdigest(), "threads": sorted(threads), "cpus": sorted(cpus)}))
"""
THREADS = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < THREADS, reason="needs two CPUs, there is one"
    ),
]


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, dict[str, Any]]]:
    """Train alone, beside a job that leaves one core, and so with elastic threads."""
    world = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    script, go = world.script(TRAIN, "train.py"), world.folder / "go"
    jobs = {"plain": [], "elastic": ["--elastic-threads"]}

    def run(*options: str, job_class: str = "--opportunistic") -> list[str]:
        return [str(COMMENSAL), "run", job_class, *options, "--", sys.executable]

    first = world.start(
        [
            *run("--name", "prod", "--slo", "0.1", job_class="--guaranteed"),
            world.script(ALONE_ON_ONE, "prod.py"),
        ]
    )
    read_line(first, "ready")
    started = {
        name: world.start(
            [*run("--name", name, *options), script, str(go)], OMP_NUM_THREADS=str(THREADS)
        )
        for name, options in jobs.items()
    }
    for job in started.values():
        read_line(job, "ready")

    def kept(name: str) -> bool:
        [job] = json.loads(world.commensal("status", name, "--json").stdout)["jobs"]
        cores = job["cores"]
        moved = bool(cores["cpus"]) and cores["cpus"] != cores["own"]
        return moved and (name != "elastic" or cores["threads"] == 1)

    for name in jobs:
        wait_until(f"{name} keeps to fewer cores", lambda name=name: kept(name))  # type: ignore[misc]
    go.touch()
    told: dict[str, dict[str, Any]] = {}
    for name, job in started.items():
        out, errors = job.communicate(timeout=DEADLINE)
        assert job.returncode == 0, errors
        told[name] = json.loads(out.splitlines()[-1])
    first.kill()
    alone = subprocess.run(
        [sys.executable, script, str(go)],
        env=world.environ | {"OMP_NUM_THREADS": str(THREADS)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=True,
    )
    told["alone"] = json.loads(alone.stdout.splitlines()[-1])
    yield told
    world.close()


def test_keeping_to_fewer_cores_changes_no_bit_of_a_result(
    results: dict[str, dict[str, Any]],
) -> None:
    plain, alone = results["plain"], results["alone"]
    assert len(plain["cpus"]) > 1, "it was kept to fewer cores"
    assert plain["threads"] == alone["threads"] == [THREADS]
    assert plain["digest"] == alone["digest"]


def test_the_number_of_threads_follows_where_its_user_lets_it(
    results: dict[str, dict[str, Any]],
) -> None:
    assert results["elastic"]["threads"] == [1, THREADS]
    assert len(results["elastic"]["cpus"]) > 1
