# SPDX-License-Identifier: Apache-2.0
"""Memory that something outside relies on: it stays on the device, mapped as it is."""

from __future__ import annotations

import threading
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from commensal._launches import when_imported
from commensal._session import CommensalError, active_session, is_active

if TYPE_CHECKING:
    import torch

    from commensal import _core

__all__ = ["Registered", "follow_gds", "keep_resident"]

GDS = "torch.cuda.gds"
GDS_REASON = "registered with GPUDirect Storage"


class Registered:
    """Tensors that stay where they are until `release`, or until the end of a `with` block.

    It keeps the tensors alive: their memory must not become another tensor's meanwhile.
    """

    def __init__(self, session: _core.Session, storages: dict[int, Any], reason: str) -> None:
        self._lock = threading.Lock()
        self._session = session
        self._reason = reason
        self._kept: list[Any] = []
        self.resident_bytes = 0  #: of whole chunks; 0: none of it is memory that moves
        try:
            for address, storage in storages.items():
                size = session.keep_in_place(address, storage.nbytes(), reason)
                self.resident_bytes += size
                if size:
                    self._kept.append(storage)
        except RuntimeError as error:
            self.release()
            raise CommensalError(str(error)) from error

    def release(self) -> None:
        """Let the memory move again; the second time it does nothing."""
        with self._lock:
            kept, self._kept = self._kept, []
        if not is_active():  # a forked child: the memory is its parent's
            return
        for storage in kept:
            self._session.may_move(storage.data_ptr(), storage.nbytes(), self._reason)

    def __enter__(self) -> Registered:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def keep_resident(*tensors: torch.Tensor, reason: str = "registered by the program") -> Registered:
    """Keep tensors on the device, and mapped as they are, while something outside relies on that.

    For whoever hands memory to what goes around PyTorch: registers it with a network card or a
    collective library, or lets another library's threads use it by DLPack.

        with commensal.keep_resident(buffer, reason="RDMA"):
            ...  # deregister before the end

    What is on the slower tier comes back first. Limits and tags pass the memory over, in whole
    chunks, and `memory.kept` of the statistics tells it with its reason. Call it between two ops.

    Raises:
        CommensalError: commensal is not active, or something cannot come back; then nothing is
            kept.
        ValueError: no tensors, or an empty reason.
    """
    if not tensors or not reason:
        raise ValueError(f"keep_resident() needs tensors and a reason: {len(tensors)}, {reason!r}")
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
    return Registered(active_session(), storages, reason)


def follow_gds() -> None:
    """Keep what is registered with GPUDirect Storage by `torch.cuda.gds`, once that is imported."""

    def wrap(module: ModuleType) -> None:
        register, deregister = module.gds_register_buffer, module.gds_deregister_buffer
        known: dict[int, Registered] = {}

        def gds_register_buffer(s: Any) -> Any:
            if not is_active():
                return register(s)
            kept = Registered(active_session(), {s.data_ptr(): s}, GDS_REASON)
            try:
                register(s)
            except BaseException:
                kept.release()
                raise
            known[s.data_ptr()] = kept
            return None

        def gds_deregister_buffer(s: Any) -> None:
            deregister(s)
            if (kept := known.pop(s.data_ptr(), None)) is not None:
                kept.release()

        gds_register_buffer.__doc__ = register.__doc__
        gds_deregister_buffer.__doc__ = deregister.__doc__
        module.gds_register_buffer = gds_register_buffer  # type: ignore[attr-defined]
        module.gds_deregister_buffer = gds_deregister_buffer  # type: ignore[attr-defined]

    when_imported(GDS, wrap)
