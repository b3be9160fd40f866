# SPDX-License-Identifier: Apache-2.0
"""Follows work on a GPU that no op of PyTorch reports: graphs, kernels of Triton, regions.

A few functions of PyTorch are wrapped, once for a process; what they return and raise stays what it
was. In an opportunistic job graphs and kernels pass the gate. Captures are not held up: the gate
lets pass what is only recorded. In a guaranteed job one call tells that a graph or a compiled
region begins, which may allocate nothing, and one that the host has waited for the GPU.
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

__all__ = [
    "Gate",
    "follow_graphs",
    "follow_kernels",
    "show_graphs",
    "show_kernels",
    "show_regions",
    "show_synchronisations",
    "telling_first",
    "when_imported",
]

GRAPH, KERNEL = 0, 1  # torch_ext/op_callback.h, Launch
HEURISTICS = "torch._inductor.runtime.triton_heuristics"
REGIONS = "torch._inductor.output_code"
TRITON = "triton.runtime.jit"


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
    """Wrap how Inductor, and how a program itself, launches a kernel of Triton, once each is
    imported.
    """

    def wrap(module: Any) -> None:
        tuner = getattr(module, "CachingAutotuner", None)
        if tuner is not None:
            tuner.run = _gated(tuner.run, KERNEL, gate)

    when_imported(HEURISTICS, wrap)
    _wrap_triton(lambda run: _gated(run, KERNEL, gate))


def _wrap_triton(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap launches of kernels that a program has written itself (`kernel[grid](...)`)."""

    def found(module: Any) -> None:
        kernel = getattr(module, "JITFunction", None)
        if kernel is None:
            return
        run, wrapped = kernel.run, wrap(kernel.run)

        @functools.wraps(run)
        def launch(*args: Any, **kwargs: Any) -> Any:
            # A warm-up compiles, and launches nothing.
            return (run if kwargs.get("warmup") else wrapped)(*args, **kwargs)

        kernel.run = launch

    when_imported(TRITON, found)


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


def show_graphs(cuda: Any) -> None:
    """Make `torch.cuda.CUDAGraph.replay` a sign of work; `cuda` is `torch.cuda`."""
    from commensal import _core

    graph = getattr(cuda, "CUDAGraph", None)
    if graph is not None:
        graph.replay = telling_first(_core.work_begins, graph.replay)


def show_regions() -> None:
    """Make a call of a region that Inductor compiled a sign of work, once that is imported."""
    from commensal import _core

    def wrap(module: Any) -> None:
        region = getattr(module, "CompiledFxGraph", None)
        if region is not None:
            region.__call__ = telling_first(_core.work_begins, region.__call__)

    when_imported(REGIONS, wrap)


def show_kernels() -> None:
    """Make a launch of a kernel of Triton a sign of work, once that is imported: one that works in
    place allocates nothing.
    """
    from commensal import _core

    _wrap_triton(lambda run: telling_first(_core.work_begins, run))


def show_synchronisations(cuda: Any) -> None:
    """Make the ends of the host's waits for a GPU show on the job's page."""
    from commensal import _core

    cuda.synchronize = _telling_then(_core.synchronised, cuda.synchronize)
    for name in ("Stream", "Event"):
        if (kind := getattr(cuda, name, None)) is not None:
            kind.synchronize = _telling_then(_core.synchronised, kind.synchronize)


def telling_first(tell: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        tell()
        return function(*args, **kwargs)

    return told


def _telling_then(tell: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        tell()
        return result

    return told


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
