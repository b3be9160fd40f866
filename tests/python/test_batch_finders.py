# SPDX-License-Identifier: Apache-2.0
"""Programs that look for the largest batch that fits: what is wrapped, and what they find."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest
from simulated_gpus import simulated_gpus
from training import facts_of
from world import World

from commensal._batch_finders import ACCELERATE, LIGHTNING, follow_batch_finders

torch = pytest.importorskip("torch")

# What accelerate and Lightning do, as far as it matters here.
FINDERS = """
import functools, gc
import torch
def find_executable_batch_size(function=None, starting_batch_size=128):
    if function is None:
        return functools.partial(
            find_executable_batch_size, starting_batch_size=starting_batch_size)
    def decorator(*args, **kwargs):
        batch_size = starting_batch_size
        while batch_size:
            gc.collect()
            torch.cuda.empty_cache()
            try:
                return function(batch_size, *args, **kwargs)
            except Exception as problem:
                if not (isinstance(problem, RuntimeError) and len(problem.args) == 1
                        and "out of memory." in problem.args[0]):
                    raise
                batch_size //= 2
    return decorator
def _try_loop_run(run, batch_size):
    return run(batch_size)
def scale_batch_size(run, batch_size):
    while True:
        try:
            _try_loop_run(run, batch_size)
            batch_size *= 2
        except RuntimeError as problem:
            assert "CUDA" in problem.args[0] and "out of memory" in problem.args[0]
            return batch_size // 2
"""


class FakeTrials:
    """Counts."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    def commensal_torch_cuda_begin_trial(self) -> None:
        self.begun += 1

    def commensal_torch_cuda_end_trial(self) -> None:
        self.ended += 1

    @property
    def runs(self) -> bool:
        return self.begun > self.ended


def finders(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[Any, FakeTrials]:
    trials = FakeTrials()
    module = ModuleType(name)
    exec(FINDERS, module.__dict__)
    monkeypatch.setitem(sys.modules, name, module)
    follow_batch_finders(trials)
    return module, trials


def test_a_batch_is_tried_until_two_steps_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    module, trials = finders(monkeypatch, ACCELERATE)
    from torch.optim.optimizer import _global_optimizer_post_hooks

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([weight])
    tried = []
    hooks = len(_global_optimizer_post_hooks)

    @module.find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> str:
        tried.append(batch_size)
        assert trials.runs
        if batch_size > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")
        for step in range(3):
            assert trials.runs == (step < 2)
            optimizer.step()
        return "done"

    assert train() == "done"
    assert tried == [4, 2, 1]
    assert trials.begun == trials.ended == 3
    assert len(_global_optimizer_post_hooks) == hooks


def test_the_wrapped_function_looks_as_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = finders(monkeypatch, ACCELERATE)
    assert list(inspect.signature(module.find_executable_batch_size).parameters) == [
        "function",
        "starting_batch_size",
    ]
    seen = []

    def train(batch_size: int) -> None:
        seen.append(batch_size)

    module.find_executable_batch_size(train, 2)()
    module.find_executable_batch_size(function=train, starting_batch_size=1)()
    assert seen == [2, 1]


@pytest.mark.parametrize("name", LIGHTNING)
def test_a_failure_ends_a_trial_of_lightnings(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, trials = finders(monkeypatch, name)

    def fit(batch_size: int) -> None:
        assert trials.runs
        if batch_size > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    assert module.scale_batch_size(fit, 1) == 8
    assert trials.begun == trials.ended == 5


# A batch of n takes n times 16 MiB, beside weights of 64, under a limit of 256.
JOB = """
import json, sys, torch, commensal
sys.path.insert(0, sys.argv[1])
commensal.init(idle_class=False, memory="256MiB")
weights = torch.nn.Parameter(torch.zeros(64 << 18, device="cuda"))
optimizer = torch.optim.SGD([weights], lr=0.0)
def train(batch_size):
    for _ in range(3):
        activations = [torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
                       for _ in range(batch_size)]
        del activations
        optimizer.step()
    return batch_size
def memory():
    return commensal.stats()["memory"]
from accelerate.utils.memory import find_executable_batch_size
from lightning.pytorch.tuner.batch_size_scaling import scale_batch_size
facts = {"halved": find_executable_batch_size(train, starting_batch_size=128)()}
facts["doubled"] = scale_batch_size(train, 1)
facts["host"] = memory()["host_bytes"]
words = []
def search():  # of the program's own, of which nobody knows
    batch_size = 1
    while True:
        try:
            train(batch_size)
        except torch.OutOfMemoryError as problem:
            words.append(str(problem))
            return batch_size // 2
        batch_size *= 2
facts["own"] = search()
torch.cuda.set_per_process_memory_fraction(0.25)
facts["bounded"] = search()
facts["words"] = words
torch.cuda.set_per_process_memory_fraction(1.0)
commensal.set_memory_limit("96MiB")  # a neighbour's
facts["later"] = train(4)
print(json.dumps(facts))
"""


def test_f13_who_looks_for_a_batch_finds_the_limit(world: World) -> None:
    driver = simulated_gpus(MEMORY=1 << 30)
    for package in ("accelerate/utils/memory", LIGHTNING[0].replace(".", "/")):
        path = world.folder / "stand-ins" / f"{package}.py"
        path.parent.mkdir(parents=True)
        path.write_text(FINDERS)
        folder = path.parent
        while folder.name != "stand-ins":  # packages come before those that are installed
            (folder / "__init__.py").touch()
            folder = folder.parent
    command = [sys.executable, world.script(JOB), str(world.folder / "stand-ins")]
    facts = facts_of(world.run(command, **driver))
    assert facts["halved"] == facts["doubled"] == 8
    assert facts["host"] == 0
    assert facts["own"] == 32  # the card's memory: as alone
    assert facts["bounded"] == 8
    for words in facts["words"]:
        assert words.startswith("CUDA out of memory. Tried to allocate ")
        assert " GiB is free. " in words or " MiB is free. " in words
    assert facts["later"] == 4  # what runs goes on
