# SPDX-License-Identifier: Apache-2.0
"""A share of a GPU's multiprocessors (--sm-share), on the simulated driver."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from world import COMMENSAL, World, wait_until

from commensal._terms import JobTerms

# Trains until it is told to stop. What `step` returns: launches of kernels by the number of
# multiprocessors of their stream, 0 for all of them.
JOB = """
import ctypes, json, os, sys, time, torch
driver = ctypes.CDLL("libcuda.so.1")
driver.simulated_cuda_launches_on.restype = ctypes.c_uint64
values = torch.arange(1 << 16, dtype=torch.float32)
kept = values.cuda()
weight = torch.nn.Parameter(torch.zeros(4096, device="cuda"))
optimizer = torch.optim.Adam([weight])
def launches():
    return {count: driver.simulated_cuda_launches_on(count) for count in (0, 32, 64)}
def step():
    before = launches()
    optimizer.zero_grad()
    (weight * kept[:4096]).sum().backward()
    optimizer.step()
    after = launches()
    return {count: after[count] - before[count] for count in after if after[count] > before[count]}
def graph():
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        kept.add_(0)
    captured.replay()
    torch.cuda.synchronize()
def same():
    return bool(torch.equal(kept.cpu(), values))
"""

TRAIN = (
    JOB
    + """
seen = []
graphs = 0
ended = False
while not ended:
    ended = os.path.exists(sys.argv[1])  # the last step is one after that
    time.sleep(0.01)
    launched = sorted(step())
    if launched not in seen[-1:]:
        seen.append(launched)
        graph()
        graphs += 1
print(json.dumps({"seen": seen, "same": same(), "graphs": graphs}))
"""
)

BY_HAND = (
    JOB.replace(
        "import ctypes", "import torch, commensal; commensal.init(sm_share='0.3')\nimport ctypes"
    )
    + """
seen = [sorted(step()) for _ in range(4)]
print(json.dumps({"seen": seen, "same": same(), "told": commensal.stats()["multiprocessors"],
                  "notes": commensal.stats()["memory"]["notes"]}))
"""
)

# PyTorch's own green contexts, as a script may use them, on the simulated driver.
TORCHS_OWN = (
    JOB
    + """
green = torch.cuda.green_contexts.GreenContext.create(num_sms=30, device_id=0)
before = launches()[32]
with torch.cuda.stream(green.Stream()):
    kept.add_(0)
torch.cuda.synchronize()
between = launches()[32]
green.set_context()
kept.add_(0)
green.pop_context()
torch.cuda.synchronize()
print(json.dumps({"by_stream": between - before, "by_context": launches()[32] - between,
                  "same": same()}))
