# SPDX-License-Identifier: Apache-2.0
"""Threads of every kind get elastic memory: what they make moves out and comes back whole (P14)."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch_support import MIB, Facts, Job, run_scenario

WORDS = MIB // 4  # of a tensor: large enough to have a chunk of its own soon

Made = list[tuple[int, Any]]


class Maker:
    """Makes tensors and remembers which thread made them."""

    def __init__(self) -> None:
        self.made: Made = []
        self._lock = threading.Lock()

    def make(self, *_: object) -> None:
        import torch

        tensor = torch.arange(WORDS, dtype=torch.int32)
        with self._lock:
            self.made.append((threading.get_native_id(), tensor))


def main_thread(maker: Maker) -> None:
    maker.make()


def python_threads(maker: Maker) -> None:
    threads = [threading.Thread(target=maker.make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def pool_threads(maker: Maker) -> None:
    """Threads that live on, as those of a loader that pins memory or prefetches."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(maker.make, range(4)))


def autograd_threads(maker: Maker) -> None:
    """PyTorch's own: a backward within a backward, often enough, goes on in another thread."""
    import torch

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Any, depth: int) -> Any:
            ctx.depth = depth
            return value.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if ctx.depth == 0:
                maker.make()
            else:
                with torch.enable_grad():
                    inner = torch.ones(4, requires_grad=True)
                    Nested.apply(inner, ctx.depth - 1).sum().backward()
            return gradients[0], None

    value = torch.ones(4, requires_grad=True)
    Nested.apply(value, 70).sum().backward()


def interop_threads(maker: Maker) -> None:
    """Native threads: PyTorch's pool between ops."""
    import torch

    @torch.jit.script
    def fill(words: int) -> torch.Tensor:
        return torch.arange(words, dtype=torch.int32)

    futures = [torch.jit.fork(fill, WORDS) for _ in range(4)]
    for future in futures:
        maker.made.append((0, torch.jit.wait(future)))


def openmp_threads(maker: Maker) -> None:
    """Those within an op: a parallel region of the OpenMP library that PyTorch brings."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    [library] = [path for path in loaded if "libgomp" in path]
    body = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(maker.make)
    ctypes.CDLL(library).GOMP_parallel(body, None, ctypes.c_uint(3), ctypes.c_uint(0))


def loader(maker: Maker) -> None:
    """Batches that worker processes fill, and what the training thread makes of them."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = TensorDataset(torch.arange(2 * WORDS, dtype=torch.int32).reshape(2, WORDS))
    for batch in DataLoader(rows, batch_size=1, num_workers=2):
        maker.made.append((threading.get_native_id(), batch[0][0] % WORDS))


KINDS: dict[str, Callable[[Maker], None]] = {
    "main": main_thread,
    "python": python_threads,
    "pool": pool_threads,
    "autograd": autograd_threads,
    "interop": interop_threads,
    "openmp": openmp_threads,
    "loader": loader,
}


def scenario_threads() -> Facts:
    """Let each kind of thread make tensors; move all of them out and back."""
    import torch

    job = Job.start()
    wanted = torch.arange(WORDS, dtype=torch.int32)
    facts: Facts = {}
    for kind, run in KINDS.items():
        maker = Maker()
        run(maker)
        tensors = [tensor for _, tensor in maker.made]
        ours = [job.owns(tensor.data_ptr()) for tensor in tensors]
        job.shrink()
        middle = [tensor.data_ptr() + tensor.nbytes // 2 for tensor in tensors]
        out = [job.tier_of(address) for address in middle]
        right = [torch.equal(tensor, wanted) for tensor in tensors]
        job.grow()
        facts[kind] = {
            "count": len(tensors),
            "ours": all(ours),
            "out": sorted(set(out)),
            "back": sorted({job.tier_of(address) for address in middle}),
            "right": all(right) and all(torch.equal(tensor, wanted) for tensor in tensors),
            # What a region of the thread that opened it would have missed.
            "by_others": sum(thread != os.getpid() for thread, _ in maker.made),
        }
    return facts


@pytest.fixture(scope="module")
def threads() -> Facts:
    return run_scenario(scenario_threads)


@pytest.mark.parametrize("kind", KINDS)
def test_p14_what_a_thread_makes_is_elastic(threads: Facts, kind: str) -> None:
    facts = threads[kind]
    assert facts["count"] > 0
    assert facts["ours"], facts
    assert facts["out"] == ["host"], facts
    assert facts["back"] == ["device"], facts
    assert facts["right"], facts


def test_p14_a_region_of_one_thread_would_miss_most_of_it(threads: Facts) -> None:
    """The twin: what was not made by the thread that would have opened a region."""
    missed = {kind for kind, facts in threads.items() if facts["by_others"] == facts["count"]}
    assert {"python", "pool", "autograd", "interop"} <= missed
    assert threads["openmp"]["by_others"] >= 2
    assert threads["main"]["by_others"] == 0
