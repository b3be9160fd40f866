# SPDX-License-Identifier: Apache-2.0
"""The gate on a GPU's time, on the simulated driver: what passes it, what it asks of the driver."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

from commensal._coordinator import Coordinator

# What a script has at hand: the driver's counts, the gate's, and its own page.
PRELUDE = """
import ctypes, json, os, random, sys, threading, time
import torch, commensal
from commensal._core import GAP_PHASES
from commensal.profiling.job_page import Activity, find_job_page
driver = ctypes.CDLL("libcuda.so.1")
driver.simulated_cuda_calls.restype = ctypes.c_uint64
def calls(*names):
    return sum(driver.simulated_cuda_calls(name.encode()) for name in names)
def gate():
    return commensal.stats()["gate"]
def wait_until(what, condition):
    end = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.005)
def tell(**facts):
    print(json.dumps(facts), flush=True)
class Scale(torch.nn.Module):  # a layer without cuBLAS, which is not simulated
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))
    def forward(self, given):
        return given * self.weight
"""


@dataclass
class Machine:
    """Starts jobs on one simulated GPU that all of them see."""

    world: World
    driver: dict[str, str]

    def start(self, script: str, *options: str, **environ: str) -> subprocess.Popen[str]:
        name = f"{len(self.world.processes)}.py"
        command = [str(COMMENSAL), "run", *options, "--", sys.executable]
        return self.world.start(
            [*command, self.world.script(PRELUDE + script, name), str(self.world.folder)],
            **(self.driver | environ),
        )

    def facts(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, errors = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, errors
        told: dict[str, Any] = json.loads(out.splitlines()[-1])
        return told

    def run(self, script: str, *options: str, **environ: str) -> dict[str, Any]:
        return self.facts(self.start(script, *options, **environ))

    def log(self, name: str) -> dict[str, int]:
        """Calls of a process that has ended, by function."""
        entries = json.loads((self.world.folder / name).read_text())
        return {function: entry["calls"] for function, entry in entries.items()}


OPPORTUNISTIC = ("--opportunistic", "--no-idle-class")


@pytest.fixture
def machine(world: World) -> Machine:
    return Machine(world, simulated_gpus(MEMORY=512 << 20, LEDGER=world.folder / "ledger"))


# --- a guaranteed job beside an opportunistic one ------------------------------------------------

# Has gaps of 5 ms, until the other job has seen what it waits for.
SHORT_GAPS = """
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        time.sleep(0.005)
        return torch.full((64,), float(index))
model = Scale().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for steps, batch in enumerate(torch.utils.data.DataLoader(Slow())):
    optimizer.zero_grad()
    model(batch.cuda()).sum().backward()
    optimizer.step()
    if os.path.exists(sys.argv[1] + "/seen"):
        break
tell(gaps=[gap["phase"] for gap in commensal.stats()["activity"]["gaps"]], steps=steps)
"""

# Copies of 64 MiB, 8 ms by what is known of copies before the first: more than those gaps. On a
# busy machine one may find a longer gap at once, so there is another one until one has waited.
LARGE_COPY = """
source = torch.ones(16 << 20)
target = torch.empty(16 << 20, device="cuda")
small = torch.ones(16).cuda()
def gaps_entered():
    small.add_(1)
    return gate()["hand_overs_total"]
wait_until("the usual gap is known", lambda: gaps_entered() >= 3)
def held():
    waits = {entry["reason"]: entry["seconds"] for entry in gate()["closed_by"]}
    return sum(waits[why] for why in waits
               if "does not fit" in why or "longer than the usual gap" in why)
seen, before = threading.Event(), held()
def look():
    wait_until("a copy waits for its length", lambda: held() > before)
    seen.set()
    open(sys.argv[1] + "/seen", "w").close()
watch = threading.Thread(target=look)
watch.start()
copies = 0
while watch.is_alive() and not seen.is_set():
    target.copy_(source)
    copies += 1
