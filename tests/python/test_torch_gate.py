# SPDX-License-Identifier: Apache-2.0
"""The gate under PyTorch: what waits while it is closed, what never does, and that it reopens."""

# ruff: noqa: PLW0108 (an op written as a call reads better than a bound method)

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch_support import Facts, Job, run_scenario, wait_until


class Attempt:
    """A call on a thread of its own, and whether it has returned."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self.name = name
        self.error = ""
        self._call = call
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:
            self.error = repr(error)

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the end of the call; raise what it raised."""
        self._thread.join(30)
        if not self.is_done or self.error:
            raise RuntimeError(f"{self.name}: {self.error or 'still waiting'}")


def hold(job: Job, calls: dict[str, Callable[[], object]]) -> Facts:
    """Run each call at a closed gate; return how many waited, and which came through."""
    before = job.ops_gated()
    attempts = [Attempt(name, call) for name, call in calls.items()]
    wait_until(
        lambda: job.ops_gated() - before + sum(a.is_done for a in attempts) >= len(attempts),
        "every call is at the gate or through it",
    )
    time.sleep(0.05)  # a call that slips through gets the time to show it
    facts = {
        "waited": job.ops_gated() - before,
        "calls": len(calls),
        "passed": sorted(a.name for a in attempts if a.is_done),
    }
    job.resume()
    for attempt in attempts:
        attempt.finish()
    return facts


def data_ops() -> dict[str, Callable[[], object]]:
    import torch
    from torch.nn import functional

    x, y = torch.randn(8, 8), torch.randn(8, 8)
    image, kernel = torch.randn(1, 1, 8, 8), torch.randn(1, 1, 3, 3)
    index = torch.tensor([1, 2])
    strided = torch.randn(8, 8).t()
    return {
        "add": lambda: x + y,
        "add_": lambda: x.add_(0),
        "mm": lambda: x @ y,
        "relu": lambda: x.relu(),
        "sum": lambda: x.sum(),
        "softmax": lambda: x.softmax(0),
        "conv2d": lambda: functional.conv2d(image, kernel),
        "linear": lambda: functional.linear(x, y),
        "layer_norm": lambda: functional.layer_norm(x, [8]),
        "embedding": lambda: functional.embedding(index, x),
        "cross_entropy": lambda: functional.cross_entropy(x, y),
        "fft": lambda: torch.fft.fft(x),
        "svd": lambda: torch.linalg.svd(x),
        "sort": lambda: x.sort(),
        "cat": lambda: torch.cat([x, y]),
        "clone": lambda: x.clone(),
        "copy_": lambda: torch.empty(8, 8).copy_(x),
        "fill": lambda: x.__setitem__(0, 5.0),
        "gather rows": lambda: x[index],
        "index_put": lambda: y.__setitem__(index, 0.0),
        "item": lambda: x[0, 0].item(),
        "truth": lambda: bool(index[0]),
        "tolist of a result": lambda: (x > 0).tolist(),
        "zeros": lambda: torch.zeros(8),
        "arange": lambda: torch.arange(8),
        "randn": lambda: torch.randn(8),
        "to another type": lambda: x.to(torch.float64),
        "reshape that copies": lambda: strided.reshape(-1),
        "contiguous that copies": lambda: strided.contiguous(),
        "tensor from an array": lambda: torch.tensor(x.numpy()),
    }


def no_data_ops() -> dict[str, Callable[[], object]]:
    import torch

    x = torch.randn(8, 8)
    return {
        "index": lambda: x[1:3, 0],
        "view": lambda: x.view(-1),
        "reshape": lambda: x.reshape(4, 16),
        "transpose": lambda: x.t().transpose(0, 1).permute(1, 0),
        "expand": lambda: x.unsqueeze(0).expand(3, 8, 8).squeeze(),
        "detach": lambda: x.detach(),
        "chunk": lambda: x.chunk(2),
        "unbind": lambda: list(x),
        "flatten": lambda: x.flatten(),
        "contiguous": lambda: x.contiguous(),
        "to the same": lambda: x.to(torch.float32),
        "empty": lambda: torch.empty(8),
        "empty_like": lambda: torch.empty_like(x),
        "list to tensor": lambda: torch.tensor([1.0, 2.0]),
        "array": lambda: torch.from_numpy(x.numpy()),
        "metadata": lambda: (x.size(), x.stride(), x.is_contiguous(), x.dim()),
        "requires_grad_": lambda: torch.empty(3).requires_grad_(),
    }


