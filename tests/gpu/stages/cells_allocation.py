# SPDX-License-Identifier: Apache-2.0
"""What an allocator costs, and how soon it gives back what it holds: as recorded jobs use it, in
pieces of a GiB, and as AntMan measured it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from contents import PIECE, Contents
from free_memory import Watch
from parkers import brought_back, device_bytes, parker
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import traces as recorded  # the reader of tests/data/traces

NEARLY_ALL = 0.9
AHEAD_STEP_SECONDS = 0.005
AHEAD_PATIENCE = 20.0
JOBS = ("guaranteed", "opportunistic", "antman")

PROCESS = ExitStack()

Handler = Callable[[dict[str, Any]], dict[str, Any]]
Program = list[tuple[int, int]]  # slot, and bytes to allocate there; 0: free it


def traces(settings: dict[str, Any]) -> Handler:
    """Replay the blocks of recorded jobs through the allocator that PyTorch has here."""
    torch.cuda.init()
    if settings["variant"] == "saver":  # for as long as the process lives
        PROCESS.enter_context(parker("saver").region(keep=True))
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    programs: dict[tuple[str, int], tuple[Program, int]] = {}

    def play(program: Program, slots: int) -> int:
        held = [0] * slots
        begin = time.perf_counter_ns()
        for slot, size in program:
            if size:
                held[slot] = allocate(size, stream)
            else:
                free(held[slot])
        return time.perf_counter_ns() - begin

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "loop":  # what the loop itself takes, with calls that do nothing
            return {"nanoseconds": loop_nanoseconds()}
        key = (order["trace"], order["steps"])
        if key not in programs:
            programs[key] = program_of(*key)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            play(*programs[key])  # fills the caches
        program, slots = programs[key]
        pairs = len(program) // 2
        times = [play(program, slots) / pairs for _ in range(order["passes"])]
        return {
            "nanoseconds": times,
            "pairs": pairs,
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(),
            "left_bytes": torch.cuda.memory_allocated(),
        }

    return handle


def program_of(trace: str, steps: int) -> tuple[Program, int]:
    """Return the blocks of a trace's first steps, and how many live at once."""
    events = recorded.load(recorded.FOLDER / f"{trace}.trace.xz")
    packed = recorded.pack(recorded.first_steps(events, steps), "all")
    slots, _, _, count = packed.words[:4]
    body = packed.words[4 : 4 + 2 * count]
    pairs = zip(body[::2], body[1::2], strict=True)
    return [(slot, size) for slot, size in pairs if slot != recorded.STEP_ENDS], slots


def loop_nanoseconds(rounds: int = 20000) -> float:
    held = [0]
    nothing = abs
    program: Program = [(0, 1), (0, 0)] * rounds
    begin = time.perf_counter_ns()
    for slot, size in program:
        if size:
            held[slot] = nothing(size)
        else:
            nothing(held[slot])
    return (time.perf_counter_ns() - begin) / rounds


class Holder:
    """Pieces of memory that come and go, with a second process that looks."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.cuda.init()
        self.job = settings["variant"] in JOBS
        self.watch = Watch(settings["watch"])
        self.full = torch.cuda.get_device_properties(0).total_memory

    def pieces(self, size: int) -> list[Tensor]:
        piece = max(2 << 20, min(PIECE, size // 16))
        sizes = [piece] * (size // piece)
        made = [torch.empty(one, dtype=torch.uint8, device="cuda") for one in sizes]
        torch.cuda.synchronize()
        return made

    def timed(self, size: int, act: Callable[[], object]) -> dict[str, Any]:
        """Time something that gives back bytes, until it returns and until others see them."""
        torch.cuda.synchronize()
        self.watch.arm(self.watch.free() + int(size * NEARLY_ALL))
        begin = time.monotonic()
        act()
        seconds = time.monotonic() - begin
        seen = self.watch.seen()
        visible = None if seen is None else max(0.0, seen - begin)
        return {"seconds": seconds, "visible_seconds": visible}

    def give_back(self, size: int) -> dict[str, Any]:
        """Give back so many bytes, of free memory first."""
        if not self.job:
            return self.timed(size, torch.cuda.empty_cache)
        import commensal

        limit = max(2 << 20, device_bytes() - size)
        return self.timed(size, lambda: commensal.set_memory_limit(limit))


def give_back(settings: dict[str, Any]) -> Handler:
    """Give back memory that is cached (`cached`), that lives (`live`), or lives and may be copied
    ahead (`ahead`); after each round it is had again.
    """
    holder = Holder(settings)
    contents = Contents()

    def cached(size: int) -> dict[str, Any]:
        held = holder.pieces(size)
        del held
        told = holder.give_back(size)
        begin = time.monotonic()
        if holder.job:
            brought_back(holder.full)
        granted = time.monotonic()
        held = holder.pieces(size)
        told["grow_seconds"] = time.monotonic() - granted
        told["granted_seconds"] = granted - begin
        del held
        return told

    def live(size: int, give: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
        held = holder.pieces(size)
        contents.fill(held)
        expected = contents.checksum(held)
        torch.cuda.empty_cache()
        at = [tensor.data_ptr() for tensor in held]
        told = give(size)
        told["reason"] = brought_back(holder.full)
        told["same"] = contents.checksum(held) == expected
        told["addresses"] = at == [tensor.data_ptr() for tensor in held]
        del held
        torch.cuda.empty_cache()
        return told

    def ahead(size: int) -> dict[str, Any]:
        """Steps go on, and touch nothing of it, while the limit comes from another thread."""
        import commensal

        for _ in range(8):
            commensal.step()
            time.sleep(AHEAD_STEP_SECONDS)
        limit = max(2 << 20, device_bytes() - size)
        copied = commensal.stats()["memory"]["moved_ahead_bytes_total"]
        order = threading.Thread(target=commensal.set_memory_limit, args=(limit,))
        order.start()
        begin = time.monotonic()
        stops = []
        while time.monotonic() - begin < AHEAD_PATIENCE:
            time.sleep(AHEAD_STEP_SECONDS)  # where a real job computes
            stop = time.monotonic()
            commensal.step()
            stops.append(time.monotonic() - stop)
            if not order.is_alive() and device_bytes() <= limit:
                break
        order.join()
        copied = commensal.stats()["memory"]["moved_ahead_bytes_total"] - copied
        return {
            "seconds": max(stops),
            "ahead_bytes": copied,
            "all_seconds": time.monotonic() - begin,
        }

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        size = order["bytes"]
        if order["do"] == "cached":
            return cached(size)
        return live(size, holder.give_back if order["do"] == "live" else ahead)

    return handle


def antman_shrink(settings: dict[str, Any]) -> Handler:
    """Shrink to what lives between two steps, and grow to what a step needs, as AntMan's figure."""
    holder = Holder(settings)
    contents = Contents()
    kept = holder.pieces(settings["kept"])
    contents.fill(kept)
    expected = contents.checksum(kept)

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        size = order["bytes"] - settings["kept"]
        step = holder.pieces(size)
        del step  # the step's end: activations are free
        told = holder.give_back(size)
        begin = time.monotonic()
        if holder.job:
            told["reason"] = brought_back(holder.full)
        step = holder.pieces(size)
        told["grow_seconds"] = time.monotonic() - begin
        del step
        told["same"] = contents.checksum(kept) == expected
        return told

    return handle
