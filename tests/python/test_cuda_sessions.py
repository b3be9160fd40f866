# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs under `commensal run` where it is less simple: ranks, several GPUs, memory that is
not ours.

On the simulated driver.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from training import facts_of
from world import COMMENSAL, World

Facts = dict[str, Any]


def driver_of(world: World, **settings: object) -> dict[str, str]:
    """Return the environment of jobs on simulated GPUs with elastic memory."""
    return simulated_gpus(MEMORY=512 << 20, LEDGER=world.folder / "ledger", **settings)


COMMON = """
import gc, json, os, sys, time, torch
weight = None
def make_optimizer():
    global weight
    weight = torch.nn.Parameter(torch.zeros(16, device="cuda"))
    weight.grad = torch.zeros(16, device="cuda")
    return torch.optim.SGD([weight], lr=0.0)
def told():
    import commensal
    return commensal.stats()["memory"]
def limit(size):
    # A busy machine may need several safe points for it.
    import commensal
    patience = time.monotonic() + 60
    while True:
        ticket = commensal.set_memory_limit(size)
        if not ticket.deferred_bytes or time.monotonic() > patience:
            return ticket
def step_until(optimizer, holds, seconds=60):
    patience = time.monotonic() + seconds
    while not holds() and time.monotonic() < patience:
        time.sleep(0.02)
        optimizer.step()
    return holds()
"""

# Two ranks on one GPU, whose memory the coordinator divides among them, or on one each.
RANK = (
    COMMON
    + """
import torch.distributed as dist
def train(index):
    torch.cuda.set_device(index % torch.cuda.device_count())
    optimizer = make_optimizer()
    values = [torch.full((1 << 20,), float(i)) for i in range(16)]
    tensors = [value.cuda() for value in values]
    addresses = [tensor.data_ptr() for tensor in tensors]
    def held():
        return told()["device_bytes"] >> 20
    facts = {"rank": index, "before": held()}
    dist.barrier()
    if torch.cuda.device_count() == 2:  # its own; of one GPU it has a part
        import commensal
        commensal.set_memory_limit("40MiB")
    facts["fits"] = step_until(optimizer, lambda: (told()["limit_bytes"] or 1 << 40) <= 40 << 20
                               and told()["device_bytes"] <= told()["limit_bytes"])
    facts["same"] = all(torch.equal(t.cpu(), v) for t, v in zip(tensors, values))
    facts["kept"] = addresses == [tensor.data_ptr() for tensor in tensors]
    memory = told()
    facts |= {name: memory[name] for name in ("policy", "notes", "limit_bytes", "device_bytes",
                                              "host_bytes", "live_bytes")}
    with open(f"rank{index}.json", "w") as file:
        json.dump(facts, file)
    dist.barrier()
    dist.destroy_process_group()
"""
)
SPAWNED = (
    RANK
    + """
def work(index, folder):
    torch.cuda.set_device(index % torch.cuda.device_count())  # starts CUDA, before it is a rank
    early = torch.ones(1 << 18).cuda()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=2)
    train(index)
    assert early.cpu().unique().tolist() == [1.0]

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
"""
)
TORCHRUN = (
    RANK
    + """
if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(dist.get_rank())
"""
)


