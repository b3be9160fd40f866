# SPDX-License-Identifier: Apache-2.0
"""How the memory of tensors is given back and had again: commensal's way, and others'.

Each way has `make` (tensors that it can park), `region` (what is made in it is of the same memory),
`park`, `wake` and, where the content is to be given up, `drop` and `undrop`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from contents import PIECE
from driver_segments import Segment
from torch import Tensor

__all__ = [
    "PATIENCE",
    "NoWay",
    "Parker",
    "brought_back",
    "device_bytes",
    "made",
    "parker",
    "peak_host_bytes",
]

TAG = "benchmark"
DROPPED = "dropped"
SMALLEST_LIMIT = 2 << 20
PATIENCE = 20.0  # without a byte that comes back: the coordinator has to grant a limit first


class NoWay(RuntimeError):
    """Says why this way cannot do what is asked."""


class Parker(Protocol):
    way: str  # how it is done, for people
    patience: float = PATIENCE  # how long `wake` waits for memory where it can

    def region(self, *, keep: bool) -> AbstractContextManager[object]: ...
    def make(self, sizes: list[int], *, keep: bool) -> list[Tensor]: ...
    def park(self) -> str: ...
    def wake(self) -> str: ...
    def drop(self) -> None: ...
    def undrop(self) -> None: ...


def parker(variant: str) -> Parker:
    if variant in ("native", "expandable"):
        return PyTorch()
    if variant.startswith("saver"):
        return Saver(retained=variant == "saver_retained")
    return Sleeper() if variant == "vllm" else Commensal()


def made(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def device_bytes() -> int:
    import commensal

    return int(commensal.stats()["memory"]["device_bytes"])


def brought_back(limit: int, patience: float = PATIENCE) -> str:
    """Raise commensal's limit and end steps until all is back; return why it is not."""
    import commensal

    commensal.set_memory_limit(limit)
    missing, since = -1, time.monotonic()
    while True:
        memory = commensal.stats()["memory"]
        before, missing = missing, memory["host_bytes"] + memory["parked_bytes"]
        if missing == 0:
            return ""
        if missing != before:
            since = time.monotonic()
        elif time.monotonic() - since > patience:
            return f"{missing} bytes are not back: {memory['deferred_reason'] or 'no room'}"
        commensal.step()
        time.sleep(0.001)


class Commensal(Parker):
    """By a tag; where regions have no effect on this card, all of the job by its limit."""

    def __init__(self) -> None:
        import commensal

        self._commensal = commensal
        self._by_tag = False
        self.way = "memory limit: regions have no effect here"
        self._full = torch.cuda.get_device_properties(0).total_memory

    def region(self, *, keep: bool) -> AbstractContextManager[object]:
        return self._commensal.region(TAG if keep else DROPPED)

    def make(self, sizes: list[int], *, keep: bool) -> list[Tensor]:
        with self.region(keep=keep):
            tensors = [made(size) for size in sizes]
        wanted = sum(tensor.nbytes for tensor in tensors)
        told = self._commensal.stats()["memory"]["tags"]
        live = {tag["name"]: tag["live_bytes"] for tag in told}
        served = live.get(TAG if keep else DROPPED, 0) >= wanted
        if keep:
            self._by_tag = served
        elif not served:
            raise NoWay("regions have no effect on this card: no tag to drop")
        if self._by_tag:
            self.way = "tag"
        return tensors

    def park(self) -> str:
        if self._by_tag:
            return self._commensal.park_tag(TAG).reason
        return self._commensal.set_memory_limit(SMALLEST_LIMIT).reason

    def wake(self) -> str:
        if not self._by_tag:
            return brought_back(self._full, self.patience)
        end = time.monotonic() + self.patience
        while True:
            reason = self._commensal.wake_tag(TAG).reason
            if not reason or time.monotonic() > end:
                return reason
            self._commensal.step()
            time.sleep(0.001)

    def drop(self) -> None:
        self._commensal.drop_tag(DROPPED)

    def undrop(self) -> None:
        self._commensal.wake_tag(DROPPED)


