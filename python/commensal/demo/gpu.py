# SPDX-License-Identifier: Apache-2.0
"""Finds the GPU that the demo could use, in a child process: CUDA never starts in this one."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from commensal._activation import LIBRARIES
from commensal.demo.plan import DEVICES, GPU_LEAST_FREE, GiB
from commensal.demo.processes import DemoError, plain_environment

__all__ = ["Gpu", "choose", "look", "usable"]

PATIENCE_SECONDS = 120

# Loads the libraries first: where they are missing, PyTorch need not be imported.
_LOOK = """
import ctypes, json
def tell(**facts):
    print(json.dumps(facts))
    raise SystemExit
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    try:
        ctypes.CDLL(name)
    except OSError:
        tell(why="no NVIDIA driver here (" + name + ")")
import torch
if torch.version.cuda is None:
    tell(why="PyTorch " + torch.__version__ + " has no CUDA")
try:
    torch.ones(8, device="cuda").sum().item()
    facts = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info(0)
except Exception as error:
    tell(why=(str(error).strip() or repr(error)).splitlines()[0])
tell(name=facts.name, memory_bytes=total, free_bytes=free, cuda=torch.version.cuda,
     torch=torch.__version__)
"""


@dataclass(frozen=True)
class Gpu:
    """The GPU that PyTorch would use."""

    name: str
    memory_bytes: int
    free_bytes: int
    cuda: str  # version that PyTorch was built with
    torch: str


def look(command: tuple[str, ...] = (sys.executable, "-c", _LOOK)) -> Gpu | str:
    """Return this machine's GPU, or why there is none."""
    try:
        done = subprocess.run(
            command,
            env=plain_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"PyTorch did not answer within {PATIENCE_SECONDS} s"
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return f"PyTorch did not say: {last[0]}"
    return str(told["why"]) if "why" in told else Gpu(**told)


def usable(gpu: Gpu | str) -> Gpu | str:
    """Return a GPU, or why the demo cannot run on it."""
    if isinstance(gpu, str):
        return gpu
    minor = ".".join(gpu.torch.split("+")[0].split(".")[:2])
    if not (LIBRARIES / f"libcommensal_torch_cuda-{minor}.so").exists():
        return f"commensal was installed without CUDA for PyTorch {gpu.torch}"
    if gpu.free_bytes < GPU_LEAST_FREE:
        return (
            f"{gpu.name} has {gpu.free_bytes / GiB:.1f} GiB free, the demo needs"
            f" {GPU_LEAST_FREE / GiB:.0f} GiB"
        )
    return gpu


def choose(asked: str, find: Callable[[], Gpu | str] = look) -> tuple[Gpu | None, str]:
    """Return the GPU to run on, or None for the CPU, and why, where nobody asked for it.

    `asked` is one of `plan.DEVICES`; `auto` is the GPU where there is a usable one.

    Raises:
        DemoError: a GPU was asked for, and there is none that can be used.
        ValueError: there is no such choice.
    """
    if asked not in DEVICES:
        raise ValueError(f"device must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}: {asked}")
    if asked == "cpu":
        return None, ""
    found = usable(find())
    if isinstance(found, Gpu):
        return found, ""
    if asked == "cuda":
        raise DemoError(f"no GPU to run on: {found}")
    return None, found
