# SPDX-License-Identifier: Apache-2.0
"""A job that keeps to the cores that a guaranteed one leaves: its results, and its threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from world import COMMENSAL, DEADLINE, World, read_line

# One thread that never waits: it leaves the other cores, and notices who is on its own. Ten seconds
# alone, by which it is measured later: in a few, a machine that others slow down is no baseline.
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
    if step == 4000:
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
COORDINATORS = 3
PATIENCE = 40.0  # seconds; on a quiet machine it takes about ten
OURS = sorted(os.sched_getaffinity(0))

# Whether a neighbour seems to suffer depends on how fast the machine was while it was measured
# alone; where that changes by a third, one try in three fails. What follows from it is tested
# without a clock: core_share_test, core_keeper_test, session_cores_test.
pytestmark = [
    pytest.mark.soak,
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


def beside_one_that_leaves_a_core(*options: str) -> dict[str, Any]:
    """Train beside a job that leaves a core, the end once it keeps to that.

    Where other things slowed the machine down while its neighbour was measured alone, that one does
    not seem to suffer; or the coordinator saw no gain from it, and does not try again for ten
    minutes. Then another one is asked.
    """
    told = []
    for _ in range(COORDINATORS):
        world = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
        try:
            job = start_beside(world, *options)
            if keeps_to_fewer(world, threads="--elastic-threads" in options):
                (world.folder / "go").touch()
                return results_of(job)
            told.append(world.commensal("explain", "late").stdout)
        finally:
            world.close()
    pytest.fail("it does not keep to fewer cores:\n" + "\n".join(told))


def start_beside(world: World, *options: str) -> subprocess.Popen[str]:
    prod = world.start(
        [
            *(str(COMMENSAL), "run", "--guaranteed", "--name", "prod", "--"),
            *(sys.executable, world.script(ALONE_ON_ONE, "prod.py")),
        ]
    )
    read_line(prod, "ready")
    # In no gap and in no class: its neighbour is sure to suffer on its core.
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--opportunistic", "--name", "late", *options),
            *("--law", "open", "--no-idle-class", "--", sys.executable, world.script(TRAIN)),
            str(world.folder / "go"),
        ],
        OMP_NUM_THREADS=str(THREADS),
    )
    read_line(job, "ready")
    return job


def keeps_to_fewer(world: World, *, threads: bool) -> bool:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        [told] = json.loads(world.commensal("status", "late", "--json").stdout)["jobs"]
        cores = told["cores"]
        moved = bool(cores["cpus"]) and cores["cpus"] != cores["own"]
        if moved and (not threads or cores["threads"] == 1):
            return True
        time.sleep(0.2)
    return False


def results_of(job: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the end of a job, and return what it told last."""
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def test_with_fewer_cores_results_are_the_same_to_the_last_bit(alone: dict[str, Any]) -> None:
    assert (alone["threads"], alone["cpus"]) == ([THREADS], [OURS])
    told = beside_one_that_leaves_a_core()
    assert told["digest"] == alone["digest"]
    assert told["threads"] == [THREADS]  # on one core
    assert [OURS[1]] in told["cpus"]


def test_the_number_of_threads_follows_where_its_user_allows_it() -> None:
    told = beside_one_that_leaves_a_core("--elastic-threads")
    assert 1 in told["threads"]
    assert [OURS[1]] in told["cpus"]
