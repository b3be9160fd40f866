# SPDX-License-Identifier: Apache-2.0
"""Jobs on GPUs as `commensal run` starts them with no option and no variable: gated by the GPU's
time, PyTorch's own memory bound by the limit. On the simulated driver.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from training import facts_of
from world import COMMENSAL, World, read_line, wait_until

Facts = dict[str, Any]

COMMON = """
import json, os, sys, time, torch
def make_optimizer(device="cuda"):
    weight = torch.nn.Parameter(torch.zeros(16, device=device))
    weight.grad = torch.zeros(16, device=device)
    return torch.optim.SGD([weight], lr=0.0)
def told():
    import commensal
    return commensal.stats()
def memory(*names):
    found = told()["memory"]
    return {name: found[name] for name in names}
"""


def driver_of(world: World, **settings: object) -> dict[str, str]:
    """Return the environment of jobs on simulated GPUs, and nothing of ours in it."""
    settings = {"MEMORY": 512 << 20, "LEDGER": world.folder / "ledger"} | settings
    environ = simulated_gpus(**settings)
    del environ["COMMENSAL_GPU_MEMORY"]
    return environ


def run(world: World, script: str, *options: str, **environ: str) -> Facts:
    done = world.commensal("run", *options, "--", sys.executable, world.script(script), **environ)
    assert done.returncode == 0, done.stderr
    return facts_of(done) | {"stderr": done.stderr}


TWO = (
    COMMON
    + """
optimizer = make_optimizer()
ready = False
while not os.path.exists("stop"):
    # The first block of a step is its sign of work: nothing else tells that the pause is over.
    (torch.ones(1 << 18, device="cuda") * 2).sum()
    optimizer.step()
    if not ready:
        print("ready", flush=True)
        ready = True
    time.sleep(0.005)
gate = told()["gate"]
print(json.dumps(memory("policy", "limit_bytes", "notes") | {"busy": gate["busy_seconds_total"]}))
"""
)


def test_two_jobs_share_one_gpu_and_no_variable_is_set(world: World) -> None:
    driver = driver_of(world, KERNEL_US=50)
    script = world.script(TWO)
    jobs = {}
    for name in ("guaranteed", "opportunistic"):
        command = [str(COMMENSAL), "run", f"--{name}", "--name", name, "--no-idle-class", "--"]
        jobs[name] = world.start([*command, sys.executable, script], **driver)
        read_line(jobs[name], "ready")

    def shown() -> dict[str, Any]:
        return {job["job"]["name"]: job for job in world.status()["jobs"]}

    def is_gated() -> bool:
        gate = shown()["opportunistic"]["gate"]
        return bool(gate["closed_seconds_total"] and gate["ops_gated_total"])

    wait_until("the gate of the opportunistic job has held an op", is_gated)
    now = shown()
    [device] = now["guaranteed"]["devices"]
    assert device.startswith("GPU-")
    assert now["opportunistic"]["devices"] == [device]

    def pauses() -> int:
        return sum(gap["waits_total"] for gap in shown()["guaranteed"]["activity"]["gaps"])

    wait_until("the guaranteed job shows its pauses", pauses)
    (world.folder / "stop").touch()
    for job in jobs.values():
        output, errors = job.communicate(timeout=60)
        facts = json.loads(output.splitlines()[-1])
        assert facts["policy"] == "native"
        assert ", GPU memory native, " in errors.splitlines()[0]
        assert f"this job is on {device}, with native GPU memory" in errors


ON_HOST = (
    COMMON
    + """
early = [torch.full((4 << 20,), 1.0) for _ in range(4)]  # 64 MiB
facts = {"early": memory("limit_bytes", "device_bytes")}
optimizer = make_optimizer("cpu")
patience = time.monotonic() + 60
while told()["memory"]["device_bytes"] > 40 << 20 and time.monotonic() < patience:
    optimizer.step()
    time.sleep(0.01)
