# SPDX-License-Identifier: Apache-2.0
"""What moves of a GPU's memory and what stays: tags, registered and delegated memory, collectives,
AntMan's policy. Real jobs on the simulated driver, whose kernels do nothing and whose copies do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from training import facts_of
from world import COMMENSAL, World

from commensal.cli.status import describe_job

MIB = 1 << 20

# What the jobs share: tensors with a content of their own, and what is told of memory.
JOB = """
import json, os, sys, time, torch, commensal
MIB = 1 << 20
class Held:
    def __init__(self, mib, value):
        self.value = torch.full((mib << 18,), value)
        self.tensor = self.value.cuda()
        self.address = self.tensor.data_ptr()
    def whole(self):
        return torch.equal(self.tensor.cpu(), self.value) and self.address == self.tensor.data_ptr()
def memory(*names):
    told = commensal.stats()["memory"]
    return {name: told[f"{name}_bytes"] >> 20 for name in names or ("device", "host", "parked")}
def tag(name):
    [found] = [tag for tag in commensal.stats()["memory"]["tags"] if tag["name"] == name]
    return {key: found[f"{key}_bytes"] >> 20 for key in ("device", "host", "parked", "dropped")}
def error(call):
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None
def limit(size):
    # A busy machine may need several safe points for it.
    patience = time.monotonic() + 60
    stays = ("stays where it is", "others in the process", "live memory stays", "a collective")
    while True:
        ticket = commensal.set_memory_limit(size)
        done = not ticket.deferred_bytes or ticket.reason.startswith(stays)
        if done or time.monotonic() > patience:
            return ticket
if not commensal.is_active():
    commensal.init(idle_class=False)
weight = torch.nn.Parameter(torch.zeros(16, device="cuda"))
weight.grad = torch.zeros(16, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.0)
optimizer.step()
facts = {}
"""
TELL = "\nprint(json.dumps(facts))\n"

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def job(world: World) -> Run:
    """Runs a job on a simulated GPU of 1 GiB and returns its facts."""

    def run(body: str, *, fingerprints: bool = False, **environ: str) -> dict[str, Any]:
        driver = simulated_gpus(fingerprints=fingerprints, MEMORY=1 << 30)
        script = world.script(JOB + body + TELL)
        # Without a coordinator: limits are the job's own.
        done = world.run([sys.executable, script], **driver, **environ)
        assert "GPU memory is PyTorch's own" not in done.stderr
        return facts_of(done)

    return run


def test_a_program_that_asks_for_the_cards_memory_hears_of_its_limit(job: Run) -> None:
    facts = job(
        """
kept = Held(24, 2.0)
facts["before"] = [part >> 20 for part in torch.cuda.mem_get_info()]
limit("256MiB")
facts["asked"] = [part >> 20 for part in torch.cuda.mem_get_info()]
facts["held"] = memory("device")["device"]
facts["ways"] = len({torch.cuda.mem_get_info(), torch.cuda.mem_get_info(0),
                     torch.cuda.mem_get_info("cuda"), torch.cuda.mem_get_info("cuda:0"),
                     torch.cuda.memory.mem_get_info(torch.device("cuda", 0))})
facts["wrong"] = [error(lambda: torch.cuda.mem_get_info(what)) is not None for what in (7, "cpu")]
"""
    )
    assert facts["before"][1] == 1024, "without a limit all of the card"
    free, total = facts["asked"]
    assert total == 256
    assert free == pytest.approx(256 - facts["held"], abs=1)
    assert facts["ways"] == 1
    assert facts["wrong"] == [True, True]


def test_a_tag_of_cuda_tensors_is_parked_and_woken_as_a_whole(job: Run) -> None:
    facts = job(
        """
outside = Held(16, 1.0)
with commensal.region("weights"):
    kept = [Held(24, 2.0), Held(24, 3.0)]
    loss = (kept[0].tensor.requires_grad_() * 2).sum()
    loss.backward()  # by autograd's own thread
    kept[0].tensor.requires_grad_(False)
