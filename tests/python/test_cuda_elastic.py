# SPDX-License-Identifier: Apache-2.0
"""Elastic memory under unmodified CUDA scripts: several devices, private pools, fractions, ends.

Scenarios as in test_cuda_allocator.py, which runs them.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from typing import Any

import pytest
import test_cuda_allocator as base

MIB = base.MIB
ON_GPU = base.ON_GPU
WORDS = base.WORDS
run_scenario = functools.partial(base.run_scenario, file=__file__)


def is_elastic(testing: Any, tensor: Any) -> bool:
    """Tell whether a tensor lies in elastic memory of its device."""
    return bool(testing.commensal_testing_is_elastic(tensor.device.index, tensor.data_ptr()))


def scenario_copies(run: base.Run) -> None:
    """Tensors go from one GPU to the other and back, also while they lie on the slower tier."""
    import torch

    testing = base.our_testing()
    numbers = torch.arange(4 * WORDS, dtype=torch.float32)
    first = numbers.to("cuda:0")
    second = first.to("cuda:1")
    run.facts["elastic"] = [is_elastic(testing, first), is_elastic(testing, second)]
    run.facts["there"] = torch.equal(second.cpu(), numbers)
    back = torch.empty_like(first)
    back.copy_(second)
    run.facts["back"] = torch.equal(back.cpu(), numbers)
    # What is made after the devices know each other, and what has moved.
    for device in (0, 1):
        torch.cuda.synchronize(device)
        run.facts[f"deferred_{device}"] = testing.commensal_testing_set_limit(device, 8 * MIB)
    third = second.flip(0) if ON_GPU else numbers.flip(0).to("cuda:1")
    back.copy_(third)
    run.facts["moved"] = torch.equal(back.cpu(), numbers.flip(0))
    third.copy_(first)
    run.facts["moved_back"] = torch.equal(third.cpu(), numbers)
    run.facts["peer"] = torch.cuda.can_device_access_peer(0, 1)
    with torch.cuda.device(1):
        run.facts["allocated"] = torch.cuda.memory_allocated() // MIB


def private_pools(run: base.Run) -> None:
    """Pools, emptied caches and freed blocks in every order that has gone wrong elsewhere."""
    import torch

    testing = base.our_testing()
    torch.empty(1, device="cuda")  # what elastic memory needs beside blocks is there then
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    # What ours cached serves a pool that would not fit beside it. (While a pool is in use PyTorch's
    # own gives nothing back either: a graph may be captured.)
    cached = torch.empty(free * 3 // 5, dtype=torch.uint8, device="cuda")
    del cached
    torch.cuda.empty_cache()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(free * 3 // 5, dtype=torch.uint8, device="cuda")
        run.facts["inside_elastic"] = is_elastic(testing, inside)
        torch.cuda.empty_cache()  # within a pool
        small = torch.empty(100, device="cuda")
    run.facts["fits"] = inside.numel() == free * 3 // 5
    # And what a pool leaves serves ours: a block in the pool is freed outside of it.
    del inside
    run.facts["kept"] = small.shape[0]
    del small, pool
    gc.collect()
    again = torch.empty(free * 3 // 5, dtype=torch.uint8, device="cuda")
    run.facts["again_elastic"] = is_elastic(testing, again)
    del again
    # A block that is made while caching is off, and freed once it is on again, and the other way.
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()["allocation.all.current"]
    torch.cuda.caching_allocator_enable(False)
    uncached = torch.empty(WORDS, device="cuda")
    torch.cuda.caching_allocator_enable(True)
    ours = torch.empty(WORDS, device="cuda")
    run.facts["whose"] = [is_elastic(testing, uncached), is_elastic(testing, ours)]
    del uncached
    torch.cuda.caching_allocator_enable(False)
    del ours
    torch.cuda.caching_allocator_enable(True)
    run.facts["allocations"] = torch.cuda.memory_stats()["allocation.all.current"] - before
    torch.cuda.empty_cache()
    run.facts["given_back"] = free - torch.cuda.mem_get_info()[0]


def scenario_wrong_free(run: base.Run) -> None:
    """A block that is made while caching is off, and freed once it is on again."""
    import torch

    torch.empty(1, device="cuda")
    torch.cuda.caching_allocator_enable(False)
    block = torch.empty(WORDS, device="cuda")
    torch.cuda.caching_allocator_enable(True)
    del block
    run.facts["freed"] = True


def fractions(run: base.Run) -> None:
    """A fraction of the device is of elastic memory and private pools together."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    run.facts["before"] = torch.cuda.get_per_process_memory_fraction()
    ours = torch.empty(total // 8, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(0.25)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        theirs = torch.empty(total // 16, dtype=torch.uint8, device="cuda")
        run.facts["pool"] = base.error_of(
            lambda: torch.empty(total // 8, dtype=torch.uint8, device="cuda")
        )
    run.facts["ours"] = base.error_of(
        lambda: torch.empty(total // 8, dtype=torch.uint8, device="cuda")
    )
    run.facts["told"] = torch.cuda.get_per_process_memory_fraction()
    fits = torch.empty(total // 32, dtype=torch.uint8, device="cuda")
    torch.cuda.set_per_process_memory_fraction(1.0)
    more = torch.empty(total // 4, dtype=torch.uint8, device="cuda")
    run.facts["sizes"] = [round(block.numel() * 32 / total) for block in (ours, theirs, fits, more)]


def scenario_pools(run: base.Run) -> None:
    """Private pools, and fractions that count them."""
    private_pools(run)
    fractions(run)


def scenario_fraction_setting(run: base.Run) -> None:
    """`per_process_memory_fraction` of the allocator's settings bounds elastic memory, too."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    torch.empty(WORDS, device="cuda")
    run.facts["told"] = torch.cuda.get_per_process_memory_fraction()
    run.facts["error"] = base.error_of(
        lambda: torch.empty(total // 2, dtype=torch.uint8, device="cuda")
    )


def scenario_uncached(run: base.Run) -> None:
    """PYTORCH_NO_CUDA_MEMORY_CACHING: nothing is cached, so nothing is ours."""
    import torch

    testing = base.our_testing()
    tensor = torch.ones(WORDS).cuda()
    run.facts["elastic"] = is_elastic(testing, tensor)
    run.facts["values"] = tensor.cpu().unique().tolist()
    run.facts["standard_deleter"] = torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata)
    side = torch.cuda.Stream()
    tensor.record_stream(side)
    del tensor


def share(run: base.Run) -> None:
    """A tensor that another process is to have says that it cannot, in both ways of sharing."""
    import torch

    tensor = torch.ones(WORDS).cuda()
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    run.facts["sent"] = base.error_of(lambda: queue.put(tensor))
    run.facts["reduced"] = base.error_of(
        lambda: torch.multiprocessing.reductions.reduce_tensor(tensor)
    )
    queue.put(tensor.cpu())  # what the error says to do
    run.facts["copied"] = queue.get().unique().tolist()


def profile(run: base.Run) -> None:
    """The profiler's memory events are of elastic memory and private pools together."""
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        theirs = torch.empty(WORDS, device="cuda")
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        ours = torch.empty(2 * WORDS, device="cuda")
        del ours
    events = [
        event
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    run.facts["changes"] = [event.nbytes() // MIB for event in events]
    run.facts["kept"] = theirs.shape[0]


def end(run: base.Run) -> None:
    """Blocks outlive the interpreter, some of them in use by a stream; a forked child ends, too."""
    import torch

    side = torch.cuda.Stream()
    recorded = torch.ones(WORDS).cuda()
    recorded.record_stream(side)
    kept = [torch.ones(WORDS).cuda() for _ in range(3)]
    gone = torch.ones(WORDS).cuda()
    gone.record_stream(side)
    child = os.fork()
    if child == 0:
        del gone, kept, recorded  # the parent's: nothing happens, and nothing hangs
        os._exit(0)
    run.facts["child"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    run.facts["values"] = [tensor.cpu().unique().tolist() for tensor in kept]
    sys.modules["__main__"].__dict__["kept_for_ever"] = [recorded, *kept]


def scenario_life(run: base.Run) -> None:
    """Sharing, profiling, and the end."""
    share(run)
    profile(run)
    end(run)


@pytest.mark.parametrize("peer", ["1", "0"])
def test_tensors_go_from_one_gpu_to_the_other(peer: str) -> None:
    if ON_GPU:
        pytest.skip("one card")
    facts = run_scenario("copies", "elastic1024", devices=2, SIMULATED_CUDA_PEER_ACCESS=peer)
    assert facts["peer"] == (peer == "1")
    assert facts["elastic"] == [True, True]
    assert [facts["deferred_0"], facts["deferred_1"]] == [0, 0]
    for fact in ("there", "back", "moved", "moved_back"):
        assert facts[fact], fact
    assert facts["allocated"] == 32
    given = facts["calls"].get("cudaMemcpyPeerAsync", [0])[0]
    assert (given == 0) == (peer == "1")


def test_p24_pools_empty_caches_and_frees_in_any_order() -> None:
    facts = run_scenario("pools", "elastic1048576")
    assert not facts["inside_elastic"]
    assert facts["fits"]
    assert facts["kept"] == 100
    assert facts["again_elastic"]
    assert facts["whose"] == [False, True]
    assert facts["allocations"] == 0
    if not ON_GPU:  # elsewhere others hold memory, too
        assert facts["given_back"] == 0


def test_p24_one_deleter_for_all_blocks_frees_by_the_wrong_function() -> None:
    with pytest.raises(AssertionError, match="invalid device pointer"):
        run_scenario("wrong_free", "careful")


def test_p25_a_fraction_is_of_pools_and_elastic_memory_together() -> None:
    facts = run_scenario("pools", "elastic1048576")
    assert facts["before"] == 1.0
    for kind, text in (facts["pool"], facts["ours"]):
        assert kind == "OutOfMemoryError"
        assert text.startswith("CUDA out of memory. Tried to allocate ")
    assert facts["told"] == 0.25
    assert facts["sizes"] == [4, 2, 1, 8]


def test_a_fraction_in_the_settings_bounds_elastic_memory() -> None:
    facts = run_scenario(
        "fraction_setting", "elastic1048576", settings="per_process_memory_fraction:0.25"
    )
    assert facts["told"] == 0.25
    assert facts["error"][0] == "OutOfMemoryError"


def test_what_must_not_be_cached_is_pytorchs() -> None:
    facts = run_scenario("uncached", "elastic1024", PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    assert not facts["elastic"]
    assert facts["values"] == [1.0]
    assert facts["standard_deleter"]


def test_blocks_outlive_the_interpreter_and_a_forked_child() -> None:
    facts = run_scenario("life", "elastic1024")  # which also ends with 0
    assert facts["child"] == 0
    assert facts["values"] == [[1.0]] * 3


def test_p4_what_cannot_be_shared_says_so_and_what_to_do() -> None:
    facts = run_scenario("life", "elastic1024")
    for kind, text in (facts["sent"], facts["reduced"]):
        assert kind == "RuntimeError"
        assert "a CUDA tensor in elastic memory cannot be shared with another process" in text
        assert "copy it to the CPU" in text
    assert facts["copied"] == [1.0]


def test_the_profiler_sees_blocks_of_elastic_memory() -> None:
    facts = run_scenario("life", "elastic1024")
    assert facts["changes"] == [8, -8]
    assert facts["kept"] == WORDS


if __name__ == "__main__":
    base.main(globals(), *sys.argv[1:])
