# SPDX-License-Identifier: Apache-2.0
"""What `commensal doctor` says of a GPU: what works there, and what is missing for it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from commensal.cli import _checks

EXISTS = Path.exists
GLOB = Path.glob


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a card, a PyTorch with CUDA and NVML."""

    def exists(path: Path, **more: Any) -> bool:
        return str(path) == "/dev/nvidiactl" or EXISTS(path, **more)

    def glob(folder: Path, pattern: str) -> Any:
        found = [folder / "libcommensal_torch_cuda-2.11.so"]
        return found if pattern.startswith("libcommensal_torch_cuda") else GLOB(folder, pattern)

    monkeypatch.setattr(Path, "exists", exists)
    monkeypatch.setattr(Path, "glob", glob)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: object())


@pytest.mark.usefixtures("card")
def test_says_how_jobs_share_it_and_what_is_proven() -> None:
    state, told = _checks._gpu()
    assert state == "note"
    assert told.startswith("jobs share it: ")
    assert "paced by its time" in told
    assert "(native)" in told
    assert "--gpu-memory elastic" in told
    assert "experimental: it ran on one card" in told


@pytest.mark.usefixtures("card")
def test_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> object:
        raise OSError(f"{name}: cannot open")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    told = "there is one, and no coordinator can know it: libnvidia-ml.so.1: cannot open"
    assert _checks._gpu() == ("note", told)
    monkeypatch.setattr(Path, "glob", lambda _folder, _pattern: [])
    told = "there is one, and commensal was installed for a PyTorch without CUDA"
    assert _checks._gpu() == ("note", told)