"""
)


@pytest.fixture
def driver() -> dict[str, str]:
    return simulated_gpus(MEMORY=1 << 29)


def facts(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


def test_an_unmodified_script_moves_at_the_end_of_its_step_and_trains_on(
    world: World, driver: dict[str, str]
) -> None:
    stop = world.folder / "stop"
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--name", "o", "--no-idle-class", "--sm-share", "0.3"),
            *("--", sys.executable, world.script(TRAIN), str(stop)),
        ],
        **driver,
    )

    def told() -> dict[str, Any]:
        jobs = world.status().get("jobs", [])
        return dict(jobs[0].get("multiprocessors", {})) if jobs else {}

    wait_until("32 SMs", lambda: told().get("granted") == 32)
    assert told() == {"share": 0.3, "asked": 39, "granted": 32, "total": 132, "reason": ""}
    text = world.commensal("status", "o", **driver).stdout
    assert "32 of 132, asked for 39 (share 0.3)" in text
    change = world.commensal("set", "o", "--sm-share", "0.5", **driver)
    assert "sm_share 0.5" in change.stdout, change.stderr
    wait_until("64 SMs", lambda: told().get("granted") == 64)
    assert world.commensal("set", "o", "--sm-share", "1", **driver).returncode == 0
    wait_until("132 SMs", lambda: told().get("granted") == 132)
    stop.touch()
    done = facts(job)
    # Each step ran on one part, backward included: no launch of it went elsewhere.
    assert done["seen"] == [[0], [32], [64], [0]]
    assert done["graphs"] == 4
    assert done["same"]


@pytest.mark.parametrize("call", ["cuGreenCtxStreamCreate", ""])
def test_a_call_that_fails_is_named_and_the_script_trains_on(
    world: World, driver: dict[str, str], call: str
) -> None:
    failing = {"SIMULATED_CUDA_FAIL": f"{call}:1:CUDA_ERROR_NOT_SUPPORTED"} if call else {}
    done = facts(world.start([sys.executable, world.script(BY_HAND)], **driver, **failing))
    assert done["same"]
    if not call:  # the twin: with the call, the steps after the first one have moved
        assert done["seen"] == [[0], [32], [32], [32]]
        assert done["told"]["granted"] == 32
        return
    assert done["seen"] == [[0]] * 4
    assert call in done["told"]["reason"]
    assert "CUDA_ERROR_NOT_SUPPORTED" in done["told"]["reason"]
    assert f"no share of the SMs: {done['told']['reason']}" in done["notes"]


ON_HOST = """
import json, torch, commensal
commensal.init(sm_share="0.3")
torch.ones(10)
print(json.dumps({"told": commensal.stats()["multiprocessors"]}))
"""


def test_a_job_that_uses_no_gpu_says_so(world: World, driver: dict[str, str]) -> None:
    native = driver | {"COMMENSAL_GPU_MEMORY": "native"}
    done = facts(world.start([sys.executable, world.script(ON_HOST)], **native))
    assert done["told"]["share"] == 0.3
    assert done["told"]["granted"] is None
    assert done["told"]["reason"] == "this process uses no GPU"


def test_a_job_with_pytorchs_own_memory_has_its_share(world: World, driver: dict[str, str]) -> None:
    native = driver | {"COMMENSAL_GPU_MEMORY": "native"}
    done = facts(world.start([sys.executable, world.script(BY_HAND)], **native))
    assert done["seen"] == [[0], [32], [32], [32]]
    assert done["same"]


def test_pytorchs_own_green_contexts_run_on_the_simulated_driver(
    world: World, driver: dict[str, str]
) -> None:
    plain = driver | {"COMMENSAL_GPU_MEMORY": "native"}
    done = facts(world.start([sys.executable, world.script(TORCHS_OWN)], **plain))
    assert done["by_stream"] >= 1
    assert done["by_context"] >= 1
    assert done["same"]


@pytest.mark.parametrize("value", ["0", "1.1", "-0.5", "half", "nan"])
def test_a_wrong_share_is_named(world: World, value: str) -> None:
    words = f"sm_share must be above 0 and at most 1: '{value}'"
    for command in (
        ("run", f"--sm-share={value}", "--", "true"),
        ("set", "o", f"--sm-share={value}"),
    ):
        done = world.commensal(*command)
        assert done.returncode == 2
        assert words in " ".join(done.stderr.replace("│", " ").split())


def test_a_guaranteed_job_keeps_all_of_them() -> None:
    assert JobTerms.parse({"sm_share": None}, guaranteed=True).sm_share is None
    assert JobTerms.parse({"sm_share": "0.5"}, guaranteed=False).sm_share == 0.5
    with pytest.raises(ValueError, match=r"keeps all multiprocessors of its GPU: '0\.5'"):
        JobTerms.parse({"sm_share": "0.5"}, guaranteed=True)


def test_doctor_tells_the_multiprocessors(world: World, driver: dict[str, str]) -> None:
    def line(environ: dict[str, str]) -> dict[str, str]:
        told = json.loads(world.commensal("doctor", "--json", **environ).stdout)
        [found] = [check for check in told["checks"] if check["name"] == "green contexts"]
        return dict(found)

    assert line(driver)["state"] == "ok"
    assert "132 SMs, in parts of at least 8, by 8" in line(driver)["detail"]
    refused = line(driver | {"SIMULATED_CUDA_FAIL": "cuDeviceGetDevResource:1:801"})
    assert refused["state"] == "off"
    assert "error 801" in refused["detail"]
