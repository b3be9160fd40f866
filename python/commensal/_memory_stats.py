# SPDX-License-Identifier: Apache-2.0
"""Memory statistics and snapshots under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from commensal._memory_map import Block, ChunkRun, MappedSegment, MemoryMap

__all__ = ["torch_memory_stats", "torch_snapshot"]


def torch_memory_stats(memory: dict[str, Any]) -> dict[str, Any]:
    """Return `stats()["memory"]` under the keys of `torch.cuda.memory_stats`, and ours."""
    born, dead = memory["allocations_total"], memory["frees_total"]
    live, peak = memory["live_bytes"], memory["peak_live_bytes"]
    found: dict[str, Any] = {
        "num_ooms": memory["out_of_memory_total"],
        "reserved_bytes.all.current": memory["device_bytes"],
        "reserved_bytes.all.peak": memory["peak_device_bytes"],
    }
    for what in ("allocation", "active"):
        found[f"{what}.all.current"] = born - dead
        found[f"{what}.all.allocated"] = born
        found[f"{what}.all.freed"] = dead
    # As asked: what rounding adds is not counted apart.
    for what in ("allocated_bytes", "active_bytes", "requested_bytes"):
        found[f"{what}.all.current"] = live
        found[f"{what}.all.peak"] = peak
    for name, value in memory.items():
        if name not in ("tags", "devices", "kept"):
            found[f"commensal.{name}"] = value
    for tag in memory["tags"]:
        found.update((f"commensal.tag.{tag['name']}.{key}", value) for key, value in tag.items())
    for gpu in memory["devices"]:
        found.update((f"commensal.device.{gpu['device']}.{key}", gpu[key]) for key in gpu)
    for entry in memory["kept"]:
        found[f"commensal.kept.{entry['reason']}.bytes"] = entry["bytes"]
    return dict(sorted(found.items()))


def torch_snapshot(where: MemoryMap) -> dict[str, Any]:
    """Return a memory map with blocks in the format of `torch.cuda.memory._snapshot`."""
    return {
        "segments": [
            _segment(segment, runs) for segment in where.segments for runs in _together(segment)
        ],
        "device_traces": [[]],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": "",
            "expandable_segments": True,
            "garbage_collection_threshold": 0.0,
            "max_split_size": -1,
            "release_lock_on_cudamalloc": False,
            "pinned_use_cuda_host_register": False,
            "roundup_power2_divisions": {},
        },
        "external_annotations": [],
    }


def _together(segment: MappedSegment) -> Iterator[list[ChunkRun]]:
    """Go through stretches of addresses without a gap: PyTorch's viewer knows none inside."""
    stretch: list[ChunkRun] = []
    for run in segment.runs:
        if stretch and stretch[-1].end != run.address:
            yield stretch
            stretch = []
        stretch.append(run)
    if stretch:
        yield stretch


def _segment(segment: MappedSegment, runs: list[ChunkRun]) -> dict[str, Any]:
    begin, end = runs[0].address, runs[-1].end
    blocks = [block for block in segment.blocks if begin <= block.address < end]
    live = [block for block in blocks if block.asked_bytes]
    allocated = sum(block.size_bytes for block in live)
    return {
        "device": 0,
        "address": begin,
        "total_size": end - begin,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(block.asked_bytes for block in live),
        "stream": 0,
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": [_block(block, runs) for block in blocks],
        "commensal_lifetime": segment.lifetime,
        "commensal_tag": segment.tag,
        "commensal_tiers": [
            {"address": run.address, "size": run.size_bytes, "tier": run.tier} for run in runs
        ],
    }


def _block(block: Block, runs: list[ChunkRun]) -> dict[str, Any]:
    end = block.address + block.size_bytes
    tiers = {run.tier for run in runs if run.address < end and block.address < run.end}
    return {
        "address": block.address,
        "size": block.size_bytes,
        "requested_size": block.asked_bytes,
        "state": "active_allocated" if block.asked_bytes else "inactive",
        "frames": [],
        "commensal_tier": tiers.pop() if len(tiers) == 1 else "mixed",
    }
