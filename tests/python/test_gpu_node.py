# SPDX-License-Identifier: Apache-2.0
"""Two jobs of one GPU under the node coordinator, on the simulated driver."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from world import COMMENSAL, World, wait_until

JOB = """
import json, sys, time, torch, commensal
mib, stop = int(sys.argv[1]), sys.argv[2]
tensor = torch.full((mib << 18,), 3.0).cuda()
address = tensor.data_ptr()
weight = torch.nn.Parameter(torch.zeros(16, device="cuda"))
weight.grad = torch.zeros(16, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.0)
def stopped():
    try:
        return bool(open(stop).close() is None)
    except FileNotFoundError:
        return False
while not stopped():
    time.sleep(0.02)
    optimizer.step()
told = commensal.stats()["memory"]
same = bool((tensor.cpu() == 3.0).all())
kept = address == tensor.data_ptr()
print(json.dumps({"memory": told, "same": same, "kept": kept}))
"""


class Gpu:
    """Jobs on one simulated GPU of 512 MiB that all processes see."""

    def __init__(self, world: World, driver: dict[str, str]) -> None:
        self.world = world
        self.driver = driver
        self.script = world.script(JOB)
        self.stop = world.folder / "stop"

    def start(self, mib: int, name: str, *options: str) -> subprocess.Popen[str]:
        return self.world.start(
            [
                *(str(COMMENSAL), "run", "--name", name, *options),
                *("--", sys.executable, self.script, str(mib), str(self.stop)),
            ],
            **self.driver,
        )

    def status(self) -> dict[str, Any]:
        done = self.world.commensal("status", "--json", **self.driver)
        told: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return told

    def job(self, name: str) -> dict[str, Any]:
        found = [job for job in self.status().get("jobs", []) if job["job"]["name"] == name]
        return found[0] if found else {}

    def memory(self, name: str, tier: str) -> int:
        return int(self.job(name).get("memory", {}).get(f"{tier}_bytes", 0)) >> 20

    def facts(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told


@pytest.fixture
def gpu(world: World) -> Gpu:
    return Gpu(world, simulated_gpus(MEMORY=512 << 20, LEDGER=world.folder / "ledger"))


def test_a_guaranteed_job_gets_the_gpus_memory_and_the_other_one_keeps_its_bytes(gpu: Gpu) -> None:
    other = gpu.start(300, "other", "--opportunistic", "--no-idle-class")
    wait_until("the first job's memory is there", lambda: gpu.memory("other", "device") >= 300)
    status = gpu.status()
    assert [device["kind"] for device in status["devices"]] == ["host", "gpu"]
    device = status["devices"][1]
    assert device["id"].startswith("GPU-")
    assert device["capacity_bytes"] == 512 << 20
    assert gpu.job("other")["devices"] == [device["id"]]
    wait_until(
        "its context is known as its own",
        lambda: (
            gpu.job("other")["lease"]["unmanaged_bytes"] > 0
            and gpu.job("other")["lease"]["measured_by"] == "nvml"
        ),
    )
    owner = gpu.start(200, "owner", "--guaranteed", "--memory", "220MiB")
    wait_until("the owner has its memory", lambda: gpu.memory("owner", "device") >= 200)
    wait_until("all of it", lambda: gpu.memory("owner", "host") == 0)
    wait_until("the other one has given way", lambda: gpu.memory("other", "host") > 0)
    assert gpu.memory("other", "device") < 300
    shown = gpu.world.commensal("status", **gpu.driver).stdout
    assert "device GPU-" in shown
    assert "Simulated GPU, 512 MiB" in shown
    assert gpu.world.commensal("top", "--once", **gpu.driver).returncode == 0
    gpu.stop.touch()
    for facts in (gpu.facts(owner), gpu.facts(other)):
        assert facts["same"]
        assert facts["kept"]


def test_a_gpu_that_nvml_does_not_show_is_named(gpu: Gpu) -> None:
    # The coordinator is started without the library, the job with it.
    started = gpu.world.start([str(COMMENSAL.parent / "commensald"), "--foreground"])
    wait_until("it listens", lambda: gpu.status() != {})
    job = gpu.start(16, "job", "--opportunistic", "--no-idle-class")
    wait_until("it has said so", lambda: gpu.job("job").get("memory", {}).get("notes"))
    notes = gpu.job("job")["memory"]["notes"]
    assert any("the coordinator says no_device: no device 'GPU-" in note for note in notes), notes
    assert any("cannot load libnvidia-ml.so.1" in note for note in notes), notes
    assert gpu.job("job")["devices"] == ["host"]
    gpu.stop.touch()
    facts = gpu.facts(job)
    assert facts["same"]
    assert facts["memory"]["device_bytes"] >= 16 << 20
    started.terminate()


# Opens the gate again once somebody stands at it.
RESUME = """
import json, threading, torch, commensal
resumed, ended = threading.Event(), threading.Event()
def gated():
    return commensal.stats()["gate"]["ops_gated_total"]
def resume():
    while not ended.wait(0.01):
        if gated() > before:
            resumed.set()
            return commensal.resume()
thread = threading.Thread(target=resume, daemon=True)
"""

CAPTURE = """
x = torch.ones(1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x * 2
torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
facts = {}
with torch.cuda.graph(graph):
    commensal.pause()
    before = gated()
    y = x * 2
    facts["gated_in_capture"] = gated() - before
thread.start()
z = x * 3
facts["gated_after"] = gated() - before
ended.set()
thread.join()
print(json.dumps(facts))
"""


def test_c13_ops_pass_a_closed_gate_while_a_graph_is_captured(gpu: Gpu) -> None:
    script = gpu.world.script(RESUME + CAPTURE, "capture.py")
    job = gpu.world.start(
        [str(COMMENSAL), "run", "--opportunistic", "--no-idle-class", "--", sys.executable, script],
        **gpu.driver,
    )
    facts = gpu.facts(job)
    assert facts["gated_in_capture"] == 0
    assert facts["gated_after"] > 0, "what is not recorded waits"


REPLAY = """
x = torch.ones(1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
facts = {"wrapped": hasattr(torch.cuda.CUDAGraph.replay, "__wrapped__")}
graph.replay()
commensal.pause()
before = gated()
thread.start()
graph.replay()
facts["gated"] = gated() - before
facts["waited"] = resumed.is_set()
ended.set()
thread.join()
torch.cuda.synchronize()
print(json.dumps(facts))
"""


@pytest.mark.parametrize(
    ("options", "gated"),
    [(("--opportunistic", "--no-idle-class"), True), (("--guaranteed",), False)],
)
def test_c7_a_replayed_graph_waits_at_a_closed_gate(
    gpu: Gpu, options: tuple[str, ...], *, gated: bool
) -> None:
    script = gpu.world.script(RESUME + REPLAY, "replay.py")
    job = gpu.world.start(
        [str(COMMENSAL), "run", *options, "--", sys.executable, script], **gpu.driver
    )
    facts = gpu.facts(job)
    # A guaranteed job's replay is a sign of work, and passes no gate.
    assert facts == {"wrapped": True, "gated": int(gated), "waited": gated}
