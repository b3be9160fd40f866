# SPDX-License-Identifier: Apache-2.0
"""Law 1: training gives the same bits with and without the adaptor, and while memory moves."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch_support import Facts, Job, run_scenario, wait_until

STEPS = 6
SMALL_STEPS = 24  # some for each chunk that moves
Trainer = Callable[[], Iterator[Any]]


def optimise(model: Any, step_loss: Callable[[], Any], steps: int = STEPS) -> Iterator[Any]:
    """Train; yield the loss of each step and, at the end, all parameters."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step_loss()
        loss.backward()
        optimizer.step()
        yield loss.detach()
    yield from (parameter.detach() for parameter in model.parameters())


def convolutional() -> Iterator[Any]:
    """A network whose convolutions run in oneDNN."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(512, 10),
    )
    target = torch.arange(8) % 10
    return optimise(
        model, lambda: nn.functional.cross_entropy(model(torch.randn(8, 3, 32, 32)), target)
    )


def transformer() -> Iterator[Any]:
    """A transformer layer over an embedding."""
    import torch
    from torch import nn

    embedding = nn.Embedding(200, 64)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    head = nn.Linear(64, 200)
    model = nn.ModuleList([embedding, layer, head])

    def loss() -> Any:
        tokens = torch.randint(0, 200, (4, 32))
        scores = head(layer(embedding(tokens)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())

    return optimise(model, loss)


def recurrent() -> Iterator[Any]:
    """A long short-term memory of two layers."""
    import torch
    from torch import nn

    model = nn.LSTM(32, 64, num_layers=2, batch_first=True)
    return optimise(model, lambda: model(torch.randn(4, 20, 32))[0].square().mean())


def spectral() -> Iterator[Any]:
    """A Fourier transform and a singular value decomposition, with their gradients."""
    import torch

    weight = torch.nn.Parameter(torch.randn(32, 32))
    model = torch.nn.ParameterList([weight])

    def loss() -> Any:
        spectrum = torch.fft.rfft(weight @ torch.randn(32, 128))
        return spectrum.abs().mean() + torch.linalg.svdvals(weight).sum()

    return optimise(model, loss)


def half_precision() -> Iterator[Any]:
    """A perceptron in bfloat16 under autocast."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 16))

    def loss() -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(torch.randn(32, 128)).float().square().mean()

    return optimise(model, loss)


TRAINERS: dict[str, Trainer] = {
    "convolutional": convolutional,
    "transformer": transformer,
    "recurrent": recurrent,
    "spectral": spectral,
    "half_precision": half_precision,
}


def digest(trainer: Trainer, between_steps: Callable[[int], None]) -> str:
    """Hash every loss and all parameters, bit by bit."""
    import torch

    torch.manual_seed(1)
    result = hashlib.sha256()
    for number, tensor in enumerate(trainer()):
        result.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
        between_steps(number)
    return result.hexdigest()


def scenario_train(adaptor: str) -> Facts:
    """Train everything, ``without`` the adaptor, ``with`` it, or ``moving`` between the steps."""
    import torch

    torch.set_num_threads(2)
    if adaptor == "without":
        return {name: digest(trainer, lambda _: None) for name, trainer in TRAINERS.items()}
    job = Job.start()

    def move(number: int) -> None:
        if adaptor == "moving":
            job.grow() if number % 2 else job.shrink()

    facts: Facts = {name: digest(trainer, move) for name, trainer in TRAINERS.items()}
    facts["moved_out_bytes"] = job.memory("moved_out_bytes_total")
    facts["moved_in_bytes"] = job.memory("moved_in_bytes_total")
    if adaptor == "moving":
        with job.moving(pause_s=0.005) as counts:  # at any time, not only between steps
            facts["any_time"] = {
                name: digest(trainer, lambda _: None) for name, trainer in TRAINERS.items()
            }
            before = job.memory("moved_out_bytes_total")
            digests: list[str] = []

            def moved_meanwhile() -> int:
                """Train once more; return what has moved by then."""
                digests.append(digest(recurrent, lambda _: None))
                return job.memory("moved_out_bytes_total") - before

            # Three take a tenth of a second: a busy machine moves nothing in so short a time.
            wait_until(lambda: moved_meanwhile() > 0 and len(digests) >= 3, "a move meanwhile")
            facts["any_time_recurrent"] = digests
        facts["any_time_moved_bytes"] = counts["moved_bytes"]
    return facts


