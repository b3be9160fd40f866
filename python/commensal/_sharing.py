# SPDX-License-Identifier: Apache-2.0
"""Lets CUDA tensors in elastic memory be shared with other processes (torch.multiprocessing).

What another process has opened must stay where it is, and the driver opens no part of elastic
memory. So the storage of such a tensor gets a place of PyTorch's own allocator just before it is
shared for the first time: the same storage, with all its tensors and views, at another address. It
does not move any more and counts against the limit.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Protocol

from commensal._say import say

__all__ = ["Places", "follow_sharing"]


class Places(Protocol):
    """The functions of libcommensal_torch_cuda between which PyTorch's own allocator serves."""

    def commensal_torch_cuda_begin_sharing(self, block: ctypes.c_void_p) -> int: ...
    def commensal_torch_cuda_end_sharing(self) -> None: ...


def follow_sharing(torch: Any, places: Places) -> None:
    """Wrap how PyTorch shares a storage of a GPU."""
    storage = torch.UntypedStorage
    share: Callable[..., Any] = storage._share_cuda_
    leave = functools.partial(_leave, torch, places)

    @functools.wraps(share)
    def shared(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_cuda and self.nbytes() > 0 and leave(self):
            _tell()
        return share(self, *args, **kwargs)

    storage._share_cuda_ = shared


def _leave(torch: Any, places: Places, storage: Any) -> bool:
    """Give a storage another place; return whether it had to have one."""
    if not places.commensal_torch_cuda_begin_sharing(ctypes.c_void_p(storage.data_ptr())):
        return False
    try:
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        # The old place serves others only once this stream has copied what lies there.
        whole.record_stream(torch.cuda.current_stream(storage.device))
        storage.resize_(storage.nbytes())  # allocates and copies, also for the same size
    finally:
        places.commensal_torch_cuda_end_sharing()
    return True


@functools.cache
def _tell() -> None:
    say(
        "CUDA tensors that this process shares with others are in PyTorch's own memory: they do "
        "not move, and count against the limit"
    )
