# SPDX-License-Identifier: Apache-2.0
"""Regions: tensors that are made in one share a tag, and can be moved together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commensal._session import CommensalError, active_session

if TYPE_CHECKING:
    from commensal import _core

__all__ = ["TagTicket", "drop_tag", "in_region", "park_tag", "region", "wake_tag"]


@dataclass(frozen=True)
class TagTicket:
    """What came of moving a tag. Sizes are bytes of whole chunks."""

    done_bytes: int  #: given back, or (waking) brought back to the device
    deferred_bytes: int  #: still on the device, or (waking) usable on the slower tier for now
    reason: str  #: why bytes are deferred; empty: everything is done


@contextmanager
def region(tag: str, *, keep: bool = False) -> Iterator[None]:
    """Give the tensors that are made inside a tag, so that they can be moved together.

        with commensal.region("weights", keep=True):
            model = Model()

    Regions may be nested: the innermost counts, and when it ends, by an exception too, the one
    around it does again. The calling thread is in the region, and the threads that PyTorch itself
    works with on its behalf (autograd's, `torch.jit.fork`'s); other threads are not.

    Args:
        tag: a name of your choice; the same name is the same tag.
        keep: a memory limit moves the tag's tensors out last, and brings them back first. The
            newest call decides for the whole tag.

    Raises:
        CommensalError: commensal is not active, or does not serve this process's tensors.
        ValueError: an empty or a very long name, or more than 256 tags.
    """
    session = active_session()
    with in_region(session.open_tag(tag, keep=keep)):
        yield


@contextmanager
def in_region(number: int) -> Iterator[None]:
    """Put this thread into the region of a tag's number; 0: into none."""
    from commensal._activation import installed_adaptor

    adaptor = installed_adaptor()
    if adaptor is None:
        raise CommensalError("commensal does not serve the tensors of this process: it only helps")
    token = adaptor.commensal_torch_enter_region(number)
    if token is None:
        raise MemoryError("no memory for the bookkeeping of a region")
    try:
        yield
    finally:
        adaptor.commensal_torch_leave_region(token)


def park_tag(tag: str) -> TagTicket:
    """Save a tag's tensors and give their memory back; they keep their content and addresses.

    Returns when that is done. Whatever touches one of them is served, slowly, and the whole tag
    comes back at the next safe point. On a GPU whose driver maps no host memory they are saved in
    pinned memory, and until `wake_tag` nothing may use them. Parking twice does no harm. Call it
    between two ops.

    Raises:
        CommensalError: commensal is not active.
        ValueError: no region had this tag; the message names those that there are.
    """
    return _ticket(active_session().park_tag(tag))


def drop_tag(tag: str) -> TagTicket:
    """Give up the content of a tag's tensors, and their memory with it.

    The tensors stay; until `wake_tag` nothing may use them (on a host they read as zeros).

    Raises:
        CommensalError: commensal is not active.
        ValueError: no region had this tag; the message names those that there are.
    """
    return _ticket(active_session().drop_tag(tag))


def wake_tag(tag: str) -> TagTicket:
    """Bring a tag's tensors back; those that were dropped get fresh memory, of any content.

    What the limit leaves no room for is usable on the slower tier, and comes back by itself.

    Raises:
        CommensalError: commensal is not active, or there is no memory for tensors that were dropped
            or are in pinned memory; what could be had is theirs, and a later call tries the rest.
        ValueError: no region had this tag; the message names those that there are.
    """
    ticket = active_session().wake_tag(tag)
    if ticket.missing_bytes:
        from commensal._quantities import format_bytes

        raise CommensalError(
            f"no memory for {format_bytes(ticket.missing_bytes)} of the tag {tag!r}: "
            f"{ticket.reason}"
        )
    return _ticket(ticket)


def _ticket(ticket: _core.TagTicket) -> TagTicket:
    return TagTicket(ticket.done_bytes, ticket.deferred_bytes, ticket.reason)