free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
facts["before"] = tag("weights")
ticket = commensal.park_tag("weights")
facts["park"] = [ticket.done_bytes >> 20, ticket.deferred_bytes, ticket.reason]
facts["twice"] = commensal.park_tag("weights").done_bytes
facts["parked"] = tag("weights")
facts["freed"] = torch.cuda.cudart().cudaMemGetInfo(0)[0] - free >> 20
facts["read while parked"] = [held.whole() for held in (outside, *kept)]
facts["outside"] = memory("device")
ticket = commensal.wake_tag("weights")
facts["wake"] = [ticket.done_bytes >> 20, ticket.deferred_bytes, ticket.reason]
facts["woken"] = tag("weights")
facts["after"] = [held.whole() for held in (outside, *kept)]
"""
    )
    assert facts["before"]["device"] >= 72  # with the gradient
    size = facts["before"]["device"]
    assert facts["park"] == [size, 0, ""]
    assert facts["twice"] == 0
    assert facts["parked"] == {"device": 0, "host": 0, "parked": size, "dropped": 0}
    assert facts["freed"] == size
    assert facts["outside"]["device"] >= 16  # the twin: what has no tag stays
    assert facts["wake"] == [size, 0, ""]
    assert facts["woken"] == facts["before"]
    assert facts["read while parked"] == facts["after"] == [True, True, True]


def test_where_no_host_memory_is_mapped_a_tag_is_parked_in_pinned_memory(job: Run) -> None:
    facts = job(
        """
from commensal.memory_saver import torch_memory_saver as saver
outside = Held(16, 1.0)
with saver.region(tag="weights", enable_cpu_backup=True):
    kept = [Held(24, 2.0), Held(24, 3.0)]
free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
facts["before"] = tag("weights")
ticket = commensal.set_memory_limit("16MiB")
facts["live"] = [ticket.deferred_bytes >> 20, ticket.reason]
commensal.set_memory_limit("512MiB")
saver.pause("weights")
saver.pause("weights")
facts["paused"] = tag("weights")
facts["freed"] = torch.cuda.cudart().cudaMemGetInfo(0)[0] - free >> 20
facts["backup"] = error(lambda: saver.get_cpu_backup(kept[0].tensor))
facts["outside"] = outside.whole()
commensal.set_memory_limit("32MiB")
facts["no room"] = error(lambda: saver.resume("weights"))
facts["away"] = memory("parked")["parked"]
commensal.set_memory_limit("512MiB")
saver.resume("weights")
facts["resumed"] = tag("weights")
facts["whole"] = [held.whole() for held in (outside, *kept)]
facts["backup again"] = torch.equal(saver.get_cpu_backup(kept[1].tensor), kept[1].value)
facts["notes"] = commensal.stats()["memory"]["notes"]
""",
        SIMULATED_CUDA_HOST_HANDLES="0",
    )
    size = facts["before"]["device"]
    assert size >= 48
    assert facts["live"][0] >= 48  # the twin: what the job may touch stays
    assert "no slower tier" in facts["live"][1]
    assert facts["paused"] == {"device": 0, "host": 0, "parked": size, "dropped": 0}
    assert facts["freed"] == size
    assert facts["backup"] == (
        "CommensalError: the tensor is parked in pinned memory: resume its tag first"
    )
    assert facts["outside"]
    assert "of the tag 'weights': the limit of 32 MiB leaves no room" in facts["no room"]
    assert facts["away"] > 0
    assert facts["resumed"] == facts["before"]
    assert facts["whole"] == [True] * 3
    assert facts["backup again"]
    assert any("what is parked is kept in pinned memory" in note for note in facts["notes"])


def test_doctor_tells_whether_host_memory_can_be_mapped(world: World) -> None:
    import run as simulated_cuda

    def line(**settings: int) -> tuple[str, str]:
        driver = simulated_cuda.environment({}, settings)
        told = json.loads(world.commensal("doctor", "--json", **driver).stdout)
        [found] = [check for check in told["checks"] if check["name"] == "gpu host memory"]
        return found["state"], found["detail"]

    try:
        assert line(HOST_HANDLES=1)[0] == "ok"
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    state, detail = line(HOST_HANDLES=0)
    assert state == "note"
    assert "parked regions and idle jobs are kept in pinned memory" in detail


# The thread that sets a limit is not the one that trains: it only says what is to hold.
AHEAD = """
import threading
commensal.set_compute_share(0.9)  # ops pass the gate from here on
resting = [Held(8, float(i)) for i in range(8)]
values = [torch.full((8 << 18,), float(i)) for i in range(2)]
changing = Held(8, 9.0)
for _ in range(3):
    optimizer.step()
