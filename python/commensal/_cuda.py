# SPDX-License-Identifier: Apache-2.0
"""Puts commensal's CUDA allocator under PyTorch, where there is a GPU to manage.

The library that does it links PyTorch's CUDA half, so it is one of its own and is loaded here,
only where it is wanted. Nothing here makes a CUDA call: that would start CUDA in a process which
may fork later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

from commensal._say import say

__all__ = ["install_cuda_allocator", "manage_cuda", "wanted"]

VARIABLE = "COMMENSAL_CUDA_ALLOCATOR"

# What the driver's kernel module leaves: one node a GPU; on Windows' Linux one for all.
_DEVICE_NODES = ("nvidia[0-9]*", "dxg")


def manage_cuda(
    libraries: Path, version: str, cuda: str | None, environ: Mapping[str, str]
) -> None:
    """Install the allocator if it is wanted; where that fails, say why and go on without it.

    `version` and `cuda` are PyTorch's (`torch.__version__`, `torch.version.cuda`).
    """
    try:
        complaint = install_cuda_allocator(libraries, version) if wanted(cuda, environ) else ""
    except (OSError, ValueError) as error:
        complaint = " ".join(str(error).split())
    if complaint:
        say(f"GPU memory is PyTorch's own, commensal does not manage it: {complaint}")


def wanted(cuda: str | None, environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tell whether the environment asks for the allocator. @raises ValueError naming the value."""
    choice = environ.get(VARIABLE) or "auto"
    if choice not in ("auto", "0", "1"):
        raise ValueError(f"{VARIABLE}: not auto, 0 or 1: {choice!r}")
    if choice == "auto":
        return cuda is not None and _has_device(devices)
    if choice == "1" and cuda is None:
        raise ValueError(f"{VARIABLE} is 1, and this PyTorch is built without CUDA")
    return choice == "1"


def _has_device(devices: Path) -> bool:
    return any(True for pattern in _DEVICE_NODES for _ in devices.glob(pattern))


def install_cuda_allocator(libraries: Path, version: str) -> str:
    """Install the allocator; return an empty text, or one sentence that says why not.

    Call it only after the adaptor beside the library has accepted the PyTorch that runs.

    @raises OSError if the library does not load.
    """
    minor = ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])
    path = libraries / f"libcommensal_torch_cuda-{minor}.so"
    if not path.exists():
        return f"commensal was built without CUDA, {path.name} is missing"
    install = ctypes.CDLL(str(path)).commensal_torch_cuda_install
    install.argtypes = []
    install.restype = ctypes.c_char_p
    complaint: bytes | None = install()
    return "" if complaint is None else complaint.decode(errors="replace")
