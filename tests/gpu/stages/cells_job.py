# SPDX-License-Identifier: Apache-2.0
"""A job that holds memory and gives it back when it is told to, and one with a captured graph."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from contents import Contents, mix
from free_memory import Watch
from parkers import PATIENCE, NoWay, made, parker, peak_host_bytes
from stage_report import on_simulated_driver
from torch import Tensor

NEARLY_ALL = 0.9  # of the bytes: what is left is rounding, and what others took meanwhile
TRIES = 16
SEEN_WITHIN = 10.0  # until others see what was given back,
SECONDS_A_GIB = 1.0  # after it went, which may take so long


class Job:
    """What the orders of the cell `job` work on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.cuda.init()
        self._parker = parker(settings["variant"])
        self._watch = Watch(settings["watch"])
        self._contents = Contents()
        self._kept: list[Tensor] = []
        self._dropped: list[Tensor] = []
        self._more: list[Tensor] = []
        self._sum = ""
        self._at: list[int] = []

    def hold(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make tensors of so many bytes, with content."""
        self._kept = self._parker.make(mix(order["bytes"]), keep=True)
        self._contents.fill(self._kept)
        self._sum = self._contents.checksum(self._kept)
        self._at = [tensor.data_ptr() for tensor in self._kept]
        torch.cuda.empty_cache()
        return {"bytes": bytes_of(self._kept), "tensors": len(self._kept), "way": self._parker.way}

    def hold_dropped(self, order: dict[str, Any]) -> dict[str, Any]:
        """Make tensors whose content may be given up."""
        try:
            self._dropped = self._parker.make(mix(order["bytes"]), keep=False)
        except NoWay as reason:
            return {"bytes": 0, "reason": str(reason)}
        torch.cuda.synchronize()
        return {"bytes": bytes_of(self._dropped), "reason": ""}

    def park(self, order: dict[str, Any]) -> dict[str, Any]:
        """Park; see that the bytes are free, unless another process is to take them at once."""
        freed = bytes_of(self._kept) if order.get("seen", True) else 0
        return self._timed(self._parker.park, freed)

    def drop(self, _order: dict[str, Any]) -> dict[str, Any]:
        return self._timed(self._parker.drop, bytes_of(self._dropped))

    def wake(self, order: dict[str, Any]) -> dict[str, Any]:
        self._parker.patience = order.get("patience", PATIENCE)
        return self._timed(self._parker.wake, 0)

    def undrop(self, _order: dict[str, Any]) -> dict[str, Any]:
        return self._timed(self._parker.undrop, 0)

    def check(self, _order: dict[str, Any]) -> dict[str, Any]:
        """Look whether content and addresses are what they were."""
        torch.cuda.synchronize()
        same = self._contents.checksum(self._kept) == self._sum
        kept = self._at == [tensor.data_ptr() for tensor in self._kept]
        return {"same": same, "addresses": kept}

    def allocate(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take more memory than the card may have; tell how that went."""
        begin = time.monotonic()
        try:
            with self._parker.region(keep=True):
                block = made(order["bytes"])
            fresh = Contents(seed=11)
            fresh.fill([block])
            once = fresh.checksum([block])
            usable = once == fresh.checksum([block])
            self._more.append(block)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            return {"survived": False, "error": str(error).partition("\n")[0]}
        return {"survived": usable, "error": "", "seconds": time.monotonic() - begin}

    def take_all_but(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take the card's memory, but for so many bytes."""
        torch.cuda.synchronize()
        size = (self._watch.free() - order["bytes"]) >> 21 << 21
        before = len(self._more)
        for part in range(TRIES):  # a driver keeps some for itself
            with contextlib.suppress(torch.OutOfMemoryError):
                self._more.append(made(size - part * max(2 << 20, size >> 8)))
                break
        return {"taken": bytes_of(self._more[before:]), "free": self._watch.free()}

    def leave(self, _order: dict[str, Any]) -> dict[str, Any]:
        """Give back what was taken."""
        self._more = []
        torch.cuda.empty_cache()
        return {"free": self._watch.free()}

    def held(self, _order: dict[str, Any]) -> dict[str, Any]:
        return {
            "device_bytes": self._watch.held(os.getpid()),
            "host_bytes": peak_host_bytes(),
            "free_bytes": self._watch.free(),
        }

    def _timed(self, act: Callable[[], Any], freed: int) -> dict[str, Any]:
        """Time something, until it returns and until others see its bytes as free."""
        torch.cuda.synchronize()
        if freed:
            within = SEEN_WITHIN + freed / 2**30 * SECONDS_A_GIB
            self._watch.arm(self._watch.free() + int(freed * NEARLY_ALL), within)
        begin = time.monotonic()
        reason = ""
        try:
            reason = act() or ""
            torch.cuda.synchronize()
        except torch.OutOfMemoryError as error:
            reason = str(error).partition("\n")[0]
        told = {"bytes": freed, "seconds": time.monotonic() - begin, "reason": reason}
        if freed:
            seen = self._watch.seen()
            told["visible_seconds"] = None if seen is None else max(0.0, seen - begin)
        return told


def job(settings: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    made_job = Job(settings)

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        told: dict[str, Any] = getattr(made_job, order["do"])(order)
        return told

    return handle


def bytes_of(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def graph(settings: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Capture a graph that reads live tensors; replay it before and after these went and came."""
    way = parker(settings["variant"])
    contents = Contents()
    size = settings["bytes"]
    [source] = way.make([size], keep=True)
    target = made(size)
    group = settings["collective"]
    if group:
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"file://{settings['folder']}/graph-{os.getpid()}",
            rank=0,
            world_size=1,
        )

    def work() -> None:
        target.copy_(source)
        if group:
            torch.distributed.all_reduce(target)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        work()

    def replay() -> tuple[str, float]:
        target.zero_() if not on_simulated_driver() else contents.fill([target])
        torch.cuda.synchronize()
        begin = time.monotonic()
        captured.replay()
        torch.cuda.synchronize()
        return contents.checksum([target]), time.monotonic() - begin

    def handle(_order: dict[str, Any]) -> dict[str, Any]:
        contents.fill([source])
        expected = contents.checksum([source])
        replay()
        before = [replay() for _ in range(5)]
        reasons = [way.park(), way.wake()]
        after = [replay() for _ in range(5)]
        return {
            "same_before": all(told == expected for told, _ in before),
            "same": all(told == expected for told, _ in after),
            "source": contents.checksum([source]) == expected,
            "before": [seconds for _, seconds in before],
            "after": [seconds for _, seconds in after],
            "reasons": [reason for reason in reasons if reason],
        }

    return handle