def held_inside(job: Job, build: Callable[[Any, list[str]], Callable[[], object]]) -> Facts:
    """Close the gate around a call that reports its own progress into a list of words."""
    import torch

    progress: list[str] = []
    weight = torch.randn(8, 8, requires_grad=True)
    call = build(weight, progress)
    job.pause()
    before = job.ops_gated()
    attempt = Attempt("inside", call)
    wait_until(lambda: job.ops_gated() > before or attempt.is_done, "the call is at the gate")
    time.sleep(0.05)
    at_gate = list(progress)
    job.resume()
    attempt.finish()
    return {"at_gate": at_gate, "at_end": progress}


def build_custom_function(weight: Any, progress: list[str]) -> Callable[[], object]:
    import torch

    class Doubled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_context: Any, value: Any) -> Any:
            progress.append("forward began")
            result = value * 2
            progress.append("forward ended")
            return result

    return lambda: Doubled.apply(weight)


def build_backward(weight: Any, progress: list[str]) -> Callable[[], object]:
    import torch

    class Doubled(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(_context: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            progress.append("backward began")
            result = gradient * 2
            progress.append("backward ended")
            return result

    gradient = torch.ones(8, 8)
    result = Doubled.apply(weight)
    return lambda: result.backward(gradient)


def build_checkpoint(weight: Any, progress: list[str]) -> Callable[[], object]:
    from torch.utils.checkpoint import checkpoint

    def segment(value: Any) -> Any:
        progress.append("segment began")
        result = (value @ value).relu()
        progress.append("segment ended")
        return result

    return lambda: checkpoint(segment, weight, use_reentrant=True)


def build_checkpoint_backward(weight: Any, progress: list[str]) -> Callable[[], object]:
    import torch
    from torch.utils.checkpoint import checkpoint

    def segment(value: Any) -> Any:
        progress.append("segment began")
        result = (value @ value).relu()
        progress.append("segment ended")
        return result

    result = checkpoint(segment, weight, use_reentrant=True)
    progress.clear()
    gradient = torch.ones(8, 8)
    return lambda: result.backward(gradient)


def build_compiled(weight: Any, progress: list[str]) -> Callable[[], object]:
    import torch

    # Only views inside: no kernel of its own would ever come to the gate.
    compiled = torch.compile(lambda value: value.view(-1).unsqueeze(0), backend="eager")
    compiled(weight)

    def call() -> None:
        progress.append("called")
        compiled(weight)
        progress.append("returned")

    return call


def build_compiling(_weight: Any, progress: list[str]) -> Callable[[], object]:
    import torch

    def backend(graph: Any, _inputs: Any) -> Any:
        progress.append("compiled")
        return graph.forward

    compiled = torch.compile(lambda value: ((value @ value).relu() + 1).sum(), backend=backend)
    value = torch.randn(8, 8)

    def call() -> None:
        progress.append("called")
        compiled(value)
        progress.append("returned")

    return call


def train(steps: int) -> list[float]:
    """Train a small network; return its losses."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.arange(8) % 4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def facts_of_open_gate(job: Job, calls: dict[str, Callable[[], object]]) -> Facts:
    """Say what an open gate sees of ops."""
    seen = job.stats()["gate"]["ops_seen_total"]
    for call in calls.values():
        call()
    return {
        "callback": job.wants_callback(),
        "seen": job.stats()["gate"]["ops_seen_total"] - seen,
    }


def pass_closed_gate(job: Job, calls: dict[str, Callable[[], object]]) -> Facts:
    """Run calls that must not wait at a closed gate; return how many did, and which."""
    job.pause()
    gated = job.ops_gated()
    attempts = [Attempt(name, call) for name, call in calls.items()]
    wait_until(
        lambda: all(a.is_done for a in attempts) or job.ops_gated() > gated, "calls to return"
    )
    facts = {
        "waited": job.ops_gated() - gated,
        "held": sorted(a.name for a in attempts if not a.is_done),
    }
    job.resume()
    for attempt in attempts:
        attempt.finish()
    return facts


def beats_while_main_waits(job: Job) -> int:
    """Let this thread wait at the gate; return how often another one ran Python meanwhile."""
    import torch

    beats = 0
    gated = job.ops_gated()
    compiled = build_compiled(torch.randn(4), [])  # comes to the gate with Python's lock held

    def open_after_beats() -> None:
        nonlocal beats
        wait_until(lambda: job.ops_gated() > gated, "the main thread is at the gate")
        for _ in range(100):
            beats += 1
            time.sleep(0.0005)
        job.resume()

    job.pause()
    helper = Attempt("helper", open_after_beats)
    compiled()
    result = beats
    helper.finish()
    return result


def beats_while_main_keeps_the_lock(job: Job) -> int:
    """Return how often another thread ran Python while this one waited with Python's lock held."""
    beats = 0
    stop = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not stop.is_set():
            beats += 1
            time.sleep(0.0005)

    helper = Attempt("heart", beat)
    wait_until(lambda: beats > 10, "the heart beats")
    gated = job.ops_gated()
    job.pause()
    job.resume_after(200)
    before = beats
    job.pass_gate(keep_pythons_lock=True)
    result = beats - before
    stop.set()
    helper.finish()
    assert job.ops_gated() > gated
    return result


def in_range(name: str) -> Callable[[], object]:
    """Return a call that runs an op inside of a USER_SCOPE range."""
    import torch
    from torch.autograd.profiler import record_function

    def call() -> None:
        with record_function(name):
            torch.ones(4).add_(1)

    return call


def collectives() -> dict[str, Callable[[], object]]:
    """Return collectives of a group of one."""
    import torch
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{Path('store').resolve()}", rank=0, world_size=1
    )
    value, parts = torch.ones(4), [torch.empty(4)]

    def all_of_them() -> None:
        distributed.all_reduce(value)
        distributed.all_gather(parts, value)
        distributed.broadcast(value, 0)
        distributed.barrier()

    return {"collectives": all_of_them}


def switch_while_training(job: Job, times: int) -> Facts:
    """Close and open the gate from another thread while this one trains."""
    stop = threading.Event()
    switches = 0

    def toggle() -> None:
        nonlocal switches
        while not stop.is_set() or switches < times:
            job.pause()
            job.resume()
            switches += 1

    toggler = Attempt("toggler", toggle)
    losses = train(60)
    while switches < times:
        train(5)
    stop.set()
    toggler.finish()
    return {"switches": switches, "losses": losses, "in_flight": job.ops_in_flight()}


def scenario_gate() -> Facts:
    """Everything about one process's gate."""
    import torch

    torch.set_num_threads(1)
    facts: Facts = {"losses_alone": train(60)}
    job = Job.start()
    ops = data_ops()
    facts["open"] = facts_of_open_gate(job, ops)
    job.pause()
    facts["callback_while_closed"] = job.wants_callback()
    facts["data"] = hold(job, ops)
    facts["no_data"] = pass_closed_gate(job, no_data_ops())
    facts["beats_while_main_waited"] = beats_while_main_waits(job)
    facts["beats_while_main_kept_the_lock"] = beats_while_main_keeps_the_lock(job)

    facts["custom_function"] = held_inside(job, build_custom_function)
    facts["backward"] = held_inside(job, build_backward)
    facts["checkpoint"] = held_inside(job, build_checkpoint)
    facts["checkpoint_backward"] = held_inside(job, build_checkpoint_backward)
    facts["compiled"] = held_inside(job, build_compiled)
    facts["compiling"] = held_inside(job, build_compiling)

    facts["gloo_range"] = pass_closed_gate(job, {"gloo": in_range("gloo:all_reduce")})
    job.pause()
    facts["user_range"] = hold(job, {"user": in_range("user:all_reduce")})
    facts["collectives"] = pass_closed_gate(job, collectives())
    torch.distributed.destroy_process_group()

    facts["switching"] = switch_while_training(job, 1000)
    job.pause()
    facts["after_switching"] = hold(job, {"add": ops["add"], "mm": ops["mm"]})
    return facts


@pytest.fixture(scope="module")
def gate() -> Facts:
    return run_scenario(scenario_gate)


def test_the_callback_is_off_while_the_gate_is_open(gate: Facts) -> None:
    assert gate["open"] == {"callback": False, "seen": 0}
    assert gate["callback_while_closed"]


def test_law4_a_closed_gate_lets_no_op_pass_and_opens_again(gate: Facts) -> None:
    assert gate["data"]["passed"] == []
    assert gate["data"]["waited"] == gate["data"]["calls"]


@pytest.mark.parametrize("what", ["no_data", "gloo_range", "collectives"])
def test_these_never_wait(gate: Facts, what: str) -> None:
    assert gate[what] == {"waited": 0, "held": []}


def test_c12_a_wait_leaves_pythons_lock_to_other_threads(gate: Facts) -> None:
    assert gate["beats_while_main_waited"] == 100


def test_c12_a_wait_that_keeps_pythons_lock_stalls_them(gate: Facts) -> None:
    # In 200 ms; one or two may fall between the counting and the call.
    assert gate["beats_while_main_kept_the_lock"] <= 5


@pytest.mark.parametrize(
    ("where", "held_after"),
    [
        ("custom_function", ["forward began"]),
        ("backward", ["backward began"]),
        ("checkpoint", ["segment began"]),
        ("checkpoint_backward", ["segment began"]),
        ("compiled", ["called"]),
        ("compiling", ["called", "compiled"]),  # not one of its ops on tensors without data
    ],
)
def test_ops_inside_of_wrappers_wait(gate: Facts, where: str, held_after: list[str]) -> None:
    assert gate[where]["at_gate"] == held_after
    assert len(gate[where]["at_end"]) > len(held_after)


def test_an_op_inside_any_other_range_waits(gate: Facts) -> None:
    assert gate["user_range"]["passed"] == []


def test_switching_during_training_keeps_begins_and_ends_paired(gate: Facts) -> None:
    assert gate["switching"]["switches"] >= 1000
    assert gate["switching"]["in_flight"] == 0
    assert gate["switching"]["losses"] == gate["losses_alone"]
    assert gate["after_switching"]["passed"] == []


def scenario_guaranteed() -> Facts:
    """What a guaranteed job's process pays."""
    job = Job.start(job_class="guaranteed")
    train(20)
    gate = job.stats()["gate"]
    return {"callback": job.wants_callback(), "seen": gate["ops_seen_total"]}


def test_a_guaranteed_job_runs_without_the_op_callback() -> None:
    assert run_scenario(scenario_guaranteed) == {"callback": False, "seen": 0}


TOGGLES = 5000  # of each of two ranks


def scenario_rank(rank: int, store: str) -> Facts:
    """One rank of two, with a gate that closes and opens at random."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    job = Job.start()
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    stop = threading.Event()
    closes = 0

    def toggle() -> None:
        nonlocal closes
        dice = random.Random(rank)
        while not stop.is_set():
            job.pause()
            time.sleep(dice.uniform(0, 0.0004))
            job.resume()
            time.sleep(dice.uniform(0, 0.0002))
            closes += 1

    toggler = Attempt("toggler", toggle)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = 0
    enough = torch.zeros(1)
    while enough.item() == 0:  # both ranks end with the same step
        step += 1
        model(torch.full((4, 32), (rank + step % 25) / 50)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        gathered = [torch.empty(4) for _ in range(2)]
        distributed.all_gather(gathered, torch.full((4,), float(rank)))
        enough = torch.tensor([float(closes >= TOGGLES)])
        distributed.all_reduce(enough, distributed.ReduceOp.MIN)
    distributed.barrier()
    stop.set()
    toggler.finish()
    facts: Facts = {
        "sum": float(sum(p.detach().double().sum() for p in model.parameters())),
        "gathered": [float(part[0]) for part in gathered],
        "closes": closes,
        "gated": job.ops_gated(),
    }
    distributed.destroy_process_group()
    return facts


def test_c10_ranks_whose_gates_close_at_random_go_on(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: run_scenario(scenario_rank, rank, store), (0, 1))
    assert first["sum"] == second["sum"]
    assert first["gathered"] == second["gathered"] == [0.0, 1.0]
    assert first["closes"] + second["closes"] >= 10_000
    assert first["gated"] > 0


def scenario_collective_at_a_closed_gate(rank: int, store: str, waits: bool) -> Facts:
    """One rank of two; the gate of rank 0 is closed until rank 1 was in its collective for long."""
    import torch
    from torch import distributed

    job = Job.start()
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    signs = Path(store).parent
    value = torch.full((8,), float(rank))

    def reduce() -> None:
        if rank == 0 and waits:
            job.pass_gate()  # what a gate does that takes a collective for any other op
        distributed.all_reduce(value)

    if rank == 0:
        job.pause()
        attempt = Attempt("all_reduce", reduce)
        wait_until((signs / "seen").exists, "the other rank has looked")
        job.resume()
        attempt.finish()
        facts: Facts = {}
    else:
        attempt = Attempt("all_reduce", reduce)
        attempt._thread.join(1 if waits else 30)
        facts = {"ended_beside_a_closed_gate": attempt.is_done}
        (signs / "seen").touch()
        attempt.finish()
    distributed.barrier()
    facts["sum"] = float(value.sum())
    distributed.destroy_process_group()
    return facts


@pytest.mark.parametrize("waits", [False, True])
def test_c10_a_collective_that_waits_at_the_gate_holds_the_other_rank(
    tmp_path: Path, waits: bool
) -> None:
    store = str(tmp_path / "store")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(
            lambda rank: run_scenario(scenario_collective_at_a_closed_gate, rank, store, waits),
            (0, 1),
        )
    assert second["ended_beside_a_closed_gate"] is not waits
    assert first["sum"] == second["sum"] == 8.0


def test_c21_another_number_of_threads_gives_other_results() -> None:
    def gradient(threads: int) -> float:
        import torch

        torch.set_num_threads(threads)
        norm = torch.nn.LayerNorm(64)
        norm(torch.arange(64 * 999.0).view(999, 64).sin()).square().sum().backward()
        assert norm.weight.grad is not None
        return float(norm.weight.grad.double().sum())

    import torch

    before = torch.get_num_threads()
    try:
        assert gradient(1) == gradient(1)
        assert gradient(1) != gradient(2)
    finally:
        torch.set_num_threads(before)


def scenario_inductor() -> Facts:
    """A region whose only kernel is generated C++ that reports nothing."""
    import torch

    job = Job.start()
    compiled = torch.compile(lambda value: (value * 2 + 1).relu())
    value = torch.randn(64)
    compiled(value)

    def build(_weight: Any, progress: list[str]) -> Callable[[], object]:
        def call() -> None:
            progress.append("called")
            compiled(value)
            progress.append("returned")

        return call

    return held_inside(job, build)


@pytest.mark.soak  # compiles C++ for 30 s
def test_an_inductor_region_waits_at_its_entry() -> None:
    facts = run_scenario(scenario_inductor)
    assert facts == {"at_gate": ["called"], "at_end": ["called", "returned"]}