watch.join()
small.add_(1)
torch.cuda.synchronize()
tell(gate=gate(), arrived=float(target[-1].cpu()), bytes=copies * source.nbytes)
"""


@pytest.mark.fresh_process("the simulated driver writes its log when the process ends")
def test_c15_and_c6_a_large_copy_waits_for_a_long_gap_and_no_job_has_host_callbacks(
    machine: Machine,
) -> None:
    speed = {"SIMULATED_CUDA_COPY_BYTES_PER_SECOND": str(4 << 30)}
    logs = {name: {"SIMULATED_CUDA_LOG": str(machine.world.folder / name)} for name in ("a", "b")}
    owner = machine.start(SHORT_GAPS, "--guaranteed", **logs["a"])
    other = machine.start(LARGE_COPY, *OPPORTUNISTIC, **speed, **logs["b"])
    facts = machine.facts(other)
    owned = machine.facts(owner)
    assert "loader" in owned["gaps"]
    assert facts["arrived"] == 1.0
    assert facts["gate"]["copied_bytes_total"] == facts["bytes"]
    # C6: what tells the device's idleness and the work's time are writes and events.
    for name in ("a", "b"):
        log = machine.log(name)
        assert not {call for call in log if "HostFunc" in call or "AddCallback" in call}
    assert machine.log("b")["cuMemCreate"] > 0
    assert "cuMemCreate" not in machine.log("a"), "a guaranteed job has PyTorch's own memory"
    assert machine.log("a")["cuStreamWriteValue64"] >= owned["steps"]
    assert machine.log("b")["cudaEventRecord"] > 0


# Steps of 40 ms that are one graph each.
CAPTURED_STEPS = """
x = torch.ones(1024, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(40):
        x * 2
def replay():
    while True:
        graph.replay()
        torch.cuda.synchronize()
threading.Thread(target=replay, daemon=True).start()
held = "CUDA graph is too long beside a guaranteed job: held for a gap that it fits in"
wait_until("it is held", lambda: gate()["reason"] == held and gate()["waiting_op_seconds"])
tell(foretold=gate()["waiting_op_seconds"])
open(sys.argv[1] + "/seen", "w").close()
"""


def test_f15_a_captured_step_is_held_beside_a_guaranteed_job(machine: Machine) -> None:
    guaranteed = machine.start(SHORT_GAPS, "--guaranteed")
    other = machine.start(
        CAPTURED_STEPS, *OPPORTUNISTIC, SIMULATED_CUDA_KERNEL_NANOSECONDS="1000000"
    )
    assert machine.facts(other)["foretold"] > 0.01
    assert "loader" in machine.facts(guaranteed)["gaps"]


HOST_CALLBACK = """
torch.ones(4, device="cuda")
done = threading.Event()
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: done.set())
stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
runtime = ctypes.CDLL(None)
assert runtime.cudaLaunchHostFunc(stream, callback, None) == 0
assert done.wait(60)
torch.cuda.synchronize()
tell()
"""


@pytest.mark.fresh_process("the simulated driver writes its log when the process ends")
def test_c6_a_host_callback_would_be_seen(machine: Machine) -> None:
    machine.run(HOST_CALLBACK, *OPPORTUNISTIC, SIMULATED_CUDA_LOG=str(machine.world.folder / "log"))
    assert machine.log("log")["cudaLaunchHostFunc"] == 1


# --- C14: what the driver is asked while the gate is closed --------------------------------------

CLOSED = """
LOCKING = [
    "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
    "cuMemAddressReserve", "cuMemAlloc", "cuMemFree", "cuMemHostAlloc", "cuMemFreeHost",
    "cuMemHostRegister", "cuMemHostUnregister", "cuModuleLoadData", "cuLibraryLoadData",
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaHostRegister",
]
torch.ones(4, device="cuda")
at_start = {name: calls(name) for name in LOCKING}
kept, closed = [], threading.Event()
def by_ops():
    return torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
def past_ops():
    return torch.cuda.caching_allocator_alloc(4 << 20)
allocate = {allocate}
def work():
    for number in range(60):
        if number == 3:
            closed.wait()
        kept.append(allocate())
