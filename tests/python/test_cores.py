# SPDX-License-Identifier: Apache-2.0
"""A job that keeps to the cores that a guaranteed one leaves: its results, and its threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

# One thread that never waits: it leaves the other cores, and notices who is on its own.
ALONE_ON_ONE = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.ones(64, 512)).sum().backward()
    optimizer.step()
    step += 1
    if step == 1000:
        print("ready", flush=True)
"""
# Trains a fixed number of steps, the later ones only when a file is there. Tells the result, and
# what it computed with after that.
TRAIN = """
import hashlib, json, os, sys, threading, torch
go = sys.argv[1]
torch.manual_seed(3)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256), torch.nn.LayerNorm(256)
)
optimizer = torch.optim.Adam(model.parameters())
spare = torch.nn.Parameter(torch.ones(1))
spare.grad = torch.zeros(1)
idle = torch.optim.SGD([spare], lr=0.0)
digest, threads, cpus = hashlib.sha256(), set(), set()
def note():
    threads.add(torch.get_num_threads())
    new = threading.Thread(target=lambda: threads.add(torch.get_num_threads()))
    new.start(), new.join()
    cpus.add(tuple(sorted(os.sched_getaffinity(0))))
print("ready", flush=True)
for step in range(200):
    while step >= 50 and not os.path.exists(go):
        # Steps that are no part of the result, so that the neighbour has something to notice.
        torch.ones(1024, 1024) @ torch.ones(1024, 1024)
        idle.step()
    loss = model(torch.randn(128, 256)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    digest.update(loss.detach().numpy().tobytes())
    if step >= 60:
        note()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(json.dumps({"digest": digest.hexdigest(), "threads": sorted(threads), "cpus": sorted(cpus)}))
"""
THREADS = 2
OURS = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(len(OURS) != THREADS, reason=f"needs two CPUs, there are {len(OURS)}"),
]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Train without commensal."""
    world = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    try:
        (world.folder / "go").touch()
        job = world.start(
            [sys.executable, world.script(TRAIN), str(world.folder / "go")],
            OMP_NUM_THREADS=str(THREADS),
        )
        return results_of(job)
    finally:
        world.close()


def beside_one_that_leaves_a_core(world: World, *options: str) -> dict[str, Any]:
    """Train beside a job that leaves a core, the end once it keeps to that."""
    prod = world.start(
        [
            *(str(COMMENSAL), "run", "--guaranteed", "--name", "prod", "--"),
            *(sys.executable, world.script(ALONE_ON_ONE, "prod.py")),
        ]
    )
    read_line(prod, "ready")
    go = world.folder / "go"
    # In no gap and in no class: its neighbour is sure to suffer on its core.
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--opportunistic", "--name", "late", *options),
            *("--law", "open", "--no-idle-class", "--", sys.executable, world.script(TRAIN)),
            str(go),
        ],
        OMP_NUM_THREADS=str(THREADS),
    )
    read_line(job, "ready")

    def kept() -> bool:
        [told] = world.status("late")["jobs"]
        cores = told["cores"]
        moved = bool(cores["cpus"]) and cores["cpus"] != cores["own"]
        return moved and ("--elastic-threads" not in options or cores["threads"] == 1)

    wait_until("it keeps to fewer cores", kept)
    go.touch()
    return results_of(job)


def results_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a job, and return what it told last."""
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def test_with_fewer_cores_results_are_the_same_to_the_last_bit(
    world: World, alone: dict[str, Any]
) -> None:
    assert (alone["threads"], alone["cpus"]) == ([THREADS], [OURS])
    told = beside_one_that_leaves_a_core(world)
    assert told["digest"] == alone["digest"]
    assert told["threads"] == [THREADS]  # on one core
    assert [OURS[1]] in told["cpus"]


def test_the_number_of_threads_follows_where_its_user_allows_it(world: World) -> None:
    told = beside_one_that_leaves_a_core(world, "--elastic-threads")
    assert 1 in told["threads"]
    assert [OURS[1]] in told["cpus"]
