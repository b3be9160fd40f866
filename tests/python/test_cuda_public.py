# SPDX-License-Identifier: Apache-2.0
"""What a script may ask of CUDA memory, with PyTorch's own allocator and with elastic memory.

The same answers both ways, but for where memory lies: PyTorch's tools for memory histories, pools
of every kind, statistics by name, and errors. Scenarios as in test_cuda_allocator.py, which runs
them.
"""

from __future__ import annotations

import base64
import copy
import functools
import gc
import json
import pickle
import re
import sys
import threading
from typing import Any

import pytest
import test_cuda_allocator as base

MIB = base.MIB
WORDS = base.WORDS
ELASTIC = "elastic1024"
run_scenario = functools.partial(base.run_scenario, file=__file__)

# Entries of a history that say where memory is, not what was done with it.
SEGMENT_ACTIONS = ("segment_alloc", "segment_free", "segment_map", "segment_unmap")


def totals_of(flamegraph: str) -> dict[str, int]:
    """Return the bytes of a flamegraph by the state of their blocks, those of gaps apart."""
    totals: dict[str, int] = {}
    for line in flamegraph.splitlines():
        path, size = line.rsplit(" ", 1)
        [state] = [part for part in path.split(";") if part.startswith(("active_", "inactive"))]
        kind = "gaps" if "<gaps>" in path else state
        totals[kind] = totals.get(kind, 0) + int(size)
    return totals


