# SPDX-License-Identifier: Apache-2.0
"""Tells the session of gaps that PyTorch has no range for: checkpoints, and batches on their way.

Two functions of PyTorch are wrapped, once for a process. What they return, raise and write stays
what it was; what they cost more is two calls of less than a microsecond for a checkpoint, and as
many for a batch that comes from another process, directly or by the thread that pins it.
"""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from typing import Any, TypeVar

from commensal import _core
from commensal._launches import telling_first

__all__ = ["follow_batches", "follow_checkpoints"]

Function = TypeVar("Function", bound=Callable[..., Any])


def follow_checkpoints(torch: Any) -> None:
    """Make `torch.save` show on the job's page as a wait of the phase "checkpoint"."""
    wrapped = _checkpoint(torch.save)
    torch.save = wrapped
    torch.serialization.save = wrapped  # where a pickle would look for it


def _checkpoint(save: Function) -> Function:
    @functools.wraps(save)
    def with_wait(*args: Any, **kwargs: Any) -> Any:
        if not _core.checkpoint_begin():
            return save(*args, **kwargs)
        try:
            return save(*args, **kwargs)
        finally:
            _core.checkpoint_end()

    return with_wait  # type: ignore[return-value]


def follow_batches(loader: Any) -> None:
    """Make iterators over worker processes tell that a batch has come before they unpack it.

    @param loader  the module torch.utils.data.dataloader. Where its iterators are made otherwise
        than here is known, nothing is wrapped: the wait then ends when the fetch does.
    """
    iterator = getattr(loader, "_MultiProcessingDataLoaderIter", None)
    if iterator is None:
        return
    begin = iterator.__init__

    @functools.wraps(begin)
    def watched(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        _watch(getattr(self, "_data_queue", None))

    iterator.__init__ = watched


def _watch(batches: Any) -> None:
    """Wrap how a queue of this process comes by its next item."""
    if isinstance(batches, queue.Queue):  # pinned memory: a thread copies, and hands over
        batches.get = telling_first(_core.batch_awaited, batches.get)  # type: ignore[method-assign]
        batches.put = telling_first(_core.batch_handed_over, batches.put)  # type: ignore[method-assign]
        return
    poll = getattr(batches, "_poll", None)
    if poll is not None:
        batches._poll = _announcing(poll)


def _announcing(poll: Callable[..., bool]) -> Callable[..., bool]:
    def look(*args: Any) -> bool:
        _core.batch_awaited()
        found = poll(*args)
        if found:
            _core.batch_arrived()
        return found

    return look
