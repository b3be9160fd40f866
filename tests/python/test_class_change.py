# SPDX-License-Identifier: Apache-2.0
"""`commensal set JOB --class`: real jobs change their class while they train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

from commensal._coordinator import Change, Coordinator
from commensal.cli import main
from commensal.cli._launch import may_renice

# Trains until a file appears, or for so many steps, and tells how many and what came of it.
SCRIPT = """
import hashlib, json, os, sys, torch
until, stop_file = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
print("training", flush=True)
step = 0
while step != until and not os.path.exists(stop_file):
    x = torch.randn(64, 64)
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
digest = hashlib.sha256()
for parameter in model.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print(json.dumps({"steps": step, "digest": digest.hexdigest()}), flush=True)
"""


def coordinator(world: World) -> Coordinator:
    return Coordinator("default", world.runtime_dir)


def job_named(world: World, name: str) -> dict[str, Any]:
    jobs = [one for one in coordinator(world).status(name)["jobs"] if not one["ended"]]
    return jobs[0] if jobs else {}


def start_job(world: World, name: str, *options: str) -> subprocess.Popen[str]:
    process = world.start(
        [
            *(str(COMMENSAL), "run", "--name", name, *options, "--"),
            *(sys.executable, world.script(SCRIPT), "-1", str(world.folder / f"{name}.stop")),
        ]
    )
    read_line(process, "training")
    return process


def stop_job(world: World, name: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    (world.folder / f"{name}.stop").touch()
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return facts


def trains_on(world: World, name: str, steps: int = 5) -> None:
    """Wait until a job has done so many steps more."""
    begun = int(job_named(world, name)["step"]["number"])
    wait_until(
        f"{name} trains on", lambda: job_named(world, name)["step"]["number"] >= begun + steps
    )


def law_of(world: World, name: str) -> str:
    return str(job_named(world, name)["gate"]["law"])


def change_class(world: World, name: str, wanted: str) -> None:
    change = coordinator(world).set(name, job_class=wanted)
    if change.outcome == "deferred":  # on a machine that is busy with other things
        wait_until("the class changes", lambda: not job_named(world, name)["class_change"])
    else:
        assert change.outcome == "applied", change.reason
    assert job_named(world, name)["job"]["class"] == wanted


def test_a_job_that_changes_its_class_twice_trains_as_alone(world: World) -> None:
    # A machine that is busy with other things would starve the kernel's idle class.
    neighbour = start_job(world, "prod", "--guaranteed")
    job = start_job(world, "sweep", "--no-idle-class")
    for wanted, law in (("guaranteed", "open"), ("opportunistic", "gap")):
        trains_on(world, "sweep")
        change_class(world, "sweep", wanted)
        wait_until(f"it is paced by {law}", lambda: law_of(world, "sweep") == law)  # noqa: B023
    trains_on(world, "sweep")
    shared = stop_job(world, "sweep", job)
    stop_job(world, "prod", neighbour)
    assert shared["steps"] >= 25
    alone = world.run(
        [sys.executable, world.script(SCRIPT), str(shared["steps"]), str(world.folder / "none")]
    )
    assert json.loads(alone.stdout.splitlines()[-1]) == shared


def test_the_command_line_says_what_became_of_it(world: World) -> None:
    job = start_job(world, "sweep", "--no-idle-class")
    done = world.commensal(
        "set", "sweep", "--class", "guaranteed", "--memory", "64MiB", "--slo", "3"
    )
    assert done.returncode == 0, done.stderr
    assert "sweep: applied (revision " in done.stdout
    assert "guaranteed, law open, limit 64 MiB" in done.stdout
    now = job_named(world, "sweep")
    assert (now["lease"]["min_bytes"], now["slo"]) == (64 << 20, 0.03)
    again = world.commensal("set", "sweep", "--class", "guaranteed", "--json")
    assert json.loads(again.stdout)["reason"] == "it is guaranteed"
    assert "(guaranteed, " in world.commensal("status", "sweep").stdout
    explained = world.commensal("explain", "sweep").stdout
    assert "guaranteed, law open: upgraded where it runs" in explained
    refused = world.commensal("set", "sweep", "--class", "opportunistic", "--slo", "3")
    assert refused.returncode == 4
    assert "this one is opportunistic" in refused.stderr
    wrong = world.commensal("set", "sweep", "--class", "auto")
    assert wrong.returncode == 2
    assert "neither guaranteed nor opportunistic: 'auto'" in wrong.stderr
    stop_job(world, "sweep", job)


def test_a_floor_that_cannot_fit_is_refused_with_the_values(world: World) -> None:
    job = start_job(world, "sweep", "--no-idle-class")
    done = world.commensal("set", "sweep", "--class", "guaranteed", "--memory", "64TiB")
    assert done.returncode == 4
    assert "memory minimum above the device: 64 TiB > " in done.stderr
    assert job_named(world, "sweep")["job"]["class"] == "opportunistic"
    with pytest.raises(ValueError, match="neither guaranteed nor opportunistic: 'vip'"):
        coordinator(world).set("sweep", job_class="vip")
    stop_job(world, "sweep", job)


@pytest.mark.skipif(not may_renice(), reason="only CAP_SYS_NICE leaves the kernel's idle class")
def test_the_class_survives_a_killed_coordinator(world: World) -> None:
    job = start_job(world, "sweep")
    pid = int(job_named(world, "sweep")["members"][0]["pid"])
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    change_class(world, "sweep", "guaranteed")
    assert os.sched_getscheduler(pid) == os.SCHED_OTHER
    [daemon] = world.daemons()
    daemon.kill()
    daemon.wait()
    assert coordinator(world).ensure_running() == ""
    wait_until("the job registers again", lambda: job_named(world, "sweep"))
    now = job_named(world, "sweep")
    assert now["job"]["class"] == "guaranteed"
    assert "opportunistic" not in now["job"]["reason"]
    trains_on(world, "sweep")
    change_class(world, "sweep", "opportunistic")
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    stop_job(world, "sweep", job)


def test_an_older_coordinator_that_ignores_it_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [{"job": {"class": "opportunistic"}, "ended": False}]
    monkeypatch.setattr(Coordinator, "status", lambda *_: {"jobs": jobs})
    monkeypatch.setattr(Coordinator, "set", lambda *_, **__: Change("sweep", 0, "applied", ""))
    assert main(["set", "sweep", "--class", "guaranteed"]) == 4
    assert "of an older version, which does not change classes" in capsys.readouterr().err
    jobs[0]["job"] = {"class": "guaranteed"}
    assert main(["set", "sweep", "--class", "guaranteed"]) == 0
