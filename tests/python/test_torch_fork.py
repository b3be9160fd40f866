# SPDX-License-Identifier: Apache-2.0
"""fork and spawn: a child sees a snapshot, allocates, and touches nothing of its parent's."""

from __future__ import annotations

import json
import multiprocessing
import os
import select
import threading
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from torch_support import MIB, Facts, Job, run_scenario

DEADLINE_S = 30


class Child:
    """A forked child that answers with facts, and the way to let it go on."""

    def __init__(self, work: Callable[[Callable[[], object]], Facts]) -> None:
        self._answer, answer_in = os.pipe()
        go, self._go = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            facts: Facts = {}
            try:
                facts = work(lambda: _read(go))
            except BaseException:
                facts = {"error": traceback.format_exc()}
            finally:
                os.write(answer_in, json.dumps(facts).encode())
                os._exit(0)
        os.close(answer_in)
        os.close(go)

    def go_on(self) -> None:
        """Let the child's ``wait`` return."""
        os.write(self._go, b".")

    def facts(self) -> Facts:
        """Wait for the child's end and its facts."""
        answer = _read(self._answer, 1 << 16)
        _, status = os.waitpid(self._pid, 0)
        facts: Facts = json.loads(answer)
        facts["exit"] = os.waitstatus_to_exitcode(status)
        return facts


def _read(descriptor: int, size: int = 1) -> bytes:
    ready, _, _ = select.select([descriptor], [], [], DEADLINE_S)
    if not ready:
        raise TimeoutError("no answer across the pipe")
    return os.read(descriptor, size)


def snapshot(job: Job) -> Facts:
    """Fork with tensors on both tiers; the parent writes and moves while the child looks."""
    import torch

    spilled = torch.full((MIB,), 1.0)
    job.shrink()
    resident = torch.full((MIB,), 2.0)
    tiers = [job.tier_of(t.data_ptr()) for t in (spilled, resident)]

    def look(wait: Callable[[], object]) -> Facts:
        first = [spilled[::1024].sum().item(), resident[::1024].sum().item()]
        wait()
        mine = [torch.full((1000 + i,), float(i)) for i in range(200)]
        spilled.add_(5)  # its own copy: the parent must not see this
        return {
            "first": first,
            "later": [(spilled - 5).sum().item(), resident.sum().item()],
            "allocated": sum(t[-1].item() for t in mine),
            "session": job.has_current(),
        }

    child = Child(look)
    for _ in range(3):
        spilled.add_(10)
        resident.add_(10)
        job.grow()
        job.shrink()
        more = torch.ones(MIB)  # asks for memory while the child lives
        del more
    child.go_on()
    facts = child.facts()
    facts["tiers"] = tiers
    facts["parent"] = [spilled.sum().item(), resident.sum().item()]
    return facts


@contextmanager
def forking_op(inside: Callable[[], None]) -> Any:
    """Register an op whose kernel calls back; yield the op."""
    import torch

    library = torch.library.Library("commensal_test", "FRAGMENT")
    library.define("call(Tensor x) -> Tensor")

    def kernel(x: Any) -> Any:
        inside()
        return x + 1

    library.impl("call", kernel, "CPU")
    yield torch.ops.commensal_test.call
    library._destroy()


def fork_inside_an_op(job: Job) -> Facts:
    """Fork in the middle of an op that entered a gate, and close that gate meanwhile."""
    import torch

    result: Facts = {}
    value = torch.ones(100)

    def work(_wait: Callable[[], object]) -> Facts:
        other: list[float] = []
        thread = threading.Thread(target=lambda: other.append((value * 3).sum().item()))
        thread.start()
        thread.join(DEADLINE_S)
        return {"sum": (value + 1).sum().item(), "other_thread": other}

    def inside() -> None:
        job.pause()  # ops of the parent wait from here on
        child = Child(work)
        result.update(child.facts())
        job.resume()

    with forking_op(inside) as op:
        job.pause()
        opener = threading.Timer(0.05, job.resume)
        opener.start()
        result["op"] = op(value).sum().item()
        opener.join()
    result["in_flight"] = job.ops_in_flight()
    return result