class Saver(Parker):
    """torch_memory_saver in the mode that needs no preloaded library."""

    def __init__(self, *, retained: bool) -> None:
        from torch_memory_saver import torch_memory_saver  # where it is installed

        self._saver: Any = torch_memory_saver
        self._saver.hook_mode = "torch"
        self.way = "pause, resume"
        if retained:
            self._saver.retain_cpu_backup = True
            self.way = "pause, resume; retain_cpu_backup"

    def region(self, *, keep: bool) -> AbstractContextManager[object]:
        region: AbstractContextManager[object] = self._saver.region(
            tag=TAG if keep else DROPPED, enable_cpu_backup=keep
        )
        return region

    def make(self, sizes: list[int], *, keep: bool) -> list[Tensor]:
        with self.region(keep=keep):
            return [made(size) for size in sizes]

    def park(self) -> str:
        torch.cuda.synchronize()
        self._saver.pause(TAG)
        return ""

    def wake(self) -> str:
        self._saver.resume(TAG)
        return ""

    def drop(self) -> None:
        torch.cuda.synchronize()
        self._saver.pause(DROPPED)

    def undrop(self) -> None:
        self._saver.resume(DROPPED)


class PyTorch(Parker):
    """Copies to pinned memory, storages of no bytes, an emptied cache; and back."""

    def __init__(self) -> None:
        self.way = "copy to pinned, resize_(0), empty_cache()"
        self._kept: list[Tensor] = []
        self._dropped: list[Tensor] = []
        self._saved: list[Tensor] = []
        self._sizes: list[int] = []

    def region(self, *, keep: bool) -> AbstractContextManager[object]:
        return nullcontext(keep)

    def make(self, sizes: list[int], *, keep: bool) -> list[Tensor]:
        tensors = [made(size) for size in sizes]
        if keep:
            self._kept = tensors
        else:
            self._dropped = tensors
        return tensors

    def park(self) -> str:
        if self._saved:
            return ""
        for tensor in self._kept:
            saved = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._saved.append(saved.copy_(tensor, non_blocking=True))
        torch.cuda.synchronize()
        self._release(self._kept)
        return ""

    def wake(self) -> str:
        for tensor in self._kept:
            tensor.untyped_storage().resize_(tensor.nbytes)
        for tensor, saved in zip(self._kept, self._saved, strict=True):
            tensor.copy_(saved, non_blocking=True)
        torch.cuda.synchronize()
        self._saved = []
        return ""

    def drop(self) -> None:
        self._release(self._dropped)

    def undrop(self) -> None:
        for tensor in self._dropped:
            tensor.untyped_storage().resize_(tensor.nbytes)

    def _release(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            tensor.untyped_storage().resize_(0)
        torch.cuda.empty_cache()


class Sleeper(Parker):
    """vLLM's sleep mode, by the same calls of the driver in the same order."""

    def __init__(self) -> None:
        self.way = "emulated: the calls of vLLM's sleep mode"
        torch.empty(1, device="cuda")  # the context is PyTorch's
        self._kept: list[Segment] = []
        self._dropped: list[Segment] = []

    def region(self, *, keep: bool) -> AbstractContextManager[object]:
        return nullcontext(keep)

    def make(self, sizes: list[int], *, keep: bool) -> list[Tensor]:
        """Lay blocks into segments as PyTorch's allocator does: small ones together."""
        segments: list[Segment] = []
        tensors = []
        left = torch.empty(0)
        for size in sizes:
            if left.numel() < size:
                segments.append(Segment(max(size, PIECE) if size < PIECE // 2 else size, 0))
                left = segments[-1].tensor()
            tensors.append(left[:size])
            left = left[-(-size // 512) * 512 :]
        (self._kept if keep else self._dropped).extend(segments)
        return tensors

    def park(self) -> str:
        for segment in self._kept:
            segment.sleep(keep=True)
        torch.cuda.empty_cache()
        return ""

    def wake(self) -> str:
        for segment in self._kept:
            segment.wake_up()
        return ""

    def drop(self) -> None:
        for segment in self._dropped:
            segment.sleep(keep=False)
        torch.cuda.empty_cache()

    def undrop(self) -> None:
        for segment in self._dropped:
            segment.wake_up()


def peak_host_bytes() -> int:
    """Return the most memory of the host that this process has held."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return sys.maxsize
