# SPDX-License-Identifier: Apache-2.0
"""Segments of memory by the driver's own calls, as vLLM's sleep mode makes, releases and maps them.

vLLM is too large to bring along; its sequence of calls is short. An allocation is reserved,
created and mapped; `sleep` copies it to fresh pinned memory with a blocking copy, unmaps and
releases it, one after the other; `wake_up` creates, maps and copies back.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["DriverError", "Segment", "call"]

PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
READ_WRITE = 3  # CU_MEM_ACCESS_FLAGS_PROT_READWRITE


class DriverError(RuntimeError):
    """A call of the driver failed; names it and the code."""


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Properties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("security", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    function = getattr(library(), name, None)
    if function is None:
        raise DriverError(f"this driver has no {name}")
    code = function(*arguments)
    if code != 0:
        raise DriverError(f"{name} failed with code {code}")


class Segment:
    """Addresses with memory, or without while it sleeps. Lives as long as the process."""

    def __init__(self, size: int, device: int) -> None:
        self._where = _Location(ON_DEVICE, device)
        self._properties = _Properties(PINNED, 0, self._where)
        granularity = ctypes.c_size_t()
        call(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granularity),
            ctypes.byref(self._properties),
            0,
        )
        self.size = -(-size // granularity.value) * granularity.value
        self._at = ctypes.c_uint64()
        self._handle = ctypes.c_uint64()
        self._saved: Tensor | None = None
        call(
            "cuMemAddressReserve",
            *(ctypes.byref(self._at), ctypes.c_size_t(self.size), ctypes.c_size_t(0)),
            *(ctypes.c_uint64(0), ctypes.c_ulonglong(0)),
        )
        self._map()

    def tensor(self) -> Tensor:
        """Return the memory as bytes of the card."""
        return torch.as_tensor(_Bytes(self._at.value, self.size), device="cuda")

    def sleep(self, *, keep: bool) -> None:
        """Release the memory; `keep` its content in pinned memory."""
        size = ctypes.c_size_t(self.size)
        if keep:
            self._saved = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
            call("cuMemcpyDtoH_v2", ctypes.c_void_p(self._saved.data_ptr()), self._at, size)
        call("cuMemUnmap", self._at, size)
        call("cuMemRelease", self._handle)

    def wake_up(self) -> None:
        self._map()
        if self._saved is not None:
            saved = ctypes.c_void_p(self._saved.data_ptr())
            call("cuMemcpyHtoD_v2", self._at, saved, ctypes.c_size_t(self.size))
            self._saved = None

    def _map(self) -> None:
        size = ctypes.c_size_t(self.size)
        flags = ctypes.c_ulonglong(0)
        call(
            "cuMemCreate",
            *(ctypes.byref(self._handle), size, ctypes.byref(self._properties), flags),
        )
        try:
            call("cuMemMap", self._at, size, ctypes.c_size_t(0), self._handle, flags)
        except DriverError:
            call("cuMemRelease", self._handle)
            raise
        access = _Access(self._where, READ_WRITE)
        call("cuMemSetAccess", self._at, size, ctypes.byref(access), ctypes.c_size_t(1))


class _Bytes:
    """What PyTorch takes for memory of a card."""

    def __init__(self, at: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (at, False),
            "version": 3,
        }
