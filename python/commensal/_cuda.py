# SPDX-License-Identifier: Apache-2.0
"""Puts commensal's CUDA allocator under PyTorch, where there is a GPU to manage.

The library that does it links PyTorch's CUDA half, so it is one of its own and is loaded here,
only where it is wanted. Nothing here makes a CUDA call: that would start CUDA in a process which
may fork later.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from commensal._say import say

__all__ = [
    "install_cuda_allocator",
    "manage_cuda",
    "offer_cuda",
    "prepare_cuda",
    "wanted",
    "wants_elastic",
]

VARIABLE = "COMMENSAL_CUDA_ALLOCATOR"
CHOICES = ("auto", "0", "1", "elastic")

# What the driver's kernel module leaves: one node a GPU; on Windows' Linux one for all.
_DEVICE_NODES = ("nvidia[0-9]*", "dxg")


def offer_cuda(libraries: Path, version: str, cuda: str | None, environ: Mapping[str, str]) -> str:
    """Return the device whose memory a session is to manage: "cuda" where elastic memory is asked
    for and can be had, else "host". Where it cannot, `manage_cuda` says why.
    """
    with contextlib.suppress(OSError):
        if wants_elastic(cuda, environ) and not missing(libraries, version):
            _load(libraries, version).commensal_torch_cuda_offer()
            return "cuda"
    return "host"


def wants_elastic(cuda: str | None, environ: Mapping[str, str]) -> bool:
    """Tell whether elastic memory of GPUs is asked for, by a value that can be read."""
    with contextlib.suppress(ValueError):
        return choice_of(cuda, environ) == "elastic"
    return False


def prepare_cuda(libraries: Path, version: str) -> None:
    """Install the allocator in a helper, before CUDA starts there: until the process is one that
    trains, PyTorch's own serves. Says nothing: `manage_cuda` does, if it comes to that.
    """
    with contextlib.suppress(OSError):
        install_cuda_allocator(libraries, version, elastic=True)


def manage_cuda(
    libraries: Path, version: str, cuda: str | None, environ: Mapping[str, str]
) -> None:
    """Install the allocator if it is wanted; where that fails, say why and go on without it.

    `version` and `cuda` are PyTorch's (`torch.__version__`, `torch.version.cuda`).
    """
    complaint, capped = "", False
    try:
        if wanted(cuda, environ):
            elastic = choice_of(cuda, environ) == "elastic"
            complaint = install_cuda_allocator(libraries, version, elastic=elastic)
            capped = elastic and bool(complaint) and not missing(libraries, version)
            if not complaint:
                library = _load(libraries, version)
                _when_cuda_starts(lambda: _look_again(library, elastic=elastic))
    except (OSError, ValueError) as error:
        complaint = " ".join(str(error).split())
    if capped:
        say(f"GPU memory is PyTorch's own, bound by its limit and no more (cap only): {complaint}")
        _when_cuda_starts(lambda: _cap_only(_load(libraries, version), complaint))
    elif complaint:
        say(f"GPU memory is PyTorch's own, commensal does not manage it: {complaint}")


def _when_cuda_starts(begin: Callable[[], None]) -> None:
    """Call `begin` as soon as CUDA has started: now, if it has."""
    sys.modules["torch"].cuda._lazy_call(begin)


def _look_again(library: ctypes.CDLL, *, elastic: bool) -> None:
    """Say that another allocator has taken the place of ours, if the program has chosen one."""
    if library.commensal_torch_cuda_is_installed():
        return
    why = "the program chose it by torch.cuda.memory.change_current_allocator"
    say(f"GPU memory is another allocator's, commensal does not manage it: {why}")
    if elastic:
        _cap_only(library, why)


def _cap_only(library: ctypes.CDLL, why: str) -> None:
    """Bound PyTorch's own allocator, which could not be replaced because of `why`."""
    begin = library.commensal_torch_cuda_cap_only
    begin.argtypes = [ctypes.c_char_p]
    begin.restype = ctypes.c_char_p
    if told := begin(why.encode()):
        say(f"the limit of GPU memory is not enforced: {told.decode(errors='replace')}")


def choice_of(cuda: str | None, environ: Mapping[str, str]) -> str:
    """Return what the environment asks for. @raises ValueError naming a wrong value."""
    choice = environ.get(VARIABLE) or "auto"
    if choice not in CHOICES:
        raise ValueError(f"{VARIABLE}: not {', '.join(CHOICES[:-1])} or {CHOICES[-1]}: {choice!r}")
    if choice in ("1", "elastic") and cuda is None:
        raise ValueError(f"{VARIABLE} is {choice}, and this PyTorch is built without CUDA")
    return choice


def wanted(cuda: str | None, environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tell whether the environment asks for the allocator. @raises ValueError naming the value."""
    choice = choice_of(cuda, environ)
    if choice == "auto":
        return cuda is not None and _has_device(devices)
    return choice != "0"


def _has_device(devices: Path) -> bool:
    return any(True for pattern in _DEVICE_NODES for _ in devices.glob(pattern))


def install_cuda_allocator(libraries: Path, version: str, *, elastic: bool = False) -> str:
    """Install the allocator; return an empty text, or one sentence that says why not.

    Call it only after the adaptor beside the library has accepted the PyTorch that runs. `elastic`:
    over the memory of the session, which `offer_cuda` must have made one of a GPU.

    @raises OSError if the library does not load.
    """
    if complaint := missing(libraries, version):
        return complaint
    library = _load(libraries, version)
    install = library.commensal_torch_cuda_install
    if elastic:
        install = library.commensal_torch_cuda_install_session
    install.argtypes = []
    install.restype = ctypes.c_char_p
    told: bytes | None = install()
    return "" if told is None else told.decode(errors="replace")


def missing(libraries: Path, version: str) -> str:
    """Say that there is no library for a PyTorch; empty: there is one."""
    path = _path(libraries, version)
    return "" if path.exists() else f"commensal was built without CUDA, {path.name} is missing"


def _path(libraries: Path, version: str) -> Path:
    minor = ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])
    return libraries / f"libcommensal_torch_cuda-{minor}.so"


def _load(libraries: Path, version: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(_path(libraries, version)))