def taken_back(snapshot: dict[str, Any]) -> list[str]:
    """Undo a snapshot's history from its end, as PyTorch's viewer does; return what is wrong.

    At each entry the memory that it names must be there: in a segment, and as a block.
    """
    unit = 512
    mapped: set[int] = set()
    live: set[int] = set()
    for segment in snapshot["segments"]:
        begin, end = segment["address"], segment["address"] + segment["total_size"]
        mapped.update(range(begin, end, unit))
        live.update(b["address"] for b in segment["blocks"] if b["state"] != "inactive")
    wrong = []
    [entries] = snapshot["device_traces"]
    for number, entry in reversed(list(enumerate(entries))):
        action, begin, size = entry["action"], entry.get("addr", 0), entry["size"]
        pages = set(range(begin // unit * unit, begin + size, unit))
        if action in ("segment_alloc", "segment_map"):
            held = pages <= mapped
            mapped -= pages
        elif action in ("segment_free", "segment_unmap"):
            held = not pages & mapped
            mapped |= pages
        elif action == "alloc":
            held = begin in live and pages <= mapped
            live.discard(begin)
        elif action == "free_completed":
            held = begin not in live and pages <= mapped
            live.add(begin)
        else:
            continue
        if not held:
            wrong.append(f"{number}: {action} {begin:#x} {size}")
    return wrong


def scenario_tools(run: base.Run) -> None:
    """A recorded job with memory of both allocators, and all of PyTorch's tools on it."""
    import torch
    from torch.cuda import _memory_viz as viz

    earlier = torch.empty(WORDS, device="cuda")
    torch.cuda.memory._record_memory_history(max_entries=10000, stacks="python")
    pool, side = torch.cuda.MemPool(), torch.cuda.Stream()
    blocks = [torch.empty(size * WORDS, device="cuda") for size in (1, 2, 8)]
    with torch.cuda.use_mem_pool(pool):
        pooled = torch.empty(3 * WORDS, device="cuda")
    with torch.cuda.stream(side):
        blocks.append(torch.empty(100, device="cuda"))
    before = torch.cuda.memory._snapshot()
    blocks[1] = blocks[2] = earlier
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    blocks.append(torch.empty(4 * WORDS, device="cuda"))
    snapshot = torch.cuda.memory._snapshot()
    del pooled

    def plain(lines: str) -> str:
        return lines

    run.facts["reserved"] = sum(segment["total_size"] for segment in snapshot["segments"])
    run.facts["told_reserved"] = torch.cuda.memory_reserved()
    run.facts["segments"] = totals_of(viz.segments(snapshot, plain))
    run.facts["memory"] = totals_of(viz.memory(snapshot, plain))
    run.facts["frames"] = "scenario_tools" in viz.memory(snapshot, plain)
    run.facts["compared"] = bool(viz.compare(before["segments"], snapshot["segments"], plain))
    told = re.search(r"^total_allocated: (.*)$", viz.segsum(snapshot), re.MULTILINE)
    run.facts["segsum"] = told and told.group(1)
    run.facts["trace"] = viz.trace(snapshot).count("\n") > len(snapshot["device_traces"][0])
    [entries] = snapshot["device_traces"]
    run.facts["entries"] = [
        [entry["action"], entry["size"], [frame["name"] for frame in entry.get("frames", [])][:1]]
        for entry in entries
        if entry["action"] not in (*SEGMENT_ACTIONS, "snapshot")
    ]
    run.facts["kinds"] = sorted({e["action"] for e in entries if e["action"] in SEGMENT_ACTIONS})
    run.facts["wrong_before"] = taken_back(before)
    run.facts["wrong_snapshot"] = taken_back(snapshot)
    plots = {
        "Active Memory Timeline": viz.trace_plot(snapshot),
        "Active Cached Memory Timeline": viz.trace_plot(snapshot, plot_segments=True),
        "Allocator State History": viz.segment_plot(snapshot),
    }
    run.facts["plots"] = [
        repr(kind) in page and shown_by(page) == snapshot for kind, page in plots.items()
    ]
    kept = shown_by(viz.trace_plot(copy.deepcopy(snapshot), filter_freed=True))
    actions = [e["action"] for e in kept["device_traces"][0]]
    run.facts["never_freed"] = actions.count("alloc")
    run.facts["frees_left"] = [action for action in actions if action.startswith("free")]


def shown_by(page: str) -> Any:
    """Return the snapshot within a page of PyTorch's viewer."""
    found = re.search(r'"base64": "([^"]*)"', page)
    assert found is not None
    return pickle.loads(base64.b64decode(found.group(1)))


def lend(run: base.Run, *, use_on_oom: bool) -> None:
    """Fill the device but for a free block in a pool, and ask for that much."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    eighth = functools.partial(torch.empty, total // 8, dtype=torch.uint8, device="cuda")
    pool = torch.cuda.MemPool(use_on_oom=use_on_oom)
    with torch.cuda.use_mem_pool(pool):
        address = eighth().data_ptr()  # and free again
    torch.cuda.set_per_process_memory_fraction(3 / 16)
    other = torch.empty(total // 32, dtype=torch.uint8, device="cuda")
    name = "lent" if use_on_oom else "kept"
    if use_on_oom:
        block = eighth()
        run.facts[name] = [block.data_ptr() == address, base.error_of(eighth)[0]]
        segments = pool.snapshot()
        run.facts["lent_size"] = [segment["allocated_size"] for segment in segments] == [total // 8]
        del block
        run.facts["lent_again"] = eighth().data_ptr() == address
    else:
        run.facts[name] = base.error_of(eighth)[0]
    del pool
    gc.collect()
    run.facts[f"{name}_gone"] = eighth().numel() == total // 8  # the pool's memory serves all
    del other
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def threads(run: base.Run) -> None:
    """Each thread has its own pool, and the main thread none."""
    import torch

    pools = [torch.cuda.MemPool() for _ in range(2)]
    meet = threading.Barrier(3, timeout=base.DEADLINE_S)
    kept: list[Any] = []

    def work(pool: Any, size: int) -> None:
        with torch.cuda.use_mem_pool(pool):
            meet.wait()
            kept.append(torch.empty(size, device="cuda"))
            meet.wait()
        kept.append(torch.empty(size, device="cuda"))

    workers = [
        threading.Thread(target=work, args=(pool, size * WORDS))
        for pool, size in zip(pools, (1, 2), strict=True)
    ]
    for worker in workers:
        worker.start()
    meet.wait()
    kept.append(torch.empty(5 * WORDS, device="cuda"))
    meet.wait()
    for worker in workers:
        worker.join()
    run.facts["threads"] = [
        [segment["requested_size"] // MIB for segment in pool.snapshot()] for pool in pools
    ]
    run.facts["all"] = torch.cuda.memory_stats()["requested_bytes.all.current"] // MIB


def unsplit(run: base.Run) -> None:
    """A pool that does not split its segments serves each block from one of its own."""
    import torch

    for name, no_split in (("split", False), ("unsplit", True)):
        pool = torch.cuda.MemPool(no_split=no_split)
        with torch.cuda.use_mem_pool(pool):
            blocks = [torch.empty(WORDS // 2, device="cuda") for _ in range(3)]
        run.facts[name] = base.segments_of(pool.snapshot())
        del blocks


def handles(run: base.Run) -> None:
    """Graphs share a pool by a handle, and by the id of a pool."""
    import torch

    static = torch.zeros(1000).cuda()
    user_pool = torch.cuda.MemPool()
    for name, handle in (("handle", torch.cuda.graph_pool_handle()), ("pool", user_pool.id)):
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        read = static
        for graph in graphs:
            with torch.cuda.graph(graph, pool=handle):
                out = torch.empty(1000, device="cuda")
                out.copy_(read)
            read = out
            eager = torch.ones(1000).cuda()  # between the captures
        static.copy_(torch.full((1000,), 7.0))
        for graph in graphs:
            graph.replay()
        run.facts[name] = [out.cpu().unique().tolist(), eager.cpu().unique().tolist()]
        run.facts[f"{name}_same"] = all(graph.pool() == handle for graph in graphs)


def scenario_pools(run: base.Run) -> None:
    """Pools of every kind."""
    lend(run, use_on_oom=True)
    lend(run, use_on_oom=False)
    threads(run)
    unsplit(run)
    handles(run)


def labels_of(summary: str) -> list[str]:
    """Return the lines of a table without their numbers."""
    return [re.sub(r"[\d.]+|[KMGT]i?B|\bB\b|\s+", " ", line) for line in summary.splitlines()]


def scenario_questions(run: base.Run) -> None:
    """Statistics and their names, tables, free memory, and what is refused."""
    import torch

    total = torch.cuda.mem_get_info()[1]
    kept = torch.empty(16 * WORDS, device="cuda")
    run.facts["keys"] = sorted(torch.cuda.memory_stats())
    run.facts["nested"] = json.dumps(torch.cuda.memory_stats_as_nested_dict()).count("{")
    for abbreviated in (False, True):
        summary = torch.cuda.memory_summary(abbreviated=abbreviated)
        run.facts[f"summary_{abbreviated}"] = [" ".join(x.split()) for x in labels_of(summary)]
    if not base.ON_GPU:
        run.facts["processes"] = torch.cuda.list_gpu_processes()
    peaks = [torch.cuda.max_memory_allocated() // MIB]
    del kept
    for reset in (torch.cuda.reset_peak_memory_stats, torch.cuda.reset_accumulated_memory_stats):
        reset()
        peaks.append(torch.cuda.max_memory_allocated() // MIB)
    run.facts["peaks"] = peaks
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    kept = torch.empty(64 * WORDS, device="cuda")
    again, same_total = torch.cuda.mem_get_info()
    run.facts["mem_get_info"] = [total == same_total, again <= free - 256 * MIB or base.ON_GPU]
    accelerator = torch.accelerator.memory.get_memory_info()
    run.facts["accelerator"] = [accelerator[0] <= again, accelerator[1] == total]
    run.facts["errors"] = [
        base.error_of(functools.partial(torch.cuda.set_per_process_memory_fraction, value))
        for value in (-0.1, 1.5, "half")
    ]
    run.facts["fraction"] = torch.cuda.get_per_process_memory_fraction()
    run.facts["stranger"] = base.error_of(lambda: torch.cuda.caching_allocator_delete(4096))
    run.facts["settings"] = [
        base.error_of(functools.partial(torch.cuda.memory._set_allocator_settings, text))
        for text in ("no_such_setting:1", "max_split_size_mb:x", "expandable_segments:maybe")
    ]
    other = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")
    run.facts["replaced"] = base.error_of(
        functools.partial(torch.cuda.memory.change_current_allocator, other)
    )
    run.facts["backend"] = torch.cuda.get_allocator_backend()
    run.facts["kept"] = kept.numel()


def scenario_expandable(run: base.Run) -> None:
    """Ordinary blocks and a pool while PyTorch's own segments can grow."""
    import torch

    tensor = torch.ones(WORDS).cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(WORDS).cuda()
    run.facts["values"] = [tensor.cpu().unique().tolist(), inside.cpu().unique().tolist()]
    run.facts["pool_expands"] = [segment["is_expandable"] for segment in pool.snapshot()]
    run.facts["allocated"] = torch.cuda.memory_allocated() // MIB


def both(name: str, settings: str = "") -> list[base.Facts]:
    """Run a scenario with PyTorch's own allocator and with elastic memory."""
    return base.run_with("native", ELASTIC, name=name, settings=settings, file=__file__)


@pytest.mark.parametrize(
    ("name", "facts", "settings"),
    [
        ("tools", ["frames", "entries", "plots", "segsum", "trace", "never_freed"], ""),
        ("tools", ["wrong_before", "wrong_snapshot", "frees_left", "compared"], ""),
        ("pools", ["lent", "lent_size", "lent_again", "kept", "lent_gone", "kept_gone"], ""),
        ("pools", ["threads", "all", "split", "unsplit"], ""),
        ("pools", ["handle", "pool", "handle_same", "pool_same"], ""),
        ("questions", ["keys", "nested", "summary_False", "summary_True", "peaks"], ""),
        ("questions", ["mem_get_info", "accelerator", "errors", "fraction", "stranger"], ""),
        ("questions", ["settings", "replaced", "backend", "kept"], ""),
        ("expandable", ["values", "pool_expands", "allocated"], "expandable_segments:True"),
    ],
)
def test_answers_are_those_of_pytorchs_own(name: str, facts: list[str], settings: str) -> None:
    native, elastic = both(name, settings)
    for fact in facts:
        assert elastic[fact] == native[fact], fact


def test_pytorchs_tools_add_up() -> None:
    for facts in both("tools"):
        assert facts["reserved"] == facts["told_reserved"]
        assert sum(facts["segments"].values()) == facts["reserved"]
        assert facts["segments"] == facts["memory"]
        # Four blocks of 4 MiB (or 4 x 4), one of 400 bytes, and a pool's of 12 MiB.
        assert facts["segments"]["active_allocated"] == (4 + 4 + 16 + 12) * MIB + 400
        assert facts["plots"] == [True] * 3
        assert facts["wrong_before"] == facts["wrong_snapshot"] == facts["frees_left"] == []
        assert facts["frames"]


def test_the_history_has_the_segments_of_both_allocators() -> None:
    elastic = run_scenario("tools", ELASTIC)
    assert elastic["kinds"] == ["segment_alloc", "segment_map", "segment_unmap"]


def test_a_pool_that_is_lent_serves_what_does_not_fit_and_others_do_not() -> None:
    facts = run_scenario("pools", ELASTIC)
    assert facts["lent"] == [True, "OutOfMemoryError"]
    assert facts["lent_size"]
    assert facts["lent_again"]
    assert facts["kept"] == "OutOfMemoryError"
    assert facts["lent_gone"]
    assert facts["kept_gone"]


def test_what_is_refused_is_named() -> None:
    facts = run_scenario("questions", ELASTIC)
    assert all(kind != "nothing" for kind, _ in facts["errors"] + facts["settings"])
    assert facts["replaced"][0] == "RuntimeError"
    assert "already initialized allocator" in facts["replaced"][1]
    assert facts["stranger"][0] == "RuntimeError"


def test_a_setting_that_does_not_exist_fails_as_natively() -> None:
    said = []
    for who in ("native", ELASTIC):
        with pytest.raises(AssertionError) as failed:
            run_scenario("expandable", who, PYTORCH_ALLOC_CONF="no_such_setting:1")
        said.append(re.findall(r"^.*no_such_setting.*$", str(failed.value), re.MULTILINE)[-1])
    assert said[0] == said[1]


if __name__ == "__main__":
    base.main(globals(), *sys.argv[1:])
