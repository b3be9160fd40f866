# SPDX-License-Identifier: Apache-2.0
"""A plain training script with a choice of models; reports its own times and peak memory.

It trains `--steps` steps for each line that it reads, and answers with a line: so two processes can
train in turn, and what the machine does meanwhile hits both alike.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn


def tiny_mlp() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.randn(32, 64), torch.randint(10, (32,))


def convolutions() -> tuple[nn.Module, Tensor, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    return model, torch.randn(96, 1, 64, 64), torch.randint(10, (96,))


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(64 * 256, 10))
    return model, torch.randn(8, 64, 256), torch.randint(10, (8,))


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor, Tensor]]] = {
    "mlp_tiny": tiny_mlp,
    "digits_cnn": convolutions,
    "transformer": transformer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    ready = time.monotonic()
    torch.manual_seed(1)
    model, inputs, answers = MODELS[arguments.model]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    compare = nn.CrossEntropyLoss()

    def train(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = compare(model(inputs), answers)
            loss.backward()
            optimizer.step()
            losses[0] = loss.item()
            seconds.append(time.perf_counter() - begin)
        return seconds

    losses = [0.0]
    train(arguments.warm_up)
    print("ready", flush=True)
    turns = []
    for _ in sys.stdin:
        turns.append(train(arguments.steps))
        print("done", flush=True)
    result = {
        "ready": ready,
        "turns": turns,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "loss": losses[0].hex(),
    }
    arguments.result.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