thread = threading.Thread(target=work)
thread.start()
wait_until("it allocates", lambda: len(kept) == 3)
commensal.pause()
before, gated = calls(*LOCKING), gate()["ops_gated_total"]
closed.set()
if allocate is by_ops:
    wait_until("it stands at the gate", lambda: gate()["ops_gated_total"] > gated)
    time.sleep(0.3)
else:
    thread.join()
while_closed = calls(*LOCKING) - before
commensal.resume()
thread.join()
assert calls(*LOCKING) > before
tell(while_closed=while_closed, loads=calls("cuModuleLoadData") - at_start["cuModuleLoadData"],
     pins=calls("cuMemHostRegister") - at_start["cuMemHostRegister"],
     at_start=at_start)
"""


@pytest.mark.parametrize(("allocate", "held"), [("by_ops", True), ("past_ops", False)])
def test_c14_a_closed_gate_keeps_allocations_from_the_driver(
    machine: Machine, allocate: str, *, held: bool
) -> None:
    """The other one is the twin: what allocates without an op of PyTorch passes by."""
    facts = machine.run(CLOSED.replace("{allocate}", allocate), *OPPORTUNISTIC)
    assert (facts["while_closed"] == 0) is held
    # Loaded and registered where CUDA starts, never again.
    assert facts["at_start"]["cuModuleLoadData"] == 1
    assert facts["at_start"]["cuMemHostRegister"] == 1
    assert facts["loads"] == facts["pins"] == 0


# --- C7, C8: what reaches the driver, and what passed the gate ------------------------------------

COVERAGE = """
COUNTED = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
           "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemsetAsync"]
x = torch.ones(1024, device="cuda", requires_grad=True)
y = torch.ones(1 << 20, device="cuda")
host = torch.ones(1 << 20)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    z = x.detach() * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = y * 2
(x * 2).sum().backward()

# What no part of PyTorch knows: a kernel of a library of its own, found by cuGetProcAddress.
find = driver.cuGetProcAddress_v2
launch, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
assert find(b"cuLaunchKernel", ctypes.byref(launch), 12000, ctypes.c_uint64(0), None) == 0
assert driver.cuModuleLoadData(ctypes.byref(module), b"image") == 0
assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"of_its_own") == 0
shape = [ctypes.c_uint] * 7
launch = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *shape, *[ctypes.c_void_p] * 3)(launch.value)
def extension():
    stream = torch.cuda.current_stream().cuda_stream
    assert launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, None, None) == 0

def on_a_side_stream():
    with torch.cuda.stream(side):
        y.add_(1)
kinds = {
    "default stream": lambda: y.add_(1),
    "side stream": on_a_side_stream,
    "backward": lambda: (x * 2).sum().backward(),
    "graph": graph.replay,
    "large copy": lambda: y.copy_(host),
    "extension": extension,
}
if compiles := bool(int(os.environ["COMPILES"])):
    region = torch.compile(lambda given: (given.relu() + 1).sin())
    region(y)
    kinds["compiled region"] = lambda: region(y)

commensal.set_compute_share(0.99)  # from now on ops pass the gate
wait_until("they do", lambda: gate()["state"] != "off")
facts = {}
for kind, run in kinds.items():
    before, passed = calls(*COUNTED), gate()["ops_seen_total"]
    run()
    facts[kind] = [calls(*COUNTED) - before, gate()["ops_seen_total"] - passed]

# What passes by is measured all the same where it lies between two ops of its stream.
driver.simulated_cuda_set_kernel_time(ctypes.c_uint64(30_000_000))
torch.cuda.synchronize()
before = gate()["busy_seconds_total"]
def measured():
    y.add_(1)
    extension()
    y.add_(1)
    torch.cuda.synchronize()
    return gate()["busy_seconds_total"] - before