now = commensal.stats()["memory"]
writes = 0
for turn in range(TURNS):  # inside of a step
    less = now["device_bytes"] - (8 << 20)
    threading.Thread(target=commensal.set_memory_limit, args=(less,)).start()
    patience = time.monotonic() + PATIENCE
    while now["limit_bytes"] != less or now["device_bytes"] > less:
        if time.monotonic() > patience:
            break
        writes += 1
        changing.tensor.copy_(values[writes % 2])
        now = commensal.stats()["memory"]
    if now["moved_ahead_bytes_total"] > 0:
        break
facts["ahead"] = now["moved_ahead_bytes_total"]
facts["resting"] = [held.whole() for held in resting]
facts["changing"] = torch.equal(changing.tensor.cpu(), values[writes % 2])
optimizer.step()
facts["after the step"] = [held.whole() for held in resting]
facts["held"] = memory("device")["device"] << 20 <= now["limit_bytes"]
"""


def test_memory_of_a_gpu_that_rests_moves_out_in_the_middle_of_a_step(job: Run) -> None:
    body = AHEAD.replace("TURNS", "4").replace("PATIENCE", "30")
    facts = job(body, fingerprints=True)
    assert facts["ahead"] > 0
    assert facts["resting"] == facts["after the step"] == [True] * 8
    assert facts["changing"]
    assert facts["held"]


def test_where_no_kernel_tells_what_changed_nothing_moves_ahead(job: Run) -> None:
    facts = job(AHEAD.replace("TURNS", "1").replace("PATIENCE", "1"))
    assert facts["ahead"] == 0  # the twin: it moves at the end of the step, copied with all stopped
    assert facts["resting"] == facts["after the step"] == [True] * 8
    assert facts["held"]


def test_a_dropped_tag_of_cuda_tensors_gets_fresh_memory_at_the_same_addresses(job: Run) -> None:
    facts = job(
        """
from commensal.memory_saver import torch_memory_saver as saver
with commensal.region("cache"):
    cache = Held(32, 4.0)
free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
facts["drop"] = commensal.drop_tag("cache").done_bytes >> 20
facts["dropped"] = tag("cache")
facts["freed"] = torch.cuda.cudart().cudaMemGetInfo(0)[0] - free >> 20
commensal.wake_tag("cache")
facts["woken"] = tag("cache")
cache.tensor.copy_(cache.value)
facts["whole"] = cache.whole()
with saver.region("model", enable_cpu_backup=True):
    backed_up = Held(16, 5.0)
with saver.region("model"):
    given_up = Held(16, 6.0)
saver.pause("model")
facts["paused"] = [tag("model")["parked"], tag("model (no backup)")["dropped"]]
facts["backup"] = torch.equal(saver.get_cpu_backup(backed_up.tensor), backed_up.value)
facts["no backup"] = error(lambda: saver.get_cpu_backup(given_up.tensor))
saver.resume("model")
given_up.tensor.copy_(given_up.value)
facts["resumed"] = [backed_up.whole(), given_up.whole()]
"""
    )
    assert facts["drop"] == facts["freed"] == 32
    assert facts["dropped"] == {"device": 0, "host": 0, "parked": 0, "dropped": 32}
    assert facts["woken"] == {"device": 32, "host": 0, "parked": 0, "dropped": 0}
    assert facts["whole"]
    assert facts["paused"] == [16, 16]
    assert facts["backup"]
    assert "it has no content" in facts["no backup"]
    assert facts["resumed"] == [True, True]


def test_p3_a_registered_tensor_stays_where_it_is_and_moves_once_it_is_released(job: Run) -> None:
    facts = job(
        """