facts["after"] = memory("policy", "limit_bytes", "device_bytes", "host_bytes")
facts["same"] = all(bool((block == 1.0).all()) for block in early)
import commensal
print(json.dumps(facts | {"initialized": torch.cuda.is_initialized()}))
"""
)


def test_a_script_that_never_starts_cuda_stays_on_the_host(world: World) -> None:
    facts = run(world, ON_HOST, "--opportunistic", "--memory", "32MiB", **driver_of(world))
    assert not facts["initialized"]
    assert facts["stderr"].count("this job uses no GPU: its device is the host") == 1
    # What it asks for may be for the GPU, up to its first step.
    assert facts["early"]["device_bytes"] >= 64 << 20
    after = facts["after"]
    assert after["policy"] == "elastic"
    assert after["limit_bytes"] == 32 << 20
    assert after["device_bytes"] <= 40 << 20
    assert after["host_bytes"] >= 24 << 20
    assert facts["same"]


DATA_FIRST = (
    COMMON
    + """
data = [torch.full((4 << 20,), float(i)) for i in range(8)]  # 128 MiB, on the host
facts = {"host": memory("device_bytes", "host_bytes")}
block = torch.ones(4 << 20, device="cuda")
facts["on gpu"] = memory("policy", "limit_bytes", "device_bytes", "live_bytes")
make_optimizer().step()
facts["same"] = [float(one[-1]) for one in data] == [float(i) for i in range(8)]
print(json.dumps(facts))
"""
)


def test_what_a_job_keeps_on_the_host_is_not_bound_by_its_gpu_memory(world: World) -> None:
    facts = run(world, DATA_FIRST, "--guaranteed", "--memory", "64MiB", **driver_of(world))
    assert facts["host"]["host_bytes"] == 0, "nothing had to leave fast memory"
    assert facts["on gpu"]["policy"] == "native"
    assert facts["on gpu"]["limit_bytes"] == 64 << 20
    assert 16 << 20 <= facts["on gpu"]["device_bytes"] <= 64 << 20
    assert facts["same"]
    assert "uses no GPU" not in facts["stderr"]


DOUBLING = (
    COMMON
    + """
facts = {"info": torch.cuda.mem_get_info()[1] >> 20}  # before its first block: the card
make_optimizer().step()
facts["info"] = [facts["info"], torch.cuda.mem_get_info()[1] >> 20]
size = 8 << 20
try:
    while size < 1 << 34:
        block = torch.empty(size, dtype=torch.uint8, device="cuda")
        del block
        torch.cuda.empty_cache()
        facts["largest"] = size >> 20
        size *= 2
except torch.OutOfMemoryError as error:
    facts["error"] = str(error)
print(json.dumps(facts))
"""
)


@pytest.mark.parametrize("limit", ["100MiB", ""])
def test_a_program_that_doubles_its_batch_finds_the_limit(world: World, limit: str) -> None:
    options = ["--memory", limit] if limit else []
    facts = run(world, DOUBLING, "--opportunistic", *options, **driver_of(world))
    assert facts["error"].startswith("CUDA out of memory. Tried to allocate ")
    if limit:
        assert facts["largest"] == 64
        assert facts["info"][1] == 100
    else:  # all that the coordinator can give
        assert facts["largest"] == 256


HOLDS = (
    COMMON
    + """
optimizer = make_optimizer()
blocks = [torch.full((4 << 20,), float(i), device="cpu").cuda() for i in range(12)]  # 192 MiB
print("holds", flush=True)
while not os.path.exists("shrink"):
    optimizer.step()
    time.sleep(0.01)
del blocks[2:]
optimizer.step()
while told()["memory"]["device_bytes"] > 64 << 20:
    optimizer.step()
    time.sleep(0.01)
print("gave back", flush=True)
while not os.path.exists("stop"):
    optimizer.step()
    time.sleep(0.01)
print(json.dumps(memory("device_bytes") | {"same": [float(b[0]) for b in blocks]}))
"""
)
NEEDS = (
    COMMON
    + """
optimizer = make_optimizer()
optimizer.step()
blocks = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(6)]
print(json.dumps(memory("device_bytes")))
"""
)


def test_a_limit_that_falls_takes_the_cache_and_another_job_has_it(world: World) -> None:
    driver = driver_of(world)
    command = [str(COMMENSAL), "run", "--opportunistic", "--name", "holds", "--no-idle-class", "--"]
    job = world.start([*command, sys.executable, world.script(HOLDS, "holds.py")], **driver)
    read_line(job, "holds")
    world.commensal("set", "holds", "--memory", "64MiB")
    (world.folder / "shrink").touch()
    read_line(job, "gave back")
    facts = run(world, NEEDS, "--guaranteed", "--memory", "400MiB", **driver)
    assert facts["device_bytes"] >= 384 << 20
    (world.folder / "stop").touch()
    output, _ = job.communicate(timeout=60)
    kept = json.loads(output.splitlines()[-1])
    assert kept["device_bytes"] <= 64 << 20
    assert kept["same"] == [0.0, 1.0]


SEVERAL = (
    COMMON
    + """