wait_until("it is measured", lambda: measured() > 0.08)
tell(**facts)
"""


def test_c7_and_c8_what_reaches_the_driver_passed_the_gate(machine: Machine) -> None:
    compiles = shutil.which("cc") is not None
    facts = machine.run(
        COVERAGE,
        *OPPORTUNISTIC,
        COMPILES=str(int(compiles)),
        TORCHINDUCTOR_CACHE_DIR=str(machine.world.folder),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TRITON_CACHE_DIR=str(machine.world.folder),
    )
    assert ("compiled region" in facts) is compiles
    for kind, (launched, passed) in facts.items():
        assert launched > 0, kind
        if kind == "extension":  # nothing of PyTorch reports it: it passes by
            assert passed == 0
        else:
            assert passed > 0, kind


# --- C9, C10 -------------------------------------------------------------------------------------

MUTUAL_WAITS = """
first, second = torch.cuda.Stream(), torch.cuda.Stream()
a, b = torch.ones(256, device="cuda"), torch.ones(256, device="cuda")
toggles, ended = 0, threading.Event()
def toggle():
    global toggles
    dice = random.Random(9)
    while not ended.is_set():
        commensal.pause()
        time.sleep(dice.uniform(0, 0.0003))
        commensal.resume()
        toggles += 1
        time.sleep(dice.uniform(0, 0.0003))
thread = threading.Thread(target=toggle)
thread.start()
rounds = 0
while toggles < 2000:
    with torch.cuda.stream(first):
        a.add_(1)
        one = first.record_event()
    with torch.cuda.stream(second):
        b.add_(1)
        two = second.record_event()
        second.wait_event(one)
        b.mul_(2)
    with torch.cuda.stream(first):
        first.wait_event(two)
        a.mul_(2)
    rounds += 1
