# SPDX-License-Identifier: Apache-2.0
"""The environment of jobs on simulated GPUs, whose kernels do nothing and whose copies are real."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from commensal._activation import LIBRARIES

__all__ = ["simulated_gpus"]

FOLDER = Path(__file__).resolve().parents[1] / "simulated_cuda"
sys.path.insert(0, str(FOLDER))


def _runner() -> ModuleType:
    """Its run.py, by the path: the benchmarks have a module of that name, too."""
    spec = importlib.util.spec_from_file_location("simulated_cuda_run", FOLDER / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated_gpus(*, fingerprints: bool = False, **settings: object) -> dict[str, str]:
    """Return the environment of a job with elastic memory of GPUs; skip where it cannot be had.

    `settings` are those of tests/simulated_cuda/README.md. `fingerprints`: with the kernel that
    tells which memory has changed.
    """
    simulated_cuda = _runner()
    if not list(LIBRARIES.glob("libcommensal_torch_cuda-*.so")):
        pytest.skip("commensal is installed for a PyTorch without CUDA")
    try:
        driver = simulated_cuda.environment({}, settings, fingerprints=fingerprints)
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    return driver | {"COMMENSAL_GPU_MEMORY": "elastic"}
