# SPDX-License-Identifier: Apache-2.0
"""The CPU allocator under PyTorch: whose memory tensors are in, and what running out of it is."""

from __future__ import annotations

import copy
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
from torch_support import MIB, Facts, Job, run_scenario

LIMIT_BYTES = 64 * MIB
HOST_CAP_BYTES = 64 * MIB


def scenario_contract() -> Facts:
    """What the adaptor promises of a tensor's memory."""
    import torch

    before = [torch.full((1000,), 7.0), torch.full((8,), 3.0)]
    job = Job.start(host_cap_bytes=HOST_CAP_BYTES)
    facts: Facts = {
        "built_for": job.adaptor.commensal_torch_built_for().decode(),
        "torch": torch.__version__,
        "same_minor": job.adaptor.commensal_torch_check(torch.__version__.encode()),
        "other_minor": job.adaptor.commensal_torch_check(b"2.12.1+cpu").decode(),
        "second_install": job.adaptor.commensal_torch_install(),
    }
    before[1].resize_(100_000)
    facts["before"] = {
        "ours": [job.owns(t.data_ptr()) for t in before],
        "values": [before[0].sum().item(), before[1][:8].sum().item()],
    }
    before.clear()

    sizes = [1, 2, 63, 64, 65, 1000, 1 << 16, (1 << 20) + 1]
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    empty = torch.empty(0)
    facts["after"] = {
        "ours": all(job.owns(t.data_ptr()) for t in tensors),
        "aligned": all(t.data_ptr() % 64 == 0 for t in tensors),
        "empty": empty.data_ptr(),
    }
    del tensors, empty
    facts["routes"] = routes(job)
    facts["threads"] = frees_from_other_threads(job)
    facts["profiler"] = profiled_memory()
    facts["out_of_memory"] = run_out(job)
    return facts


def routes(job: Job) -> Facts:
    """Say which ways of making a tensor end in our memory, and that the values arrive."""
    import numpy
    import torch

    def fact(tensor: Any) -> list[object]:
        return [job.owns(tensor.data_ptr()), tensor.double().sum().item()]

    grown = torch.ones(10)
    grown.resize_(1 << 20)
    lazy = torch._lazy_clone(torch.ones(10))
    lazy.add_(1)
    torch.save(torch.ones(1000), "saved.pt")
    live = job.memory("live_bytes")
    shared = torch.ones(1 << 20)
    shared.share_memory_()
    image, kernel = torch.ones(1, 1, 8, 8), torch.ones(1, 1, 3, 3)
    return {
        "resize_": fact(grown[:10]),
        "tensor": fact(torch.tensor(numpy.ones(10))),
        "list": fact(torch.tensor([1.0] * 10)),
        "load": fact(torch.load("saved.pt")),
        "deepcopy of a parameter": fact(copy.deepcopy(torch.nn.Parameter(torch.ones(10))).data),
        "deepcopy of a tensor": fact(copy.deepcopy(torch.ones(10))),
        "lazy clone": fact(lazy),
        "convolution": fact(torch.nn.functional.conv2d(image, kernel)),
        "from_numpy": fact(torch.from_numpy(numpy.ones(10))),
        "share_memory_": fact(shared),
        "live_after_sharing": job.memory("live_bytes") - live < 1 << 20,
    }


def frees_from_other_threads(job: Job) -> Facts:
    """Allocate on two threads and free on two others."""
    import torch

    gc.collect()
    live = job.memory("live_bytes")
    made: list[list[Any]] = [[], []]

    def make(into: list[Any]) -> None:
        into.extend(torch.full((1 + 997 * i,), float(i)) for i in range(300))

    def free(these: list[Any]) -> None:
        while these:
            these.pop()

    for work in (make, free):
        if work is free:
            held = job.memory("live_bytes") - live
            right = all(t[-1].item() == i for part in made for i, t in enumerate(part))
        threads = [threading.Thread(target=work, args=(part,)) for part in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {"held": held, "right": right, "left": job.memory("live_bytes") - live}


def profiled_memory() -> Facts:
    """Let PyTorch's profiler count a block of 1 MiB."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = torch.empty(1 << 20, dtype=torch.uint8)
        passing = torch.empty(1 << 10, dtype=torch.uint8)
        del passing
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return {"bytes": [e.nbytes() for e in events], "kept": kept.numel()}


def run_out(job: Job) -> Facts:
    """Ask for more than limit and slower tier together, and go on."""
    import torch

    before = train()
    job.set_limit(LIMIT_BYTES)
    facts: Facts = {}
    try:
        torch.empty(1 << 30, dtype=torch.uint8)
    except RuntimeError as error:
        facts["type"] = type(error).__name__
        facts["is_torch_type"] = isinstance(error, torch.OutOfMemoryError)
        facts["message"] = str(error)
    facts["counted"] = job.memory("out_of_memory_total")
    facts["goes_on"] = train() == before
    return facts


def train() -> list[float]:
    """Train a small convolutional network; return its losses."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 4)
    )
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.arange(4))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def contract() -> Facts:
    return run_scenario(scenario_contract)


