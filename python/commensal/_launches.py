# SPDX-License-Identifier: Apache-2.0
"""Lets work on a GPU that no op of PyTorch reports pass the gate: graphs, kernels of Triton.

Two methods of PyTorch are wrapped, once for a process, and in opportunistic jobs alone: a
guaranteed job pays nothing. What they return and raise stays what it was. Captures are not held
up: the gate lets pass what is only recorded.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

__all__ = ["Gate", "follow_graphs", "follow_kernels", "when_imported"]

GRAPH, KERNEL = 0, 1  # torch_ext/op_callback.h, Launch
HEURISTICS = "torch._inductor.runtime.triton_heuristics"


class Gate(Protocol):
    """The adaptor's functions: whether a launch counts, and that one which does has ended."""

    def commensal_torch_begin_launch(self, what: int) -> int: ...
    def commensal_torch_end_launch(self) -> None: ...


def follow_graphs(cuda: Any, gate: Gate) -> None:
    """Wrap `torch.cuda.CUDAGraph.replay`; `cuda` is `torch.cuda`."""
    graph = getattr(cuda, "CUDAGraph", None)
    if graph is not None:
        graph.replay = _gated(graph.replay, GRAPH, gate)


def follow_kernels(gate: Gate) -> None:
    """Wrap how Inductor launches a kernel of Triton, once it is imported."""

    def wrap(module: Any) -> None:
        tuner = getattr(module, "CachingAutotuner", None)
        if tuner is not None:
            tuner.run = _gated(tuner.run, KERNEL, gate)

    when_imported(HEURISTICS, wrap)


def _gated(launch: Callable[..., Any], what: int, gate: Gate) -> Callable[..., Any]:
    begin, end = gate.commensal_torch_begin_launch, gate.commensal_torch_end_launch

    @functools.wraps(launch)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if not begin(what):
            return launch(*args, **kwargs)
        try:
            return launch(*args, **kwargs)
        finally:
            end()

    return passing


def when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with a module: now if it is there, else when it has been imported."""
    if (module := sys.modules.get(name)) is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _Watch(name, then))


class _Watch(MetaPathFinder):
    """Finds one module as the others do, once, and has it looked at after it has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.then = then

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def executed(module: ModuleType) -> None:
            execute(module)
            self.then(module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec
