# SPDX-License-Identifier: Apache-2.0
"""Two real ranks of one job, gated together: toggled, killed, stopped, with a real daemon."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

from commensal._coordinator import Coordinator

# Trains data-parallel until the file of argument 1 appears, LEAST steps at least; its digest is of
# the last step. A rank whose
# peers are gone goes on by itself.
RANK = """
import hashlib, json, os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, stop_file = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/{sys.argv[2]}",
                        rank=rank, world_size=2)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
inputs = torch.Generator().manual_seed(rank)
stop, steps, facts = torch.zeros(1), 0, {"rank": rank}
def tell(*words):  # in one piece: two ranks write to one pipe
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
tell("training", rank)
try:
    while not stop.item() or steps < int(os.environ.get("LEAST", "60")):
        optimizer.zero_grad()
        parallel(torch.randn(16, 64, generator=inputs)).square().mean().backward()
        optimizer.step()
        steps += 1
        stop.fill_(float(os.path.exists(stop_file)))
        dist.all_reduce(stop)  # no rank stops before the other
except RuntimeError as error:
    tell("left alone", rank, str(error).splitlines()[0])
    while not os.path.exists(stop_file):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        facts["alone"] = facts.get("alone", 0) + 1
        if facts["alone"] == 50:
            tell("goes on alone", rank)
facts["steps"] = steps
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
facts["digest"] = digest.hexdigest()
import commensal
if commensal.is_active():
    facts["gate"] = commensal.stats()["gate"]
tell(json.dumps(facts))
os._exit(0)  # a process group whose peer is gone does not end in good order
"""

# Starts the ranks and waits for them, whatever becomes of them.
LAUNCH = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "rank.py", *sys.argv[1:]],
                     env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)
]
for rank in ranks:
    rank.wait()
"""


def launch(world: World, *command: str, least: int = 60) -> subprocess.Popen[str]:
    """Start the pair, under `command` or by itself; return when both train."""
    world.script(RANK, "rank.py")
    launcher = world.script(LAUNCH, "launch.py")
    name = "alone" if not command else "pair"
    stop = str(world.folder / f"{name}.stop")
    job = world.start(
        [*command, sys.executable, launcher, stop, f"{name}.meet"],
        GLOO_SOCKET_IFNAME="lo",
        LEAST=str(least),
    )
    for _ in range(2):
        read_line(job, "training")
    return job


def launch_gang(world: World) -> subprocess.Popen[str]:
    """Start the pair as a job; return when its ranks are gated together."""
    job = launch(
        world,
        *(str(COMMENSAL), "run", "--opportunistic", "--no-idle-class", "--name", "pair", "--"),
    )
    wait_until("the ranks are a gang", lambda: gang(world)["gated"])
    return job


def end(world: World, job: subprocess.Popen[str], name: str = "pair") -> list[dict[str, Any]]:
    """Let the pair end; return what its ranks told, by rank."""
    (world.folder / f"{name}.stop").touch()
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    told = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return sorted(told, key=lambda facts: int(facts["rank"]))


def coordinator(world: World) -> Coordinator:
    return Coordinator("default", world.runtime_dir)


def record(world: World) -> dict[str, Any]:
    [job] = coordinator(world).status("pair")["jobs"]
    return dict(job)


def gang(world: World) -> dict[str, Any]:
    told = record(world)["gang"]
    assert told is not None
    return dict(told)


def pid_of(world: World, rank: int) -> int:
    members = record(world)["members"]
    return next(int(m["pid"]) for m in members if m["role"] == "rank" and m["rank"] == rank)


@pytest.mark.parametrize("pauses", [50, pytest.param(5000, marks=pytest.mark.soak)])
def test_c10_toggles_of_a_gang_lose_nothing(world: World, pauses: int) -> None:
    job = launch_gang(world)
    daemon, dice = coordinator(world), random.Random(1)
    together = 0
    for toggle in range(pauses):
        assert daemon.set("pair", paused=True).outcome == "applied"
        if toggle % (pauses // 10) == 0:
            wait_until("all stand", lambda: re.match("closed together", gang(world)["reason"]))
            together += 1
        time.sleep(dice.uniform(0, 0.0008))
        assert daemon.set("pair", paused=False).outcome == "applied"
        time.sleep(dice.uniform(0, 0.0008))
    told = gang(world)
    assert told["gated"], told["reason"]
    assert told["closes_total"] >= pauses
    assert told["closes_together_total"] >= together == 10
    shown = world.commensal("status", "pair").stdout
    assert re.search(
        r"gang +2 ranks, epoch \d+: open together \(\d+ of \d+ times together\)", shown
    )
    explained = world.commensal("explain", "pair").stdout
    assert "gang: 2 ranks, epoch" in explained
    ranks = end(world, job)
    # As many steps, by themselves: all that the toggles were in the middle of is in the digest.
    alone = end(world, launch(world, least=ranks[0]["steps"]), "alone")
    assert alone[0]["steps"] == ranks[0]["steps"]
    assert [rank["digest"] for rank in ranks] == [rank["digest"] for rank in alone]
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert ranks[0]["steps"] == ranks[1]["steps"] > 60
    assert all(rank["gate"]["gang_epoch"] > pauses for rank in ranks)
    assert all(rank["gate"]["ops_gated_total"] > 0 for rank in ranks)


def test_a_killed_rank_frees_the_other(world: World) -> None:
    job = launch_gang(world)
    os.kill(pid_of(world, 1), signal.SIGKILL)
    read_line(job, "goes on alone 0")
    wait_until("the other is freed", lambda: not gang(world)["gated"])
    told = gang(world)
    assert told["epoch"] == 0
    assert told["reason"] == "1 of its 2 ranks are here"
    assert "gang      each rank is gated by itself: 1 of its 2 ranks are here" in (
        world.commensal("status", "pair").stdout
    )
    daemon = coordinator(world)
    daemon.set("pair", paused=True)  # it is gated by itself
    wait_until("it stands", lambda: record(world)["gate"]["state"] == "paused")
    daemon.set("pair", paused=False)
    [left] = end(world, job)
    assert left["rank"] == 0
    assert left["alone"] >= 50
    assert left["gate"]["gang_epoch"] == 0


@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_rank_frees_the_other_and_comes_back(world: World, paused: bool) -> None:
    job = launch_gang(world)
    first = gang(world)["epoch"]
    pid = pid_of(world, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        coordinator(world).set("pair", paused=paused)
        wait_until("the other is freed", lambda: not gang(world)["gated"])
        assert "rank 1 has shown no sign of life for" in gang(world)["reason"]
        assert gang(world)["epoch"] == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until("they are a gang again", lambda: gang(world)["gated"])
    assert gang(world)["epoch"] > first
    coordinator(world).set("pair", paused=False)
    ranks = end(world, job)
    assert ranks[0]["steps"] == ranks[1]["steps"]
    assert ranks[0]["digest"] == ranks[1]["digest"]


def test_a_job_goes_on_when_the_coordinator_of_its_gang_dies(world: World) -> None:
    job = launch_gang(world)
    [daemon] = world.daemons()
    daemon.kill()
    daemon.wait(DEADLINE)
    time.sleep(2.5)  # its heartbeat is stale by now
    ranks = end(world, job)
    assert ranks[0]["digest"] == ranks[1]["digest"]
    assert all(rank["gate"]["gang_epoch"] == 0 for rank in ranks)