ended.set()
thread.join()
torch.cuda.synchronize()
tell(rounds=rounds, toggles=toggles, gated=gate()["ops_gated_total"])
"""


def test_c9_two_streams_that_wait_for_each_other_go_on(machine: Machine) -> None:
    facts = machine.run(MUTUAL_WAITS, *OPPORTUNISTIC)
    assert facts["toggles"] >= 2000
    assert facts["gated"] > 0
    assert facts["rounds"] > 0


RANK = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank, folder = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
torch.manual_seed(3)
model = torch.nn.Sequential(Scale(), Scale()).cuda()
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
stop, steps = torch.zeros(1).cuda(), 0  # by a copy: kernels do nothing here
print("training", flush=True)
while not stop.item():
    optimizer.zero_grad()
    parallel(torch.ones(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    steps += 1
    stop.copy_(torch.tensor([float(os.path.exists(folder + "/stop"))]))
    dist.all_reduce(stop)  # no rank stops before the other
told = json.dumps({"rank": rank, "steps": steps, "gate": gate()})
os.write(1, (told + chr(10)).encode())  # in one piece: two ranks write to one pipe
os._exit(0)
"""
LAUNCH = """
import os, subprocess, sys
ranks = [
    subprocess.Popen([sys.executable, "rank.py", *sys.argv[1:]],
                     env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2"})
    for rank in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""


def test_c10_and_c11_ranks_on_a_gpu_are_toggled_together(machine: Machine) -> None:
    world = machine.world
    world.script(PRELUDE + RANK, "rank.py")
    command = [str(COMMENSAL), "run", *OPPORTUNISTIC, "--name", "pair", "--", sys.executable]
    job = world.start(
        [*command, world.script(LAUNCH, "launch.py"), str(world.folder)],
        GLOO_SOCKET_IFNAME="lo",
        **machine.driver,
    )
    for _ in range(2):
        read_line(job, "training")
    daemon, dice = Coordinator("default", world.runtime_dir), random.Random(10)

    def gang() -> dict[str, Any]:
        [told] = daemon.status("pair")["jobs"]
        return dict(told["gang"] or {})

    def order(*, paused: bool) -> None:
        answer = daemon.set("pair", paused=paused)
        assert answer.outcome == "applied", (answer, job.poll())

    wait_until("the ranks are a gang", lambda: gang().get("gated"))
    for toggle in range(30):
        order(paused=True)
        if toggle % 10 == 0:  # C11: none stands while the other waits for it in a collective
            wait_until("all stand", lambda: gang()["reason"].startswith("closed together"))
        time.sleep(dice.uniform(0, 0.003))
        order(paused=False)
        time.sleep(dice.uniform(0, 0.003))
    told = gang()
    assert told["gated"], told["reason"]
    assert told["closes_together_total"] >= 3
    (world.folder / "stop").touch()
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    ranks = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert len(ranks) == 2
    assert ranks[0]["steps"] == ranks[1]["steps"] > 0
    assert all(rank["gate"]["ops_gated_total"] > 0 for rank in ranks)


# --- what a guaranteed job shows ------------------------------------------------------------------

SHOWN = """
x = torch.ones(1024, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    y = x * 2
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x * 2
page = find_job_page(os.getpid())
def shown():
    return [page.activity, GAP_PHASES[page.wait_phase]]
torch.optim.SGD([torch.nn.Parameter(x)], lr=0.0).zero_grad()  # it trains, and serves no requests
torch.cuda.synchronize()
time.sleep(0.01)
facts = {}
x + 1  # a sign of work: it allocates
facts["works"] = page.activity == Activity.BUSY
torch.cuda.synchronize()
wait_until("the device is idle", lambda: not page.device_works)
facts["after"] = shown() == [Activity.WAITING, "synchronisation"]
torch.cuda.CUDAGraph.{replay}
facts["replays"] = page.activity == Activity.BUSY
x + 1
# Work of another stream that has not ended when the job begins to wait.
driver.simulated_cuda_hold()
with torch.cuda.stream(side):
    graph.replay()
commensal.step()
facts["waits"] = page.activity == Activity.WAITING
facts["device_works"] = page.device_works
driver.simulated_cuda_let_go()
wait_until("it has come past", lambda: not page.device_works)
facts["gaps"] = sorted(gap["phase"] for gap in commensal.stats()["activity"]["gaps"])
tell(**facts)
"""
# The host waits for the device in ops that no callback of a guaranteed job sees.
HOST_WAITS = """
x, loss = torch.ones(1024, device="cuda"), torch.ones(1, device="cuda")
host = torch.ones(1024)
page = find_job_page(os.getpid())
parameter = torch.nn.Parameter(torch.ones(64, device="cuda"))
optimizer = torch.optim.SGD([parameter], lr=0.0)
optimizer.zero_grad()  # it trains, and serves no requests
def after(run):
    x + 1  # a sign of work: it allocates
    time.sleep(0.02)  # pauses of no use are looked at every 16 ms
    assert page.activity != Activity.WAITING
    run()
    return [page.activity, GAP_PHASES[page.wait_phase]] == [Activity.WAITING, "synchronisation"]
waits = {
    "item": lambda: loss.item(),
    "float": lambda: float(loss),
    "if": lambda: 1 if loss > 0 else 2,
    "cpu": lambda: x.cpu(),
    "tolist": lambda: x.tolist(),
    "copy": lambda: host.copy_(x),
    "not waited for": lambda: host.copy_(x, non_blocking=True),
}
told = {kind: after(run) for kind, run in waits.items()}
def ended_by(run):
    assert after(loss.item)
    run()
    return page.activity == Activity.BUSY
begins = []
optimizer.register_step_pre_hook(lambda *_: begins.append(page.activity == Activity.BUSY))
signs = {"copy": ended_by(lambda: x.copy_(host)), "in place": ended_by(lambda: x.add_(1))}
assert after(loss.item)
optimizer.step()
tell(told=told, signs=signs | {"optimizer": begins[0]})
"""


def test_an_op_that_waits_for_the_gpu_shows_a_guaranteed_job_waiting(machine: Machine) -> None:
    process = machine.start(HOST_WAITS, "--guaranteed")
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    assert "Overriding" not in errors, "PyTorch warns of a kernel that takes another one's place"
    facts = json.loads(out.splitlines()[-1])
    assert facts["told"].pop("not waited for") is False
    assert facts["told"] == dict.fromkeys(("item", "float", "if", "cpu", "tolist", "copy"), True)
    # What allocates nothing, calls no op that copies and steps no optimizer shows nothing.
    assert facts["signs"] == {"copy": True, "optimizer": True, "in place": False}


def test_without_kernels_of_ours_no_such_wait_would_show(machine: Machine) -> None:
    waits = HOST_WAITS.partition("def ended_by")[0] + "tell(told=told)"
    facts = machine.run(waits, *OPPORTUNISTIC)  # which has none of them
    assert not any(facts["told"].values())


# --- C15: memory that comes back ------------------------------------------------------------------

# Is busy until the other job has looked, then waits for its next batch for as long as that works.
BUSY_THEN_IDLE = """
x = torch.ones(64, device="cuda")
torch.optim.SGD([torch.nn.Parameter(x)], lr=0.0).zero_grad()  # it trains, and serves no requests
def exists(name):
    return os.path.exists(sys.argv[1] + "/" + name)
x + 1
open(sys.argv[1] + "/busy", "w").close()
while not exists("looked"):
    x + 1  # a sign of work
    time.sleep(0.001)
class Late(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        wait_until("the other job is done", lambda: exists("done"))
        return x.new_zeros(1)
for batch in torch.utils.data.DataLoader(Late()):
    pass
tell()
"""

COMES_BACK = """
big = torch.ones(16 << 20, device="cuda")
def memory():
    return commensal.stats()["memory"]
def between_steps(condition):
    commensal.step()
    time.sleep(0.005)
    return condition()
commensal.set_memory_limit("32MiB")
wait_until("it is away", lambda: between_steps(lambda: memory()["host_bytes"] >= 32 << 20))
wait_until("the other job works", lambda: os.path.exists(sys.argv[1] + "/busy"))
if gate()["law"] == "gap":
    busy = ("guaranteed job busy", "trickle beside the guaranteed job")
    wait_until("that is seen", lambda: gate()["reason"] in busy)
reasons = []
def looked():
    now = memory()
    reasons.append(now["held_back_reason"])
    return now["held_back_total"] > 0 or now["host_bytes"] == 0
commensal.set_memory_limit("256MiB")
wait_until("it has asked for a gap, or come", lambda: between_steps(looked))
open(sys.argv[1] + "/looked", "w").close()
wait_until("it is back", lambda: between_steps(lambda: memory()["host_bytes"] == 0))
open(sys.argv[1] + "/done", "w").close()
tell(memory=memory(), reasons=sorted(set(reasons) - {""}), law=gate()["law"])
"""


def test_c15_memory_that_comes_back_waits_for_a_gap(machine: Machine) -> None:
    owner = machine.start(BUSY_THEN_IDLE, "--guaranteed")
    facts = machine.run(COMES_BACK, *OPPORTUNISTIC)
    machine.facts(owner)
    assert facts["law"] == "gap"
    assert facts["memory"]["held_back_total"] > 0
    assert facts["reasons"], "the statistics say why"
    assert facts["memory"]["held_back_bytes"] == 0


def test_c15_without_the_law_of_gaps_it_is_copied_beside_the_busy_job(machine: Machine) -> None:
    owner = machine.start(BUSY_THEN_IDLE, "--guaranteed")
    facts = machine.run(COMES_BACK, *OPPORTUNISTIC, "--law", "open")
    machine.facts(owner)
    assert facts["law"] == "open"
    assert facts["memory"]["held_back_total"] == 0


WRAPPED, BARE = "replay(graph)", "replay.__wrapped__(graph)"


def test_a_replay_alone_shows_a_guaranteed_job_busy(machine: Machine) -> None:
    facts = machine.run(SHOWN.replace("{replay}", WRAPPED), "--guaranteed")
    assert facts == {
        "works": True,
        "after": True,
        "replays": True,
        "waits": True,
        "device_works": True,
        "gaps": facts["gaps"],
    }
    assert "synchronisation" in facts["gaps"]


def test_a_replay_that_is_not_wrapped_would_look_like_a_gap(machine: Machine) -> None:
    facts = machine.run(SHOWN.replace("{replay}", BARE), "--guaranteed")
    assert facts["after"]
    assert not facts["replays"]
