# SPDX-License-Identifier: Apache-2.0
"""What the card is, and how fast PyTorch itself copies over its link: what others are held to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

ROUNDS = 5
LINK_BYTES = 1 << 30


def card(_settings: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a handler that tells of the card (`about`) and of its link (`link`)."""

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        return about() if order["do"] == "about" else link(order["bytes"])

    return handle


def about() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "card": properties.name,
        "uuid": str(properties.uuid),
        "free_bytes": free,
        "total_bytes": total,
        "host_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE"),
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def link(size: int) -> dict[str, Any]:
    """Copy between pinned memory and the card; bytes a second, each way and both at once."""
    size = min(LINK_BYTES, size) // 8 * 8
    begin = time.perf_counter()
    out = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pinned = size / (time.perf_counter() - begin)
    back = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    other = torch.empty(size, dtype=torch.uint8, device="cuda")
    ways = [torch.cuda.Stream(), torch.cuda.Stream()]

    def copy_out() -> None:
        with torch.cuda.stream(ways[0]):
            out.copy_(there, non_blocking=True)

    def copy_in() -> None:
        with torch.cuda.stream(ways[1]):
            other.copy_(back, non_blocking=True)

    def both() -> None:
        copy_out()
        copy_in()

    def speeds(copy: Callable[[], None], moved: int) -> list[float]:
        found = []
        for _ in range(ROUNDS + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            copy()
            torch.cuda.synchronize()
            found.append(moved / (time.perf_counter() - start))
        return found[1:]

    back.view(torch.int64).random_()
    other.copy_(back)
    there.copy_(other)
    told = {
        "d2h": speeds(copy_out, size),
        "h2d": speeds(copy_in, size),
        "duplex": speeds(both, 2 * size),
        "pin": pinned,
    }
    return told | {"same": torch.equal(out, back)}
