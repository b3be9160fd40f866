# SPDX-License-Identifier: Apache-2.0
"""Work on a GPU that no op reports: what is wrapped, and that it still does what it did."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import commensal
from commensal import _launches
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


def triton_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with Triton's way of launching a kernel that a program has written."""

    class JITFunction:
        def __getitem__(self, grid: int) -> Any:
            return lambda *args: self.run(*args, grid=grid, warmup=False)

        def run(self, *args: int, grid: int, warmup: bool) -> tuple[Any, ...]:
            if args == (0,):
                raise RuntimeError("no kernel")
            return args, grid, warmup

    module = ModuleType("jit")
    module.JITFunction = JITFunction  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, _launches.TRITON, module)
    return module


def test_kernels_that_a_program_has_written_pass_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    module = triton_module(monkeypatch)
    gate = FakeGate()
    follow_kernels(gate)
    kernel = module.JITFunction()
    assert kernel[7](1, 2) == ((1, 2), 7, False)
    assert gate.calls == ["begin 1", "end"]
    with pytest.raises(RuntimeError, match="no kernel"):
        kernel[7](0)
    assert gate.calls == ["begin 1", "end"] * 2
    assert kernel.run(1, grid=7, warmup=True) == ((1,), 7, True)
    assert gate.calls == ["begin 1", "end"] * 2, "a warm-up only compiles"


def test_triton_launches_as_is_known_here() -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    run = jit.JITFunction.__dict__["run"]
    assert {"grid", "warmup"} <= set(inspect.signature(run).parameters)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a guaranteed job tells its session."""
    seen: list[str] = []
    core = SimpleNamespace(
        work_begins=lambda: seen.append("work"), synchronised=lambda: seen.append("synchronised")
    )
    monkeypatch.setattr(commensal, "_core", core, raising=False)
    return seen


def test_a_guaranteed_jobs_replay_is_a_sign_of_work(told: list[str]) -> None:
    class CUDAGraph:
        def replay(self, word: str) -> str:
            told.append(word)
            return word

    _launches.show_graphs(SimpleNamespace(CUDAGraph=CUDAGraph))
    assert CUDAGraph().replay("runs") == "runs"
    assert told == ["work", "runs"]
    _launches.show_graphs(SimpleNamespace())  # a PyTorch without graphs


def test_a_guaranteed_jobs_kernel_is_a_sign_of_work(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = triton_module(monkeypatch)
    _launches.show_kernels()
    assert module.JITFunction()[3](1) == ((1,), 3, False)
    assert told == ["work"]


def test_a_guaranteed_jobs_compiled_region_is_a_sign_of_work(
    told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class CompiledFxGraph:
        def __call__(self, inputs: list[int]) -> list[int]:
            told.append("runs")
            return inputs

    module = ModuleType("output_code")
    module.CompiledFxGraph = CompiledFxGraph  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, _launches.REGIONS, module)
    _launches.show_regions()
    assert CompiledFxGraph()([1]) == [1]
    assert told == ["work", "runs"]


def test_the_end_of_a_synchronisation_is_told(told: list[str]) -> None:
    class Stream:
        def synchronize(self) -> None:
            told.append("stream")

    def synchronize(device: int = 0) -> int:
        told.append("device")
        return device

    cuda = SimpleNamespace(synchronize=synchronize, Stream=Stream)
    _launches.show_synchronisations(cuda)
    assert cuda.synchronize(3) == 3
    Stream().synchronize()
    assert told == ["device", "synchronised", "stream", "synchronised"]
    with pytest.raises(TypeError):
        cuda.synchronize(1, 2)
    assert told[-1] == "synchronised", "one that fails is none"
    assert len(told) == 4


def test_what_is_wrapped_is_there_in_this_pytorch() -> None:
    from torch._inductor.output_code import CompiledFxGraph
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch.cuda import CUDAGraph

    assert callable(CachingAutotuner.run)
    assert callable(CUDAGraph.replay)
    assert "__call__" in vars(CompiledFxGraph)