buffer = Held(32, 1.0)
others = [Held(16, 2.0) for _ in range(4)]
limit("8MiB")
facts["all out"] = memory("host")
facts["no room"] = error(lambda: commensal.keep_resident(buffer.tensor))
facts["nothing kept"] = memory("kept")
limit("512MiB")
with commensal.keep_resident(buffer.tensor, buffer.tensor[5:], reason="a network card") as kept:
    facts["resident"] = kept.resident_bytes >> 20
    ticket = limit("8MiB")
    facts["shrunk"] = memory("device", "host", "kept")
    facts["deferred"] = [ticket.deferred_bytes >> 20, ticket.reason]
    facts["told"] = commensal.stats()["memory"]["kept"]
    facts["stats"] = commensal.memory_stats()["commensal.kept.a network card.bytes"] >> 20
    facts["summary"] = [line for line in commensal.memory_summary().splitlines() if "kept" in line]
    facts["whole"] = [held.whole() for held in (buffer, *others)]
ticket = limit("8MiB")
facts["released"] = memory("host", "kept")
facts["complete"] = [ticket.deferred_bytes, ticket.reason]
kept.release()  # a second time
facts["still whole"] = [held.whole() for held in (buffer, *others)]
facts["misuse"] = [error(commensal.keep_resident),
                   error(lambda: commensal.keep_resident(buffer.tensor, reason=""))]
facts["of the host"] = commensal.keep_resident(torch.ones(MIB)).resident_bytes
facts["of a pool"] = 0
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    pooled = torch.ones(MIB, device="cuda")
facts["of a pool"] = commensal.keep_resident(pooled).resident_bytes
"""
    )
    assert facts["all out"]["host"] >= 88
    assert facts["no room"].startswith(
        "CommensalError: memory cannot be kept on the device: the limit of 8 MiB leaves no room"
    )
    assert facts["nothing kept"]["kept"] == 0
    assert facts["resident"] == 32
    assert facts["shrunk"]["device"] == facts["shrunk"]["kept"] == 32
    assert facts["shrunk"]["host"] >= 64
    assert facts["deferred"] == [24, "stays where it is: 32 MiB (a network card)"]
    assert facts["told"] == [{"reason": "a network card", "bytes": 32 * MIB}]
    assert facts["stats"] == 32
    assert "32 MiB: a network card" in facts["summary"][0]
    assert facts["released"]["kept"] == 0
    assert facts["released"]["host"] >= 88  # the twin
    assert facts["complete"] == [0, ""]
    assert facts["whole"] == facts["still whole"] == [True] * 5
    assert facts["misuse"] == [
        "ValueError: keep_resident() needs tensors and a reason: 0, 'registered by the program'",
        "ValueError: keep_resident() needs tensors and a reason: 1, ''",
    ]
    assert facts["of the host"] == facts["of a pool"] == 0


def test_a_registered_tensor_of_a_tag_is_neither_parked_nor_dropped(job: Run) -> None:
    facts = job(
        """
with commensal.region("weights"):
    buffer, other = Held(32, 1.0), Held(32, 2.0)
