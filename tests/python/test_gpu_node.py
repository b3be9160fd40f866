# SPDX-License-Identifier: Apache-2.0
"""Two jobs of one GPU under the node coordinator, on the simulated driver."""

from __future__ import annotations

import json
import os
import signal
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
        return self.world.status()

    def job(self, name: str) -> dict[str, Any]:
        found = [job for job in self.status().get("jobs", []) if job["job"]["name"] == name]
        return found[0] if found else {}

    def memory(self, name: str, tier: str) -> int:
        """MiB of a job on the GPU: a guaranteed one, whose memory there is native, begins on the
        host."""
        job = self.job(name)
        memory = job.get("memory", {})
        on_host = job and job["job"]["class"] == "guaranteed" and memory.get("policy") != "native"
        return 0 if on_host else int(memory.get(f"{tier}_bytes", 0)) >> 20

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


# A process on two GPUs: the second one is used once there is a file that says so.
TWO = """
import json, os, sys, time, torch, commensal
second_wanted, stop = sys.argv[1:3]
def made(device):
    tensor = torch.full((200 << 18,), 3.0).to(device)
    return tensor, tensor.data_ptr()
weight = torch.nn.Parameter(torch.zeros(16, device="cuda:0"))
weight.grad = torch.zeros(16, device="cuda:0")
optimizer = torch.optim.SGD([weight], lr=0.0)
held = [made("cuda:0")]
while not os.path.exists(stop):
    if len(held) == 1 and os.path.exists(second_wanted):
        held.append(made("cuda:1"))
    time.sleep(0.02)
    optimizer.step()
print(json.dumps({
    "same": [bool((tensor.cpu() == 3.0).all()) for tensor, _ in held],
    "kept": [tensor.data_ptr() == address for tensor, address in held],
}))
"""


def on_device(job: dict[str, Any], device: str) -> dict[str, Any]:
    found = [lease for lease in job.get("leases", []) if lease["device"] == device]
    return found[0] if found else {}


def test_each_gpu_of_a_process_is_divided_for_itself(gpu: Gpu) -> None:
    gpu.driver["SIMULATED_CUDA_DEVICES"] = "2"
    second_wanted = gpu.world.folder / "second"
    both = gpu.world.start(
        [
            *(str(COMMENSAL), "run", "--name", "both", "--opportunistic", "--no-idle-class", "--"),
            *(sys.executable, gpu.world.script(TWO, "two.py"), str(second_wanted), str(gpu.stop)),
        ],
        **gpu.driver,
    )
    wait_until("its first memory is there", lambda: gpu.memory("both", "device") >= 200)
    [first] = gpu.job("both")["devices"]
    second_wanted.touch()  # from now on it uses the second one, too
    wait_until("it is on both", lambda: len(gpu.job("both").get("devices", [])) == 2)
    assert gpu.job("both")["devices"][0] == first
    second = gpu.job("both")["devices"][1]
    assert second.startswith("GPU-")

    def held(device: str) -> int:
        return int(on_device(gpu.job("both"), device).get("held_bytes", 0)) >> 20

    wait_until("each shows what is held there", lambda: held(first) >= 200 and held(second) >= 200)
    assert len(gpu.job("both")["members"]) == 1
    wait_until(
        "its contexts are known on both",
        lambda: all(
            on_device(gpu.job("both"), device)["unmanaged_bytes"] > 0 for device in (first, second)
        ),
    )
    # A guaranteed job that sees the second GPU alone takes what it needs there, and only there.
    owner = gpu.world.start(
        [
            *(str(COMMENSAL), "run", "--name", "owner", "--guaranteed", "--memory", "320MiB"),
            *("--", sys.executable, gpu.script, "300", str(gpu.stop)),
        ],
        **gpu.driver,
        CUDA_VISIBLE_DEVICES="1",
    )
    wait_until("the owner has its memory", lambda: gpu.memory("owner", "device") >= 300)
    assert gpu.job("owner")["devices"] == [second]
    wait_until("the other one has given way there", lambda: held(second) < 200)
    wait_until("and says so", lambda: gpu.memory("both", "host") > 0)  # a report later
    assert held(first) >= 200
    memory = gpu.job("both")["memory"]
    [more] = memory["devices"]
    assert more["device"] == second
    assert more["host_bytes"] > 0
    assert memory["host_bytes"] == more["host_bytes"], "of the first GPU nothing had to go"
    # Its gate looks at the guaranteed job of its second GPU: it is no longer off.
    wait_until("its gate is on", lambda: gpu.job("both")["gate"]["state"] != "off")
    shown = gpu.world.commensal("status", **gpu.driver)
    assert shown.returncode == 0
    assert first in shown.stdout
    assert second in shown.stdout
    gpu.stop.touch()
    assert gpu.facts(owner)["same"]
    facts = gpu.facts(both)
    assert facts["same"] == [True, True]
    assert facts["kept"] == [True, True]


def test_a_process_that_is_killed_frees_all_its_gpus(gpu: Gpu) -> None:
    gpu.driver["SIMULATED_CUDA_DEVICES"] = "2"
    second_wanted = gpu.world.folder / "second"
    second_wanted.touch()
    both = gpu.world.start(
        [
            *(str(COMMENSAL), "run", "--name", "both", "--opportunistic", "--no-idle-class", "--"),
            *(sys.executable, gpu.world.script(TWO, "two.py"), str(second_wanted), str(gpu.stop)),
        ],
        **gpu.driver,
    )

    def granted() -> list[int]:
        devices = [each for each in gpu.status().get("devices", []) if each["kind"] == "gpu"]
        return [int(each["granted_bytes"]) for each in devices]

    wait_until("both are granted", lambda: len(granted()) == 2 and all(granted()))
    for member in gpu.job("both")["members"]:
        os.kill(member["pid"], signal.SIGKILL)
    wait_until("both are free", lambda: granted() == [0, 0])
    [ended] = [job for job in gpu.status()["jobs"] if job["job"]["name"] == "both"]
    assert ended["ended"]
    assert len(ended["devices"]) == 2
    both.communicate(timeout=120)