def test_the_adaptor_names_the_pytorch_it_was_built_for(contract: Facts) -> None:
    assert contract["torch"].startswith(contract["built_for"] + ".")
    assert contract["same_minor"] is None


def test_another_pytorch_minor_gets_one_clear_sentence(contract: Facts) -> None:
    sentence = contract["other_minor"]
    assert contract["built_for"] in sentence
    assert "2.12.1+cpu" in sentence
    assert "\n" not in sentence


def test_a_second_install_does_nothing(contract: Facts) -> None:
    assert contract["second_install"] is None


def test_tensors_from_before_live_and_die_where_they_were(contract: Facts) -> None:
    assert contract["before"] == {"ours": [False, False], "values": [7000.0, 24.0]}


def test_tensors_are_ours_and_aligned_and_empty_ones_have_no_address(contract: Facts) -> None:
    assert contract["after"] == {"ours": True, "aligned": True, "empty": 0}


@pytest.mark.parametrize(
    ("route", "ours", "total"),
    [
        ("resize_", True, 10.0),
        ("tensor", True, 10.0),
        ("list", True, 10.0),
        ("load", True, 1000.0),
        ("deepcopy of a parameter", True, 10.0),
        ("deepcopy of a tensor", False, 10.0),  # torch.UntypedStorage(n): PyTorch's own allocator
        ("lazy clone", True, 20.0),
        ("convolution", True, 324.0),
        ("from_numpy", False, 10.0),
        ("share_memory_", False, float(1 << 20)),
    ],
)
def test_where_a_tensor_made_this_way_lives(
    contract: Facts, route: str, ours: bool, total: float
) -> None:
    assert contract["routes"][route] == [ours, total]


def test_sharing_a_tensor_frees_our_block(contract: Facts) -> None:
    assert contract["routes"]["live_after_sharing"]


def test_blocks_are_freed_from_other_threads(contract: Facts) -> None:
    threads = contract["threads"]
    assert threads["right"]
    assert threads["held"] >= 2 * sum(4 * (1 + 997 * i) for i in range(300))
    assert threads["left"] == 0


def test_the_profiler_sees_every_block_come_and_go(contract: Facts) -> None:
    reported = contract["profiler"]["bytes"]
    assert contract["profiler"]["kept"] in reported
    assert {1 << 10, -(1 << 10)} <= set(reported)


def test_running_out_raises_torchs_error_and_training_goes_on(contract: Facts) -> None:
    out_of_memory = contract["out_of_memory"]
    assert out_of_memory["is_torch_type"], out_of_memory
    assert out_of_memory["counted"] == 1
    assert out_of_memory["goes_on"]


@pytest.mark.parametrize("named", ["limit", "64 MiB", "in use", "1 GiB", "tried"])
def test_the_error_names_limit_use_request_and_what_was_tried(contract: Facts, named: str) -> None:
    assert named in contract["out_of_memory"]["message"]


KEPT: list[Any] = []


def scenario_exit(written_at_exit: str) -> Facts:
    """Leave tensors in module globals, in a thread, and in functions that run at the end."""
    import atexit

    import torch

    before = torch.ones(1000)
    job = Job.start()
    KEPT.extend([before, torch.ones(1 << 20), job])

    def at_exit() -> None:
        KEPT.append(torch.ones(1 << 20) + 1)
        Path(written_at_exit).write_text(str(KEPT[-1].sum().item()))

    atexit.register(at_exit)
    torch.ones(1 << 20).cycle = KEPT
    leaked = torch.randn(100, requires_grad=True)
    KEPT.append(leaked.exp().sum())  # a graph that nobody runs
    return {"ours": job.owns(KEPT[1].data_ptr())}


def test_a_process_ends_well_with_tensors_left_everywhere(tmp_path: Path) -> None:
    written_at_exit = tmp_path / "sum.txt"
    facts = run_scenario(scenario_exit, str(written_at_exit))  # fails if the exit code is not zero
    assert facts == {"ours": True}
    assert written_at_exit.read_text() == str(float(2 << 20))