kept = commensal.keep_resident(buffer.tensor, reason="RDMA")
ticket = commensal.park_tag("weights")
facts["park"] = [ticket.done_bytes >> 20, ticket.deferred_bytes >> 20, ticket.reason]
facts["parked"] = tag("weights")
commensal.wake_tag("weights")
facts["woken"] = other.whole()
ticket = commensal.drop_tag("weights")
facts["drop"] = [ticket.done_bytes >> 20, ticket.deferred_bytes >> 20, ticket.reason]
facts["whole"] = buffer.whole()
del buffer.tensor
kept.release()
facts["gone"] = commensal.drop_tag("weights").deferred_bytes
"""
    )
    assert facts["park"] == [32, 32, "stays where it is: 32 MiB (RDMA)"]
    assert facts["parked"] == {"device": 32, "host": 0, "parked": 32, "dropped": 0}
    assert facts["woken"]
    assert facts["drop"] == [32, 32, "stays where it is: 32 MiB (RDMA)"]
    assert facts["whole"]
    assert facts["gone"] == 0


def test_what_is_registered_with_gpudirect_storage_stays(job: Run) -> None:
    facts = job(
        """
import torch.cuda.gds as gds
calls = []
torch._C._gds_register_buffer = lambda s: calls.append("register")
torch._C._gds_deregister_buffer = lambda s: calls.append("deregister")
buffer = Held(32, 1.0)
gds.gds_register_buffer(buffer.tensor.untyped_storage())
facts["kept"] = commensal.stats()["memory"]["kept"]
limit("8MiB")
facts["shrunk"] = memory("device")
gds.gds_deregister_buffer(buffer.tensor.untyped_storage())
limit("8MiB")
facts["after"] = memory("device", "kept")
facts["whole"] = buffer.whole()
def refuse(s):
    raise RuntimeError("no GPUDirect Storage here")
torch._C._gds_register_buffer = refuse
facts["refused"] = error(lambda: gds.gds_register_buffer(buffer.tensor.untyped_storage()))
facts["nothing kept"] = memory("kept")
facts["calls"] = calls
"""
    )
    assert facts["kept"] == [{"reason": "registered with GPUDirect Storage", "bytes": 32 * MIB}]
    assert facts["shrunk"]["device"] == 32
    assert facts["after"]["kept"] == 0
    assert facts["after"]["device"] <= 8  # the twin
    assert facts["whole"]
    assert facts["calls"] == ["register", "deregister"]
    assert facts["nothing kept"]["kept"] == 0


def test_p25_p28_graphs_and_pools_stay_count_against_the_limit_and_are_told(job: Run) -> None:
    facts = job(
        """
held = [Held(16, 1.0) for _ in range(4)]
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    pooled = torch.zeros(32 * MIB, dtype=torch.uint8, device="cuda")
graph = torch.cuda.CUDAGraph()
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.graph(graph, stream=stream):
    captured = torch.empty(6 * MIB, device="cuda")
    captured[: 4 * MIB].copy_(held[1].tensor)
facts["before"] = memory("device", "delegated")
ticket = limit("80MiB")
facts["shrunk"] = memory("device", "host", "delegated")
facts["complete"] = [ticket.deferred_bytes, ticket.reason]
patience = time.monotonic() + 60
while memory()["device"] and time.monotonic() < patience:
    ticket = limit("40MiB")
graph.replay()
torch.cuda.synchronize()
facts["replayed"] = torch.equal(captured[: 4 * MIB].cpu(), held[1].value)
facts["below"] = memory("device", "delegated")
facts["deferred"] = [ticket.deferred_bytes >> 20, ticket.reason]
more = Held(16, 2.0)  # on the slower tier
facts["more"] = memory("device")
facts["free"] = torch.accelerator.memory.get_memory_info()[0]
facts["summary"] = [line for line in commensal.memory_summary().splitlines() if "graphs" in line]
del pooled, pool
unused = torch.cuda.CUDAGraph()
with torch.cuda.graph(unused, stream=stream):
    scratch = torch.empty(8 * MIB, device="cuda")
before = memory("delegated")["delegated"]
del scratch, unused
torch.cuda.synchronize()
limit("32MiB")  # P27: what PyTorch keeps for nothing goes, too
facts["for nothing"] = [before, memory("delegated")["delegated"]]
limit("512MiB")
patience = time.monotonic() + 60
while memory("host")["host"] and time.monotonic() < patience:
    time.sleep(0.02)
    optimizer.step()
