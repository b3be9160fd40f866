# SPDX-License-Identifier: Apache-2.0
"""Work on a GPU that no op reports: what is wrapped, and that it still does what it did."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from commensal._launches import follow_graphs, follow_kernels, when_imported


class FakeGate:
    """Counts, or does not."""

    def __init__(self, *, counts: bool = True) -> None:
        self.counts = counts
        self.calls: list[str] = []

    def commensal_torch_begin_launch(self, what: int) -> int:
        self.calls.append(f"begin {what}")
        return int(self.counts)

    def commensal_torch_end_launch(self) -> None:
        self.calls.append("end")


def graphs(gate: FakeGate) -> Any:
    class CUDAGraph:
        def replay(self, *words: str, **more: str) -> tuple[Any, ...]:
            """Replay it."""
            if "fail" in words:
                raise RuntimeError("no graph")
            return words, more

    cuda = SimpleNamespace(CUDAGraph=CUDAGraph)
    follow_graphs(cuda, gate)
    return cuda.CUDAGraph()


def test_a_replay_passes_the_gate_and_returns_what_it_did() -> None:
    gate = FakeGate()
    graph = graphs(gate)
    assert graph.replay("a", b="c") == (("a",), {"b": "c"})
    assert gate.calls == ["begin 0", "end"]
    assert graph.replay.__doc__ == "Replay it."


def test_one_that_fails_leaves_the_gate_all_the_same() -> None:
    gate = FakeGate()
    with pytest.raises(RuntimeError, match="no graph"):
        graphs(gate).replay("fail")
    assert gate.calls == ["begin 0", "end"]


def test_what_does_not_count_is_not_ended() -> None:
    gate = FakeGate(counts=False)
    assert graphs(gate).replay() == ((), {})
    assert gate.calls == ["begin 0"]


def test_a_pytorch_without_graphs_is_left_alone() -> None:
    follow_graphs(SimpleNamespace(), FakeGate())


def test_a_module_is_looked_at_once_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "comes_later.py").write_text("value = 1\n")
    seen: list[ModuleType] = []
    when_imported("comes_later", seen.append)
    watchers = len(sys.meta_path)
    assert not seen
    import comes_later  # type: ignore[import-not-found]

    assert seen == [comes_later]
    assert comes_later.value == 1
    assert len(sys.meta_path) == watchers - 1, "nobody looks any more"
    when_imported("comes_later", seen.append)
    assert len(seen) == 2, "it is there already"
    del sys.modules["comes_later"]


def test_a_module_that_is_not_there_is_missed_as_ever() -> None:
    when_imported("never_comes", lambda _: pytest.fail("it is not there"))
    with pytest.raises(ModuleNotFoundError, match="never_comes"):
        import never_comes  # type: ignore[import-not-found]  # noqa: F401


def test_kernels_of_triton_pass_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    class CachingAutotuner:
        def run(self, grid: int) -> int:
            return grid + 1

    module = ModuleType("heuristics")
    module.CachingAutotuner = CachingAutotuner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.triton_heuristics", module)
    gate = FakeGate()
    follow_kernels(gate)
    assert CachingAutotuner().run(3) == 4
    assert gate.calls == ["begin 1", "end"]