torch.cuda.set_device(1)
optimizer = make_optimizer()
there = torch.ones(4 << 20, device="cuda:0")
optimizer.step()
found = told()["memory"]
def error_on(device):
    try:
        torch.empty(200 << 20, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        return str(error)[:18]
print(json.dumps({
    "devices": [{"id": d["device"], "limit": d["limit_bytes"], "held": d["device_bytes"]}
                for d in found["devices"]],
    "errors": [error_on("cuda:0"), error_on("cuda:1")],
}))
"""
)


def test_each_gpu_that_a_process_uses_is_one_of_its_devices(world: World) -> None:
    driver = driver_of(world, DEVICES=3)
    facts = run(world, SEVERAL, "--opportunistic", "--memory", "128MiB", **driver)
    [other] = facts["devices"]
    assert other["limit"] == 128 << 20
    assert other["held"] >= 16 << 20
    assert facts["errors"] == ["CUDA out of memory", "CUDA out of memory"]
    [first] = [line for line in facts["stderr"].splitlines() if "this job is on GPU-" in line]
    assert other["id"] not in first, "the first device is the one that was used first"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--opportunistic", "--gpu-memory", "swap"], "neither native nor elastic: 'swap'"),
        (["--guaranteed", "--gpu-memory", "elastic"], "keeps PyTorch's own allocator"),
    ],
)
def test_a_wrong_kind_of_gpu_memory_is_named(world: World, options: list[str], words: str) -> None:
    done = world.commensal("run", *options, "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert "ran" not in done.stdout


@pytest.mark.parametrize("backend", ["", "backend:cudaMallocAsync"])
def test_elastic_is_had_by_option_and_told_where_it_cannot_be(world: World, backend: str) -> None:
    script = COMMON + "make_optimizer().step()\nprint(json.dumps(memory('policy')))"
    if backend:
        script = COMMON + "torch.cuda.init()\nprint(json.dumps(memory('policy', 'notes')))"
    facts = run(
        world,
        script,
        *("--opportunistic", "--gpu-memory", "elastic"),
        **driver_of(world),
        PYTORCH_CUDA_ALLOC_CONF=backend,
    )
    if not backend:
        assert facts["policy"] == "elastic"
        assert ", GPU memory elastic, " in facts["stderr"]
    else:
        assert facts["policy"] == "native"
        assert "GPU memory is native, not elastic: PyTorch's CUDA allocator is" in facts["stderr"]


def test_a_machine_without_a_gpu_is_as_it_was(world: World) -> None:
    script = COMMON + "make_optimizer('cpu').step()\nprint(json.dumps(memory('policy')))"
    driver = driver_of(world) | {"CUDA_VISIBLE_DEVICES": ""}
    facts = run(world, script, "--opportunistic", **driver)
    assert facts["policy"] == "elastic"
    assert "GPU" not in facts["stderr"]
    facts = run(world, script, "--opportunistic", "--gpu-memory", "elastic", **driver)
    assert "commensal does not manage it: this process sees no GPU" in facts["stderr"]


def test_elastic_memory_that_a_driver_refuses_is_native_and_bound(world: World) -> None:
    failing = {"SIMULATED_CUDA_FAIL": "cuMemGetAllocationGranularity:1:CUDA_ERROR_NOT_SUPPORTED"}
    script = DOUBLING.replace('"info"', '"told"').replace(
        "print(json", "facts |= memory('policy', 'notes')\nprint(json"
    )
    options = ("--opportunistic", "--gpu-memory", "elastic", "--memory", "100MiB")
    facts = run(world, script, *options, **driver_of(world), **failing)
    assert facts["policy"] == "native"
    assert "CUDA_ERROR_NOT_SUPPORTED" in facts["notes"][-1]
    assert "with native GPU memory" in facts["stderr"]
    assert facts["error"].startswith("CUDA out of memory. Tried to allocate ")
    assert facts["largest"] == 64