facts["grown"] = memory("device", "host", "delegated")
facts["whole"] = [one.whole() for one in (*held, more)]
"""
    )
    delegated = facts["before"]["delegated"]
    assert delegated >= 56
    assert facts["shrunk"]["delegated"] == delegated
    assert facts["shrunk"]["device"] <= 80 - delegated
    assert facts["complete"] == [0, ""]
    assert facts["below"] == {"device": 0, "delegated": delegated}
    assert facts["deferred"][0] == delegated - 40
    assert facts["deferred"][1] == f"others in the process hold {delegated} MiB"
    assert facts["more"]["device"] == 0
    assert facts["free"] == 0
    assert facts["replayed"]  # the pool is where it was, and what it reads is found
    assert f"{delegated} MiB" in facts["summary"][0]
    assert facts["grown"]["host"] == 0
    assert facts["grown"]["device"] >= 80  # the twin: with the pool gone there is room again
    before, after = facts["for nothing"]
    assert before - after >= 32
    assert facts["grown"]["delegated"] <= delegated - 32
    assert facts["whole"] == [True] * 5


def test_f5_what_trains_in_a_pool_of_its_own_waits_at_the_gate_and_moves(job: Run) -> None:
    facts = job(
        """
import threading
held = [Held(16, float(i)) for i in range(4)]
def held_up():
    commensal.pause()
    run = threading.Thread(target=held[0].tensor.sum)
    run.start()
    while run.is_alive() and not commensal.stats()["gate"]["waiting_op_seconds"]:
        time.sleep(0.001)
    waits = run.is_alive()
    commensal.resume()
    run.join()
    return waits
with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
    facts["waits"] = held_up()
    ticket = limit("32MiB")
    facts["shrunk"] = [memory("device")["device"], ticket.deferred_bytes]
    facts["whole"] = [one.whole() for one in held]
    with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=torch.cuda.Stream()):
        held[0].tensor + 1
        facts["captured"] = commensal.set_memory_limit("16MiB").done_bytes
"""
    )
    assert facts["waits"]
    assert facts["shrunk"][0] <= 32
    assert facts["shrunk"][1] == 0
    assert facts["whole"] == [True] * 4
    assert facts["captured"] == 0  # the twin


def test_antman_overflows_at_allocation_and_moves_nothing_on_a_gpu(job: Run) -> None:
    facts = job(
        """
old = Held(64, 1.0)
ticket = limit("32MiB")
facts["lowered"] = [memory("device", "host"), ticket.reason]
limit("96MiB")
new = Held(64, 2.0)  # does not fit in full
facts["overflow"] = memory("device", "host")
limit("512MiB")
optimizer.step()
facts["stays"] = memory("host")
facts["whole"] = [old.whole(), new.whole()]
del new, old
facts["free before the border"] = memory("device")
limit("16MiB")
optimizer.step()
facts["after the border"] = memory("device", "host")
facts["moved"] = commensal.stats()["memory"]["moved_bytes_total"]
""",
        COMMENSAL_MEMORY_POLICY="antman",
    )
    lowered, reason = facts["lowered"]
    assert lowered["device"] >= 64
    assert lowered["host"] == 0
    assert reason == "live memory stays: memory policy antman"
    assert facts["overflow"]["device"] <= 96
    assert facts["overflow"]["host"] >= 32
    assert facts["stays"]["host"] == facts["overflow"]["host"]
    assert facts["whole"] == [True, True]
    assert facts["free before the border"]["device"] >= 64  # the twin: not at the free
    assert facts["after the border"]["device"] <= 16
    assert facts["after the border"]["host"] == 0
    assert facts["moved"] == 0


def test_f16_a_tensor_that_is_shared_gets_a_place_that_stays(job: Run) -> None:
    # The simulated driver shares nothing: its refusal shows that it was asked, and not by us.
    facts = job(
        """