@pytest.mark.parametrize("launcher", ["spawned after CUDA", "torchrun"])
def test_the_gpu_memory_of_each_rank_is_elastic(world: World, launcher: str) -> None:
    devices = 1 if launcher == "torchrun" else 2
    driver = driver_of(world, DEVICES=devices)
    command = [sys.executable]
    text = SPAWNED
    if launcher == "torchrun":
        command = [str(COMMENSAL.parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
        text = TORCHRUN
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:80MiB"),
        *("--", *command, world.script(text)),
        **driver,
        GLOO_SOCKET_IFNAME="lo",
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((world.folder / f"rank{index}.json").read_text()) for index in (0, 1)]
    for rank in ranks:
        assert rank["policy"] == "elastic"
        assert rank["live_bytes"] >= 64 << 20
        assert rank["fits"], rank
        assert rank["host_bytes"] > 0
        assert rank["same"]
        assert rank["kept"]
    if devices == 1:
        assert sum(rank["limit_bytes"] for rank in ranks) <= 80 << 20
    assert "GPU memory is PyTorch's own" not in done.stderr
    assert "unmanaged" not in done.stderr


TWO_GPUS = (
    COMMON
    + """
values = [torch.full((1 << 20,), float(i)) for i in range(16)]
first = [value.to("cuda:0") for value in values]
second = [value.to("cuda:1") for value in values]
addresses = [tensor.data_ptr() for tensor in first + second]
optimizer = make_optimizer()
optimizer.step()
import commensal
def lies():
    memory = told()
    [more] = memory["devices"]
    return {"first": [memory["device_bytes"] >> 20, memory["host_bytes"] >> 20],
            "second": [more["device_bytes"] >> 20, more["host_bytes"] >> 20],
            "limit": more["limit_bytes"], "device": more["device"]}
def same():
    return all(torch.equal(t.cpu(), v) for tensors in (first, second)
               for t, v in zip(tensors, values))
facts = {"before": lies()}
ticket = limit("16MiB")
facts["ticket"] = [ticket.deferred_bytes, ticket.reason]
facts["shrunk"] = lies()
facts["same"] = [same()]
crossed = torch.empty_like(second[3])
crossed.copy_(first[3])  # from the slower tier of one to that of the other
facts["crossed"] = crossed.cpu().unique().tolist()
commensal.set_memory_limit("256MiB")
facts["back"] = step_until(
    optimizer, lambda: not told()["host_bytes"] and not told()["devices"][0]["host_bytes"])
facts["grown"] = lies()
facts["same"].append(same())
facts["kept"] = addresses == [tensor.data_ptr() for tensor in first + second]
facts["notes"] = told()["notes"]
with torch.cuda.device(1):
    facts["allocated"] = torch.cuda.memory_allocated() >> 20
child = os.fork()
if child == 0:
    del first, second, crossed
    gc.collect()
    os._exit(0)
facts["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(facts))
"""
)


def test_each_gpu_of_a_process_has_elastic_memory(world: World) -> None:
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:256MiB"),
        *("--", sys.executable, world.script(TWO_GPUS)),
        **driver_of(world, DEVICES=2),
    )
    facts = facts_of(done)
    assert facts["before"]["first"][0] >= 64
    assert facts["before"]["second"][0] >= 64
    assert facts["before"]["limit"] == 256 << 20
    assert facts["before"]["device"].startswith("GPU-")
    assert facts["ticket"] == [0, ""]
    for gpu in ("first", "second"):
        device, host = facts["shrunk"][gpu]
        assert device <= 16
        assert host >= 48
    assert facts["crossed"] == [3.0]
    assert facts["back"]
    assert facts["same"] == [True, True]
    assert facts["kept"]
    assert facts["allocated"] == 68
    assert not any("bound by the job's own limit alone" in note for note in facts["notes"])
    assert facts["child"] == 0


# What PyTorch's own allocator still caches of a graph that is gone goes before live tensors do.
POOLS = (
    COMMON
    + """
optimizer = make_optimizer()
kept = torch.full((4 << 20,), 3.0).cuda()
static = torch.zeros(1000).cuda()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    out = torch.empty(1000, device="cuda")
    out.copy_(static)
del inside, out
graph.reset()
del graph
gc.collect()
free = torch.cuda.cudart().cudaMemGetInfo(0)[0] >> 20
import commensal
facts = {}
for size in ("512MiB", "128MiB"):
    limit(size)
    facts[size] = (torch.cuda.cudart().cudaMemGetInfo(0)[0] >> 20) - free
facts["host"] = told()["host_bytes"]
facts["same"] = bool((kept.cpu() == 3.0).all())
print(json.dumps(facts))
"""
)


def test_p27_a_limit_that_falls_takes_what_pytorch_caches_too(world: World) -> None:
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:256MiB"),
        *("--", sys.executable, world.script(POOLS)),
        **driver_of(world),
    )
    facts = facts_of(done)
    assert facts["512MiB"] == 0  # by itself it stays
    assert facts["128MiB"] >= 64
    assert facts["host"] == 0  # nothing live had to go
    assert facts["same"]