@pytest.fixture(scope="module")
def runs() -> dict[str, Facts]:
    names = ("without", "with", "moving")
    with ThreadPoolExecutor(2) as pool:
        return dict(
            zip(names, pool.map(lambda n: run_scenario(scenario_train, n), names), strict=True)
        )


@pytest.mark.parametrize("trainer", TRAINERS)
def test_law1_results_are_bit_identical_with_the_adaptor(
    runs: dict[str, Facts], trainer: str
) -> None:
    assert runs["with"][trainer] == runs["without"][trainer]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_law1_results_are_bit_identical_while_memory_moves_between_steps(
    runs: dict[str, Facts], trainer: str
) -> None:
    assert runs["moving"]["moved_out_bytes"] > 0
    assert runs["moving"]["moved_in_bytes"] > 0
    assert runs["moving"][trainer] == runs["without"][trainer]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_law2_results_are_bit_identical_while_memory_moves_at_any_time(
    runs: dict[str, Facts], trainer: str
) -> None:
    assert runs["moving"]["any_time_moved_bytes"] > 0
    assert runs["moving"]["any_time"][trainer] == runs["without"][trainer]


def test_law2_moves_at_any_time_spare_generated_code(runs: dict[str, Facts]) -> None:
    """oneDNN's LSTM kernels use the stack pointer for data: a signal must not land there."""
    digests = runs["moving"]["any_time_recurrent"]
    assert digests == [runs["without"]["recurrent"]] * len(digests)


def small() -> Iterator[Any]:
    """A perceptron whose memory, of either lifetime, lies in one chunk."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    return optimise(model, lambda: model(torch.randn(32, 64)).square().mean(), SMALL_STEPS)


def scenario_step_in_a_move(stop_threads: bool) -> Facts:
    """Train a guaranteed job; let a step cut in between a move's comparison and its exchange."""
    patience_ms = 20 if stop_threads else 10_000  # a stopped thread never comes
    job = Job.start(job_class="guaranteed", cut_into_a_move=(stop_threads, patience_ms))

    def shrink() -> None:  # a thread that cannot be stopped just then is no reason to give up
        while job.chunks_compared == 0:
            job.shrink()
            time.sleep(0.01)

    mover = threading.Thread(target=shrink, daemon=True)

    def between_steps(number: int) -> None:
        job.stepped()
        if number == 1:
            mover.start()
            wait_until(lambda: job.chunks_compared > 0, "a chunk is compared")
        elif number == SMALL_STEPS - 2:
            mover.join()

    result = digest(small, between_steps)
    return {
        "digest": result,
        "compared": job.chunks_compared,
        "moved_bytes": job.memory("moved_out_bytes_total"),
        "steps_in": job.steps_in_a_move,
    }


@pytest.fixture(scope="module")
def small_alone() -> str:
    return str(run_scenario(scenario_small_alone)["digest"])


def scenario_small_alone() -> Facts:
    return {"digest": digest(small, lambda _: None)}


def test_law1_breaks_when_a_step_runs_on_while_memory_moves(small_alone: str) -> None:
    facts = run_scenario(scenario_step_in_a_move, False)
    assert facts["steps_in"] >= 1, facts
    assert facts["moved_bytes"] > 0, facts
    assert facts["digest"] != small_alone, "the old bytes came back, with no step in them"


def test_law1_the_same_step_is_kept_with_threads_stopped(small_alone: str) -> None:
    facts = run_scenario(scenario_step_in_a_move, True)
    assert facts["compared"] >= 1, facts
    assert facts["steps_in"] <= 0, facts
    assert facts["moved_bytes"] > 0, facts
    assert facts["digest"] == small_alone