import contextlib, io
import multiprocessing.reduction as reduction
import torch.multiprocessing
said = io.StringIO()
def send(tensor):
    with contextlib.redirect_stderr(said):
        return error(lambda: reduction.ForkingPickler.dumps(tensor))
held, view = Held(16, 3.0), None
view = held.tensor[1 << 20 :]
facts["before"] = memory("device", "delegated")
facts["sent"] = send(view)
facts["moved"] = held.tensor.data_ptr() != held.address
facts["same storage"] = view.data_ptr() - held.tensor.data_ptr() == 4 << 20
facts["content"] = torch.equal(held.tensor.cpu(), held.value)
facts["after"] = memory("device", "delegated")
address = held.tensor.data_ptr()
facts["again"] = [send(held.tensor), held.tensor.data_ptr() == address]
limit("1MiB")
facts["stays"] = torch.equal(view.cpu(), held.value[1 << 20 :])
limit("512MiB")
more = Held(16, 1.0)
facts["later"] = memory("delegated")["delegated"]
send(Held(1, 4.0).tensor)
facts["said"] = said.getvalue()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    held.tensor + 1
other = Held(1, 2.0)
facts["graph"] = [send(other.tensor), other.whole()]
"""
    )
    assert "commensal" not in facts["sent"]
    assert "not supported" in facts["sent"]
    assert facts["moved"]
    assert facts["same storage"]
    assert facts["content"]
    assert facts["after"]["delegated"] - facts["before"]["delegated"] >= 16
    assert facts["again"] == [facts["sent"], True]
    assert facts["stays"]
    assert facts["later"] == facts["after"]["delegated"]  # what is not shared is elastic
    assert facts["said"].count("CUDA tensors that this process shares with others") == 1
    # The twin: who has its address is not told that it moved.
    assert "cannot be shared with another process once a graph was captured" in facts["graph"][0]
    assert facts["graph"][1]


# Rank 1 comes to the collective when rank 0 has tried to move memory meanwhile.
RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/ranks",
                        rank=int(os.environ["RANK"]), world_size=2)
held = [Held(16, float(i)) for i in range(4)]
together = torch.ones(MIB).cuda()
tried = os.path.join(sys.argv[1], "tried")
if dist.get_rank() == 0:
    work = dist.all_reduce(together, async_op=True)
    ticket = limit("16MiB")
    facts["meanwhile"] = [ticket.deferred_bytes >> 20, ticket.reason]
    open(tried, "w").close()
    work.wait()
    torch.cuda.synchronize()
    del work
    patience = time.monotonic() + 60
    while memory("device")["device"] > 16 and time.monotonic() < patience:
        optimizer.step()
        time.sleep(0.01)
    facts["afterwards"] = memory("device")
else:
    patience = time.monotonic() + 60
    while not os.path.exists(tried) and time.monotonic() < patience:
        time.sleep(0.01)
    dist.all_reduce(together)
facts["whole"] = [one.whole() for one in held]
facts["sum"] = together.cpu().unique().tolist()
dist.destroy_process_group()
"""


def test_nothing_moves_while_a_collective_is_outstanding(world: World) -> None:
    driver = simulated_gpus(MEMORY=1 << 30)
    script = world.script(JOB + RANKS + TELL)
    ranks = [
        world.start(
            [
                *(str(COMMENSAL), "run", "--opportunistic", "--no-idle-class"),
                *("--name", f"rank{rank}", "--", sys.executable, script, str(world.folder)),
            ],
            **driver,
            RANK=str(rank),
            WORLD_SIZE="2",
        )
        for rank in (0, 1)
    ]
    facts = []
    for process in ranks:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        facts.append(json.loads(out.splitlines()[-1]))
    assert facts[0]["meanwhile"][0] >= 48
    assert facts[0]["meanwhile"][1] == "a collective is outstanding"
    assert facts[0]["afterwards"]["device"] <= 16  # the twin: once it is done, the same memory goes
    for rank in facts:
        assert rank["whole"] == [True] * 4
        assert rank["sum"] == [2.0]


