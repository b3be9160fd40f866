# SPDX-License-Identifier: Apache-2.0
"""Where a process's memory lies, as the runtime tells it (docs/stats.md, "memory map")."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["TIERS", "Block", "ChunkRun", "MappedSegment", "MemoryMap"]

TIERS = ("device", "host", "parked", "dropped")


@dataclass(frozen=True)
class ChunkRun:
    """Neighbouring chunks of one tier."""

    address: int
    size_bytes: int
    tier: str
    live_bytes: int  #: of blocks in them, rounded

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


@dataclass(frozen=True)
class Block:
    """One block of memory."""

    address: int
    size_bytes: int  #: rounded
    asked_bytes: int  #: zero: free


@dataclass(frozen=True)
class MappedSegment:
    """Reserved addresses whose blocks are of one kind."""

    address: int
    reserved_bytes: int
    small: bool
    lifetime: str  #: "long" or "step": of blocks without a tag, as guessed
    tag: str  #: empty: none
    runs: tuple[ChunkRun, ...]
    blocks: tuple[Block, ...] = ()
    away: bool = False  #: what is parked here is in pinned memory: nothing may touch it

    @property
    def kind(self) -> str:
        """Name what lies here: a tag, or a lifetime."""
        return f"tag {self.tag}" if self.tag else self.lifetime


@dataclass(frozen=True)
class MemoryMap:
    """All segments of a process, by address."""

    pid: int
    job: str
    segments: tuple[MappedSegment, ...]

    @classmethod
    def from_json(cls, text: str | dict[str, Any]) -> MemoryMap:
        """Read what the runtime wrote. Raises ValueError where that is no memory map."""
        try:
            found = json.loads(text) if isinstance(text, str) else text
            segments = tuple(_segment(entry) for entry in found["segments"])
            return cls(int(found["pid"]), str(found["job"]), segments)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a memory map: {error!r}") from error

    def runs(self) -> Iterator[tuple[MappedSegment, ChunkRun]]:
        """Go through all runs of chunks, by address."""
        for segment in self.segments:
            for run in segment.runs:
                yield segment, run

    def runs_by_kind(self) -> dict[str, list[ChunkRun]]:
        """Return the runs of each kind, by address; lifetimes come first."""
        kinds: dict[str, list[ChunkRun]] = {}
        for segment, run in sorted(self.runs(), key=lambda item: (item[0].tag != "", item[0].kind)):
            kinds.setdefault(segment.kind, []).append(run)
        return kinds

    def tiers_of(self, address: int, size_bytes: int) -> set[str]:
        """Return the tiers under some bytes; empty: they are none of ours."""
        end = address + size_bytes
        return {run.tier for _, run in self.runs() if run.address < end and address < run.end}

    def is_away(self, address: int, size_bytes: int) -> bool:
        """Tell whether nothing is mapped under some of these bytes, and their content is saved."""
        end = address + size_bytes
        return any(
            segment.away and run.tier == "parked" and run.address < end and address < run.end
            for segment, run in self.runs()
        )

    def bytes_by_kind(self) -> dict[str, dict[str, int]]:
        """Return bytes of chunks by kind and tier, and `live` bytes; lifetimes come first."""
        totals: dict[str, dict[str, int]] = {}
        for kind, runs in self.runs_by_kind().items():
            row = totals[kind] = dict.fromkeys((*TIERS, "live"), 0)
            for run in runs:
                row[run.tier] += run.size_bytes
                row["live"] += run.live_bytes
        return totals


def _segment(entry: dict[str, Any]) -> MappedSegment:
    address = int(entry["address"])
    runs = tuple(
        ChunkRun(address + offset, size, tier, live) for offset, size, tier, live in entry["chunks"]
    )
    for run in runs:
        if run.tier not in TIERS:
            raise ValueError(f"unknown tier {run.tier!r}")
    return MappedSegment(
        address=address,
        reserved_bytes=int(entry["reserved_bytes"]),
        small=bool(entry["small"]),
        lifetime=str(entry["lifetime"]),
        tag=str(entry["tag"]),
        runs=runs,
        blocks=tuple(Block(*block) for block in entry.get("blocks", ())),
        away=bool(entry.get("away", False)),
    )
