# SPDX-License-Identifier: Apache-2.0
"""Law 2: no write to a tensor is lost while its chunk moves, whatever writes."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch_support import MIB, Facts, Job, run_scenario

ROUNDS = 12  # shrinks and grows of everything under each writer, and its writes, at least
DEADLINE_S = 30
PAGE = 4096


def hammer(job: Job, write_and_check: Callable[[int], bool]) -> Facts:
    """Write and check, again and again, while all live memory moves; count what went wrong.

    After each write comes a step's end, where threads that came meanwhile get what it takes to
    stop them anywhere.
    """
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    writes = wrong = 0
    end = time.monotonic() + DEADLINE_S
    with job.moving() as counts:
        while min(counts["rounds"], writes) < ROUNDS and time.monotonic() < end:
            wrong += not write_and_check(writes)
            writes += 1
            optimizer.step()
    return {
        "writes": writes,
        "wrong": wrong,
        "rounds": counts["rounds"],
        "moved_bytes": counts["moved_bytes"],
        "deferred": counts["deferred"],
    }


def ops() -> Callable[[int], bool]:
    """Ops on the main thread and in OpenMP workers: increments, so that a lost one shows."""
    import torch

    large, small = torch.zeros(2 * MIB), torch.zeros(64)

    def write_and_check(number: int) -> bool:
        large.add_(1)
        small.add_(1)
        wanted = (number + 1) % (1 << 24)
        return bool((large == wanted).all()) and bool((small == wanted).all())

    return write_and_check


def numpy_view(prepare: Callable[[], object] | None = None) -> Callable[[int], bool]:
    """A NumPy view that another thread writes while no op runs. ``prepare`` runs on it first."""
    import torch

    tensor = torch.zeros(2 * MIB, dtype=torch.int32)
    view = tensor.numpy()

    def write(number: int) -> bool:
        view.__iadd__(1)
        return bool((view == number + 1).all())

    writer = ThreadPoolExecutor(1, initializer=prepare)
    return lambda number: writer.submit(write, number).result()


def blocks_signals() -> Callable[[int], bool]:
    """The same by a thread that no signal reaches."""
    every = signal.valid_signals()
    return numpy_view(lambda: signal.pthread_sigmask(signal.SIG_SETMASK, every))


def named_like_ours() -> Callable[[int], bool]:
    """The same by a thread that the system knows under a name like one of ours."""
    set_name = 15  # PR_SET_NAME
    return numpy_view(lambda: ctypes.CDLL(None).prctl(set_name, b"commensal-loader", 0, 0, 0))


def read_from_pipe() -> Callable[[int], bool]:
    """``readv`` from a pipe into a view: the kernel writes, and may be inside a wait."""
    import torch

    tensor = torch.zeros(MIB, dtype=torch.uint8)
    view = memoryview(tensor.numpy())
    source, sink = os.pipe()

    def feed(data: bytes) -> None:
        while data:  # a signal, such as the one that stops threads, cuts a long write short
            data = data[os.write(sink, data) :]

    def write_and_check(number: int) -> bool:
        value = number % 251
        feeder = threading.Thread(target=feed, args=(bytes([value]) * 300_000,))
        feeder.start()
        filled = 0
        while filled < 300_000:
            half = (filled + 300_000) // 2
            filled += os.readv(source, [view[filled:half], view[half:300_000]])
        feeder.join()
        return bool((tensor[:300_000] == value).all())

    return write_and_check


def direct_read() -> Callable[[int], bool]:
    """A synchronous read past the page cache, which writes by physical address."""
    import torch

    size = MIB
    Path("direct.bin").write_bytes(b"".join(bytes([value]) * size for value in (1, 2, 3)))
    descriptor = os.open("direct.bin", os.O_RDONLY | os.O_DIRECT)
    tensor = torch.zeros(size + PAGE, dtype=torch.uint8)
    skip = -tensor.data_ptr() % PAGE
    part = tensor[skip : skip + size]
    view = memoryview(part.numpy())

    def write_and_check(number: int) -> bool:
        which = number % 3
        done = os.preadv(descriptor, [view], which * size)
        return done == size and bool((part == which + 1).all())

    return write_and_check


def load() -> Callable[[int], bool]:
    """``torch.load``: new blocks, filled from a file."""
    import torch

    saved = {"a": torch.arange(200_000), "b": torch.randn(1000)}
    torch.save(saved, "saved.pt")
    kept: dict[int, Any] = {}

    def write_and_check(number: int) -> bool:
        loaded = torch.load("saved.pt")
        kept[number % 3] = loaded  # older ones stay and move too
        return all(torch.equal(old[name], saved[name]) for old in kept.values() for name in saved)

    return write_and_check


WRITERS = {
    "ops": ops,
    "numpy_view": numpy_view,
    "blocks_signals": blocks_signals,
    "named_like_ours": named_like_ours,
    "read_from_pipe": read_from_pipe,
    "direct_read": direct_read,
    "load": load,
}


def scenario_writers() -> Facts:
    """Each writer in turn, under moves."""
    job = Job.start()
    return {name: hammer(job, writer()) for name, writer in WRITERS.items()}


@pytest.fixture(scope="module")
def writers() -> Facts:
    # Direct reads need a real disk under the scenario's folder.
    return run_scenario(scenario_writers, deadline_s=150, TMPDIR="/var/tmp")


@pytest.mark.parametrize("writer", WRITERS)
def test_law2_no_write_is_lost_while_its_chunk_moves(writers: Facts, writer: str) -> None:
    facts = writers[writer]
    assert facts["rounds"] >= ROUNDS, facts
    assert facts["moved_bytes"] >= MIB, facts
    assert facts["writes"] >= ROUNDS, facts
    assert facts["wrong"] == 0, facts


def scenario_receive(rank: int, store: str) -> Facts:
    """Rank 0 receives into tensors that move; rank 1 sends."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    count = 500_000
    flag = torch.zeros(1, dtype=torch.int64)  # 1: one more message
    facts: Facts = {}
    if rank == 0:
        job = Job.start()
        received, more = torch.zeros(count), torch.ones(1, dtype=torch.int64)

        def receive(number: int) -> bool:
            distributed.send(more, 1)
            distributed.recv(received, 1)
            return bool((received == number).all())

        facts = hammer(job, receive)
        distributed.send(flag, 1)
    else:
        number = 0
        while True:
            distributed.recv(flag, 0)
            if not flag.item():
                break
            distributed.send(torch.full((count,), float(number)), 0)
            number += 1
    distributed.destroy_process_group()
    return facts


def test_law2_nothing_that_gloo_receives_is_lost(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:
        facts, _ = pool.map(lambda rank: run_scenario(scenario_receive, rank, store), (0, 1))
    assert facts["rounds"] >= ROUNDS, facts
    assert facts["moved_bytes"] >= MIB, facts
    assert facts["wrong"] == 0, facts