def test_an_idle_job_is_parked_off_a_gpu_and_back_at_its_next_op(job: Run) -> None:
    facts = job(
        """
held = [Held(16, float(i)) for i in range(4)]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = torch.zeros(MIB, device="cuda")
busy = memory()
free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
def rests():
    patience = time.monotonic() + 90
    while time.monotonic() < patience:
        time.sleep(0.5)  # seldom: to look is work, too
        if commensal.stats()["activity"]["state"] == "parked":
            return True
    return False
facts["rests"] = [rests()]
facts["parked"] = memory()
facts["freed"] = torch.cuda.cudart().cudaMemGetInfo(0)[0] - free >> 20
held[0].tensor.add_(0)
facts["back"] = [memory()["device"] >= busy["device"], memory()["parked"]]
facts["whole"] = [one.whole() for one in held]
facts["rests"].append(rests())
graph.replay()  # no op of PyTorch
torch.cuda.synchronize()
patience = time.monotonic() + 60
while memory()["parked"] and time.monotonic() < patience:
    time.sleep(0.02)
facts["back by a graph"] = memory()["device"] >= busy["device"]
facts["whole again"] = [one.whole() for one in held]
""",
        COMMENSAL_PARK_IDLE="1s",
    )
    assert facts["rests"] == [True, True]
    assert facts["parked"]["device"] == 0
    assert facts["parked"]["parked"] >= 64
    assert facts["freed"] >= 64
    assert facts["back"] == [True, 0]
    assert facts["back by a graph"]
    assert facts["whole"] == facts["whole again"] == [True] * 4


def test_an_idle_job_whose_memory_is_away_waits_until_all_of_it_is_back(job: Run) -> None:
    facts = job(
        """
import threading
held = [Held(16, float(i)) for i in range(4)]
busy = memory()
free = torch.cuda.cudart().cudaMemGetInfo(0)[0]
patience = time.monotonic() + 90
while commensal.stats()["activity"]["state"] != "parked" and time.monotonic() < patience:
    time.sleep(0.5)  # seldom: to look is work, too
facts["parked"] = memory()
facts["freed"] = torch.cuda.cudart().cudaMemGetInfo(0)[0] - free >> 20
commensal.set_memory_limit("16MiB")
def more():
    time.sleep(1)
    facts["still away"] = memory("parked")["parked"]
    commensal.set_memory_limit("512MiB")
thread = threading.Thread(target=more)
thread.start()
held[0].tensor.add_(0)  # waits: the limit leaves no room for what it might touch
facts["back"] = [memory()["device"] >= busy["device"], memory()["parked"]]
thread.join()
facts["whole"] = [one.whole() for one in held]
""",
        COMMENSAL_PARK_IDLE="1s",
        SIMULATED_CUDA_HOST_HANDLES="0",
    )
    assert facts["parked"]["device"] == 0
    assert facts["parked"]["parked"] >= 64
    assert facts["freed"] >= 64
    assert facts["still away"] > 0
    assert facts["back"] == [True, 0]
    assert facts["whole"] == [True] * 4


def test_status_tells_what_is_not_elastic() -> None:
    memory = {
        "device_bytes": 48 * MIB,
        "kept_bytes": 16 * MIB,
        "kept": [{"reason": "RDMA", "bytes": 16 * MIB}],
        "delegated_bytes": 56 * MIB,
    }
    record = {"job": {"name": "job", "class": "opportunistic", "id": "1"}, "memory": memory}
    [line] = [line for line in describe_job(record).splitlines() if "not elastic" in line]
    assert "16 MiB kept: RDMA; 56 MiB of PyTorch's own allocator: graphs and pools" in line
    plain = record | {"memory": {"device_bytes": MIB}}
    assert "not elastic" not in describe_job(plain)
