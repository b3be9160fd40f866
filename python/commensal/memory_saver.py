# SPDX-License-Identifier: Apache-2.0
"""The interface of the package torch_memory_saver, over commensal's tags.

Whoever uses that package changes one import:

    from commensal.memory_saver import torch_memory_saver

    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
        model = Model()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

As there, what is paused without `enable_cpu_backup` loses its content; as there, addresses stay.
Not as there: unknown tags are an error, pausing or resuming twice does no harm, a limit may move
the tensors besides, and touching a tensor while its backed-up tag is paused brings the tag back
(but for a GPU whose driver maps no host memory: there nothing may touch it, as there).
(`commensal.pause` and `commensal.resume` are something else: they stop and continue computing.)
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from commensal._session import CommensalError, active_session, is_active

if TYPE_CHECKING:
    import torch

__all__ = [
    "TorchMemorySaver",
    "configure_subprocess",
    "cuda_graph",
    "disable",
    "get_cpu_backup",
    "memory_saver",
    "pause",
    "region",
    "resume",
    "torch_memory_saver",
]

_HOOK_MODES = ("preload", "torch")


class TorchMemorySaver:
    """Pauses and resumes the memory of tensors by tags. Any thread may call it.

    Every function raises `CommensalError` where commensal is not active; start the script with
    `commensal run`, or call `commensal.init()` after `import torch`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tags: dict[str, set[bool]] = {}  # tag: whether what it holds is backed up

    @contextmanager
    def region(self, tag: str = "default", enable_cpu_backup: bool = False) -> Iterator[None]:
        """Give the tensors that are made inside a tag; see `commensal.region`.

        `enable_cpu_backup`: `pause` keeps their content. Both kinds may share a tag.
        """
        from commensal._regions import in_region

        number = active_session().open_tag(_pool(tag, enable_cpu_backup), keep=False)
        with self._lock:
            self._tags.setdefault(tag, set()).add(enable_cpu_backup)
        with in_region(number):
            yield

    @contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Give the tensors that are made inside no tag, although a region is around."""
        from commensal._regions import in_region

        if not dispose_mem_pool_after_use:
            raise ValueError("disable() has no memory pool to keep: dispose_mem_pool_after_use")
        active_session()
        with in_region(0):
            yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,  # noqa: ARG002  theirs
    ) -> Iterator[None]:
        """Capture a CUDA graph as `torch.cuda.graph` does.

        What is allocated inside is PyTorch's own and is not paused: `tag` has no effect.
        """
        import torch

        active_session()
        warnings.warn(
            f"the memory of a CUDA graph is not paused: tag {tag!r} has no effect on it",
            RuntimeWarning,
            stacklevel=3,
        )
        capture = torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
        )
        with capture:
            yield

    def pause(self, tag: str | None = None) -> None:
        """Give back the memory of a tag's tensors, or of all tags'.

        Warns (RuntimeWarning) if something could not be given back, with the reason.
        """
        session = active_session()
        for name, pools in self._chosen(tag):
            for backed_up in sorted(pools):
                pool = _pool(name, backed_up)
                ticket = session.park_tag(pool) if backed_up else session.drop_tag(pool)
                if ticket.deferred_bytes:
                    warnings.warn(
                        f"pause({name!r}) left {ticket.deferred_bytes} bytes where they are: "
                        f"{ticket.reason}",
                        RuntimeWarning,
                        stacklevel=2,
                    )

    def resume(self, tag: str | None = None) -> None:
        """Bring the memory of a tag's tensors back, or of all tags'.

        Raises:
            CommensalError: there is no memory for all of it; what could be had is theirs.
        """
        from commensal._regions import wake_tag

        active_session()
        for name, pools in self._chosen(tag):
            for backed_up in sorted(pools):
                wake_tag(_pool(name, backed_up))

    def get_cpu_backup(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor's content on the CPU, paused or not.

        Raises:
            CommensalError: its content was given up, or is where only `resume` gets it from.
        """
        from commensal._memory_map import MemoryMap

        where = MemoryMap.from_json(active_session().memory_map_json(with_blocks=False))
        if "dropped" in where.tiers_of(x.data_ptr(), x.nbytes):
            raise CommensalError(
                "the tensor was paused without enable_cpu_backup: it has no content"
            )
        if where.is_away(x.data_ptr(), x.nbytes):
            raise CommensalError("the tensor is parked in pinned memory: resume its tag first")
        return x.detach().to("cpu", copy=True)

    @property
    def enabled(self) -> bool:
        """Tell whether commensal is active."""
        return is_active()

    @property
    def hook_mode(self) -> str:
        """Name a way to get under PyTorch; accepted and ignored: commensal is under it already."""
        return "torch"

    @hook_mode.setter
    def hook_mode(self, mode: str) -> None:
        if mode not in _HOOK_MODES:
            raise ValueError(f"not a hook mode ({', '.join(_HOOK_MODES)}): {mode!r}")

    @property
    def memory_margin_bytes(self) -> int:
        """Bytes to leave free; accepted and ignored: `commensal.set_memory_limit` counts."""
        return 0

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, margin: int) -> None:
        if margin < 0:
            raise ValueError(f"a margin below zero: {margin}")

    def _chosen(self, tag: str | None) -> list[tuple[str, set[bool]]]:
        with self._lock:
            known = {name: set(pools) for name, pools in self._tags.items()}
        if tag is None:
            return list(known.items())
        if tag not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise CommensalError(f"unknown tag: {tag!r} (there are {names})")
        return [(tag, known[tag])]


def _pool(tag: str, backed_up: bool) -> str:
    """Return commensal's name for a part of a tag."""
    return tag if backed_up else f"{tag} (no backup)"


def configure_subprocess() -> nullcontext[None]:
    """Return a context that does nothing: processes started under commensal are managed too."""
    return nullcontext()


torch_memory_saver = memory_saver = TorchMemorySaver()

region = torch_memory_saver.region
disable = torch_memory_saver.disable
cuda_graph = torch_memory_saver.cuda_graph
pause = torch_memory_saver.pause
resume = torch_memory_saver.resume
get_cpu_backup = torch_memory_saver.get_cpu_backup