def fork_while_moving(job: Job) -> Facts:
    """Fork again and again while another thread moves everything."""
    import torch

    tensor = torch.arange(MIB)
    wanted = tensor.sum().item()
    answers = []
    with job.moving() as counts:
        for _ in range(10):
            child = Child(lambda _wait: {"sum": tensor.sum().item() + torch.ones(10).sum().item()})
            answers.append(child.facts())
    return {
        "right": all(a.get("sum") == wanted + 10 and a["exit"] == 0 for a in answers),
        "answers": [a for a in answers if a.get("sum") != wanted + 10],
        "moved_bytes": counts["moved_bytes"],
    }


class Rows:
    """A data set over one tensor, which may lie on the slower tier."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index] * 2


def data_loader(job: Job) -> Facts:
    """Let two worker processes read a tensor that is spilled, and moves while they read."""
    import torch
    from torch.utils.data import DataLoader

    rows = Rows(torch.arange(256 * 4096).reshape(256, 4096))
    wanted = 2 * rows.data.sum().item()
    job.shrink()
    tier = job.tier_of(rows.data.data_ptr())
    totals = []
    with job.moving() as counts:
        for _ in range(2):
            loader: Any = DataLoader(rows, batch_size=16, num_workers=2)
            totals.append(sum(batch.sum().item() for batch in loader))
    return {
        "tier": tier,
        "right": totals == [wanted, wanted],
        "moved_bytes": counts["moved_bytes"],
    }


def _double(tensor: Any, answers: Any) -> None:
    answers.put((tensor.double() * 2).sum().item())


def spawn(job: Job) -> Facts:
    """Hand a tensor to a spawned process."""
    import torch
    import torch.multiprocessing

    tensor = torch.ones(1000)
    owned = job.owns(tensor.data_ptr())
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=_double, args=(tensor, answers))
    process.start()
    total = answers.get()
    process.join(DEADLINE_S)
    return {"owned": owned, "sum": total, "exit": process.exitcode}


def scenario_fork() -> Facts:
    """All of them, one after the other, in one process."""
    import torch

    torch.set_num_threads(1)  # a child of a process whose OpenMP threads ran may not start its own
    job = Job.start()
    return {
        "snapshot": snapshot(job),
        "inside_op": fork_inside_an_op(job),
        "moving": fork_while_moving(job),
        "data_loader": data_loader(job),
        "spawn": spawn(job),
    }


@pytest.fixture(scope="module")
def fork() -> Facts:
    return run_scenario(scenario_fork)


def test_a_child_sees_a_snapshot_of_spilled_and_resident_tensors(fork: Facts) -> None:
    snapshot = fork["snapshot"]
    assert snapshot["tiers"] == ["host", "device"], snapshot
    assert snapshot["first"] == [1024.0, 2048.0], snapshot
    assert snapshot["later"] == [float(MIB), 2.0 * MIB]


def test_a_child_allocates_and_is_no_member_of_the_session(fork: Facts) -> None:
    assert fork["snapshot"]["allocated"] == float(sum(range(200)))
    assert fork["snapshot"]["session"] is False
    assert fork["snapshot"]["exit"] == 0


def test_the_parent_keeps_its_own_writes(fork: Facts) -> None:
    assert fork["snapshot"]["parent"] == [31.0 * MIB, 32.0 * MIB]


def test_a_child_forked_inside_an_op_never_waits_at_the_parents_gate(fork: Facts) -> None:
    inside = fork["inside_op"]
    assert inside.get("sum") == 200.0, inside
    assert inside["other_thread"] == [300.0]
    assert inside["exit"] == 0
    assert inside["op"] == 200.0
    assert inside["in_flight"] == 0


def test_a_fork_during_a_move_is_a_snapshot_too(fork: Facts) -> None:
    assert fork["moving"]["right"], fork["moving"]
    assert fork["moving"]["moved_bytes"] > 0


def test_data_loader_workers_read_spilled_tensors(fork: Facts) -> None:
    assert fork["data_loader"]["tier"] == "host"
    assert fork["data_loader"]["right"]


def test_a_spawned_process_gets_the_tensor(fork: Facts) -> None:
    assert fork["spawn"] == {"owned": True, "sum": 2000.0, "exit": 0}