LATE = (
    COMMON
    + """
optimizer = make_optimizer()  # starts CUDA
import commensal
commensal.init(job_class="opportunistic", memory="96MiB", idle_class=False)
facts = {"policy": told()["policy"], "notes": told()["notes"]}
def error_of(mib):
    try:
        return ["none", torch.empty(mib << 20, dtype=torch.uint8, device="cuda").numel() >> 20]
    except torch.OutOfMemoryError as error:
        return ["OutOfMemoryError", str(error).splitlines()[0][:40]]
blocks = [torch.full((2 << 20,), float(i)).cuda() for i in range(8)]
facts["held"] = told()["device_bytes"] >> 20
facts["above"] = error_of(64)
del blocks[2:]
cached = torch.cuda.memory_reserved()
ticket = commensal.set_memory_limit("40MiB")
facts["given_back"] = cached - torch.cuda.memory_reserved() >> 20
facts["lowered"] = [told()["limit_bytes"] >> 20, ticket.deferred_bytes]
facts["asked"] = torch.cuda.mem_get_info()
facts["reserved"] = torch.cuda.memory_reserved()
facts["below"] = error_of(16)
facts["above_again"] = error_of(32)
# Within a capture nothing is given back, which would break it.
graph = torch.cuda.CUDAGraph()
static = torch.zeros(1000).cuda()
spare = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
del spare
reserved = torch.cuda.memory_reserved()
with torch.cuda.graph(graph):
    out = torch.empty(1000, device="cuda")
    out.copy_(static)
    facts["captured"] = commensal.set_memory_limit("10MiB").reason
graph.replay()
optimizer.step()
facts["afterwards"] = torch.cuda.memory_reserved() < reserved
commensal.set_memory_limit("300MiB")
optimizer.step()
facts["raised"] = error_of(200)
facts["kept"] = [bool((block.cpu() == index).all()) for index, block in enumerate(blocks)]
facts["backend"] = torch.cuda.memory.get_allocator_backend()
print(json.dumps(facts))
"""
)


def test_where_cuda_has_started_the_limit_is_a_cap(world: World) -> None:
    done = world.run([sys.executable, world.script(LATE)], **driver_of(world))
    facts = facts_of(done)
    why = "GPU memory is native, not elastic: CUDA has been started"
    assert done.stderr.count(why) == 1
    assert facts["policy"] == "native"
    assert facts["held"] >= 64
    kind, text = facts["above"]
    assert kind == "OutOfMemoryError"
    assert text.startswith("CUDA out of memory. Tried to allocate")
    assert facts["given_back"] >= 40
    assert facts["lowered"] == [40, 0]
    free, total = facts["asked"]
    assert total == pytest.approx(40 << 20, abs=4096), "a program that asks hears of its limit"
    assert free == pytest.approx(max(0, total - facts["reserved"]), abs=4096)
    assert facts["below"] == ["none", 16]
    assert facts["above_again"][0] == "OutOfMemoryError"
    assert facts["captured"] == "a graph is captured"
    assert facts["afterwards"]
    assert facts["raised"] == ["none", 200]
    assert facts["kept"] == [True, True]
    assert facts["backend"] == "native"


OTHER = """
import json, torch, commensal
torch.cuda.init()
told = commensal.stats()["memory"]
print(json.dumps({"notes": told["notes"], "active": commensal.is_active(),
                  "backend": torch.cuda.memory.get_allocator_backend()}))
"""


def test_where_not_even_a_cap_can_be_had_that_is_said(world: World) -> None:
    """The simulated driver has no stream-ordered pools, so this backend can do nothing on it."""
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:128MiB"),
        *("--", sys.executable, world.script(OTHER)),
        **driver_of(world),
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    )
    facts = facts_of(done)
    assert facts["active"]
    assert facts["backend"] == "cudaMallocAsync"
    assert "not elastic: PyTorch's CUDA allocator is 'cudaMallocAsync'" in done.stderr
    assert "the limit of GPU memory is not enforced: CUDA error: operation not" in done.stderr
    assert any(note.startswith("the limit of GPU memory is not") for note in facts["notes"])


REPLACED = (
    """
import torch
other = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")
torch.cuda.memory.change_current_allocator(other)
"""
    + OTHER
)


def test_an_allocator_that_the_program_chose_later_is_left_alone_and_that_is_said(
    world: World,
) -> None:
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:128MiB"),
        *("--", sys.executable, world.script(REPLACED)),
        **driver_of(world),
    )
    facts = facts_of(done)
    assert facts["active"]
    assert facts["backend"] == "pluggable"
    assert "GPU memory is another allocator's, commensal does not watch it" in done.stderr
    assert "the limit of GPU memory is not enforced: CUDAPluggableAllocator" in done.stderr
    assert any(note.startswith("the limit of GPU memory is not") for note in facts["notes"])
