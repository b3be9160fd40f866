# SPDX-License-Identifier: Apache-2.0
"""The text of `commensal.memory_summary()`."""

from __future__ import annotations

from typing import Any

from commensal._memory_map import TIERS, MemoryMap
from commensal._quantities import format_bytes, format_seconds

__all__ = ["KIND_NAMES", "describe_kinds", "describe_memory"]


KIND_NAMES = {"long": "outlives its step", "step": "dies within its step"}


def describe_memory(stats: dict[str, Any], where: MemoryMap) -> str:
    """Lay out the numbers of `commensal.stats()` (docs/stats.md) as lines of text."""
    job, memory = stats["job"], stats["memory"]
    limit = memory["limit_bytes"]
    rows: list[tuple[str, str, str]] = [
        ("policy", memory.get("policy", ""), ""),
        ("limit", "none" if limit is None else format_bytes(limit), ""),
        ("on the device", _size(memory, "device_bytes"), "live and cached"),
        ("  cached", _size(memory, "cached_bytes"), "used by no tensor"),
        ("  kept in place", _size(memory, "kept_bytes"), _reasons(memory["kept"])),
        ("PyTorch's own", _size(memory, "delegated_bytes"), "graphs and pools; does not move"),
        ("on the slower tier", _size(memory, "host_bytes"), "same addresses"),
        ("  touched again", _size(memory, "host_touched_bytes"), "counts against the limit"),
        ("parked", _size(memory, "parked_bytes"), "saved, no memory"),
        ("dropped", _size(memory, "dropped_bytes"), "content given up"),
        ("live tensors", _size(memory, "live_bytes"), f"peak {_size(memory, 'peak_live_bytes')}"),
        ("moved in total", _size(memory, "moved_bytes_total"), f"{memory['moves_total']} moves"),
        ("given back in total", _size(memory, "given_back_bytes_total"), ""),
        ("deferred", _size(memory, "deferred_bytes"), memory["deferred_reason"]),
        ("held back", _size(memory, "held_back_bytes"), memory["held_back_reason"]),
        ("held by children", _size(memory, "held_by_children_bytes"), ""),
        ("longest pause", format_seconds(memory["longest_pause_seconds"]), ""),
    ]
    if memory["out_of_memory_total"]:
        rows.append(("out of memory", str(memory["out_of_memory_total"]), "times"))
    lines = [f"memory of {job['name']} ({job['class']}, {job['id']})"]
    lines += [f"  {name:<22}{value:>12}  {note}".rstrip() for name, value, note in rows]
    lines += [f"  note: {note}" for note in memory.get("notes", [])]
    lines += ["", *describe_kinds(where)]
    return "\n".join(lines)


def describe_kinds(where: MemoryMap) -> list[str]:
    """Lay out bytes of chunks by lifetime or tag, and by tier, as lines of a table."""
    columns = (*TIERS, "live")
    rows: list[tuple[str, ...]] = [("chunks of", *columns)]
    for kind, sizes in where.bytes_by_kind().items():
        name = KIND_NAMES.get(kind, kind)
        rows.append((name, *(format_bytes(sizes[column]) for column in columns)))
    if len(rows) == 1:
        return ["no chunks: nothing was allocated yet"]
    width = max(len(row[0]) for row in rows)
    return [f"  {row[0]:<{width}}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows]


def _reasons(kept: list[dict[str, Any]]) -> str:
    return "; ".join(f"{format_bytes(entry['bytes'])}: {entry['reason']}" for entry in kept)


def _size(memory: dict[str, Any], key: str) -> str:
    return format_bytes(memory[key])
