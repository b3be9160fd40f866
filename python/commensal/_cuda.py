# SPDX-License-Identifier: Apache-2.0
"""Whose memory serves on GPUs: PyTorch's own, watched and bound ("native"), or ours ("elastic").

The library that does it links PyTorch's CUDA half, so it is one of its own and is loaded here,
only where there is a GPU. Nothing here makes a CUDA call: that would start CUDA in a process which
may fork later.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from commensal._batch_finders import follow_batch_finders
from commensal._say import say
from commensal._sharing import follow_sharing

__all__ = ["GpuMemory", "choose", "has_gpu", "manage", "prepare"]

# What the driver's kernel module leaves: one node a GPU; on Windows' Linux one for all.
_DEVICE_NODES = ("nvidia[0-9]*", "dxg")
_DRIVER = "libcuda.so.1"
_NO_DEVICES = ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class GpuMemory:
    """What serves GPU memory in this process; `kind` None: nothing that commensal knows of."""

    kind: Literal["native", "elastic"] | None = None
    problem: str = ""  #: why it is not what was asked for
    libraries: Path = Path()
    version: str = ""  #: PyTorch's

    @property
    def device(self) -> str:
        """The device of the session, from its start."""
        return "cuda" if self.kind == "elastic" else "host"

    @property
    def later_device(self) -> str:
        """The one that takes its place once the process uses a GPU."""
        return "cuda" if self.kind == "native" else ""


def choose(
    libraries: Path, version: str, cuda: str | None, environ: Mapping[str, str], *, elastic: bool
) -> GpuMemory:
    """Return what can serve, and let sessions that start from now on use it.

    `version` and `cuda` are PyTorch's (`torch.__version__`, `torch.version.cuda`); `elastic`: that
    is asked for.
    """
    if cuda is None:
        return GpuMemory(problem="this PyTorch is built without CUDA" if elastic else "")
    if not has_gpu(environ):
        return GpuMemory(problem="this process sees no GPU" if elastic else "")
    if problem := missing(libraries, version):
        return GpuMemory(problem=problem)
    try:
        library = _load(libraries, version)
    except OSError as error:
        return GpuMemory(problem=" ".join(str(error).split()))
    library.commensal_torch_cuda_offer()
    problem = _told(library.commensal_torch_cuda_problem) if elastic else ""
    kind: Literal["native", "elastic"] = "elastic" if elastic and not problem else "native"
    return GpuMemory(kind, problem, libraries, version)


def prepare(memory: GpuMemory) -> None:
    """Install it in a helper, before CUDA starts there: until the process is one that trains, it
    serves as PyTorch alone would. Says nothing: `manage` does, if it comes to that.
    """
    if memory.kind is not None:
        _install(_load(memory.libraries, memory.version), memory.kind)


def manage(memory: GpuMemory) -> None:
    """Install it; where that fails, or is not what was asked for, say why and go on."""
    if memory.kind is None:
        if memory.problem:
            say(f"GPU memory is PyTorch's own, commensal does not manage it: {memory.problem}")
        return
    if memory.problem:
        say(f"GPU memory is native, not elastic: {memory.problem}")
    library = _load(memory.libraries, memory.version)
    complaint = _install(library, memory.kind)
    sys.modules["torch"].cuda._lazy_call(lambda: _look_again(library, memory.kind, complaint))


def _install(library: ctypes.CDLL, kind: Literal["native", "elastic"]) -> str:
    if kind == "native":
        return _told(library.commensal_torch_cuda_install_native)
    complaint = _told(library.commensal_torch_cuda_install_session)
    if not complaint:
        follow_batch_finders(library)
        follow_sharing(sys.modules["torch"], library)
    return complaint


def _look_again(library: ctypes.CDLL, kind: str | None, complaint: str) -> None:
    """CUDA has started: where another allocator serves than the one that was watched, say so."""
    cuda = sys.modules["torch"].cuda
    if library.commensal_torch_cuda_is_installed():
        answer_by_limit(sys.modules["torch"])
        # Only where CUDA had started before: those are in use.
        for device in range(cuda.device_count()):
            if kind == "native" and cuda.memory_reserved(device):
                _use(library, device, "")
        return
    why = complaint or "the program chose it by torch.cuda.memory.change_current_allocator"
    say(f"GPU memory is another allocator's, commensal does not watch it: {why}")
    _use(library, cuda.current_device(), why)


def _use(library: ctypes.CDLL, device: int, why: str) -> None:
    use = library.commensal_torch_cuda_use
    use.argtypes = [ctypes.c_int, ctypes.c_char_p]
    if told := _told(lambda: use(device, why.encode()), use):
        say(f"the limit of GPU memory is not enforced: {told}")


def answer_by_limit(torch: Any) -> None:
    """Have `torch.cuda.mem_get_info` answer by what this job may have: programs choose models,
    caches and batches by it, and the rest of the card is not theirs.
    """
    cuda = torch.cuda

    @functools.wraps(cuda.mem_get_info)
    def mem_get_info(device: Any = None) -> tuple[int, int]:
        told: tuple[int, int] = torch.accelerator.get_memory_info(device)
        return told

    cuda.mem_get_info = cuda.memory.mem_get_info = mem_get_info


def has_gpu(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tell whether this process may find a GPU, without asking the driver."""
    if environ.get("CUDA_VISIBLE_DEVICES") in _NO_DEVICES:
        return False
    if any(True for pattern in _DEVICE_NODES for _ in devices.glob(pattern)):
        return True
    try:  # there may be other nodes than those
        ctypes.CDLL(_DRIVER)
    except OSError:
        return False
    return True


def missing(libraries: Path, version: str) -> str:
    """Say that there is no library for a PyTorch; empty: there is one."""
    path = _path(libraries, version)
    return "" if path.exists() else f"commensal was built without CUDA, {path.name} is missing"


def _path(libraries: Path, version: str) -> Path:
    minor = ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])
    return libraries / f"libcommensal_torch_cuda-{minor}.so"


def _told(call: Callable[[], bytes | None], function: Any = None) -> str:
    """Call a function of the library; return an empty text, or one sentence that says why not."""
    function = function or call
    function.restype = ctypes.c_char_p
    told = call()
    return "" if told is None else told.decode(errors="replace")


def _load(libraries: Path, version: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(_path(libraries, version)))
