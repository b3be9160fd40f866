# SPDX-License-Identifier: Apache-2.0
"""The environment of jobs on simulated GPUs, whose kernels do nothing and whose copies are real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commensal._activation import LIBRARIES

__all__ = ["simulated_gpus"]

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "simulated_cuda"))


def simulated_gpus(*, fingerprints: bool = False, **settings: object) -> dict[str, str]:
    """Return the environment of a job with elastic memory of GPUs; skip where it cannot be had.

    `settings` are those of tests/simulated_cuda/README.md. `fingerprints`: with the kernel that
    tells which memory has changed.
    """
    import run as simulated_cuda

    if not list(LIBRARIES.glob("libcommensal_torch_cuda-*.so")):
        pytest.skip("commensal is installed for a PyTorch without CUDA")
    try:
        driver = simulated_cuda.environment({}, settings, fingerprints=fingerprints)
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    return driver | {"COMMENSAL_GPU_MEMORY": "elastic"}
