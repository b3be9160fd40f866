# SPDX-License-Identifier: Apache-2.0
"""One job of `pairs`: works while it is told to, and remembers when each of its steps was.

    go       begins to work; answers at once
    stop     ends after the step that it is in; answers when it has
    take     answers with a JSON list of [begin, end] of the steps since the last `take`

Times are of the monotonic clock. A step begins when its batch is there: the stated wait for storage
is no part of it. For a server a step is a request, from its arrival to its answer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jobs
import torch
from char_transformer import CharTransformer
from digits_cnn import make_model
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import commensal

REQUESTS_A_SECOND = 20.0
BANDWIDTH_MIB = 48  # of each of three arrays: far more than a cache holds

Work = Callable[[], object]


def mlp() -> Work:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    inputs, answers = torch.randn(64, 512), torch.randn(64, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        functional.mse_loss(model(inputs), answers).backward()
        optimizer.step()

    return step


def small_transformer() -> Work:
    model = CharTransformer(128, 2, 4, 64)
    return jobs.text_job(model, torch.optim.Adam(model.parameters(), lr=3e-4), batch=8)


def bandwidth() -> Work:
    """Each op reads and writes arrays that no cache holds."""
    first, second, third = (torch.ones(BANDWIDTH_MIB << 18) for _ in range(3))

    def step() -> None:
        torch.add(first, second, out=third)
        torch.add(third, first, out=second)
        second.mul_(0.5)

    return step


TRAINING: dict[str, Callable[[], Work]] = {
    "resnet18": jobs.resnet18,
    "char_transformer": jobs.char_transformer,
    "small_transformer": small_transformer,
    "mlp": mlp,
    "bandwidth": bandwidth,
}
SERVER = "server"


class Control:
    """Takes orders from stdin, on a thread of its own."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.ended = False
        self._works = threading.Event()
        self._rests = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def listen(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        """Wait until there is work to do, or no more at all."""
        if not self._works.is_set():
            self._rests.set()
            self._works.wait()

    def _listen(self) -> None:
        for line in sys.stdin:
            command = line.strip()
            answer = "done"
            if command == "go":
                self._rests.clear()
                self._works.set()
            elif command == "stop":
                self._works.clear()
                self._rests.wait()
            elif command == "take":
                taken, self.steps = self.steps, []
                answer = json.dumps(taken)
            else:
                answer = f"unknown command: {command}"
            print(answer, flush=True)
        self.ended = True
        self._works.set()


class Storage(Dataset[int]):
    """Takes its time for each batch, and has none while the job rests."""

    def __init__(self, control: Control, stall: float) -> None:
        self._control = control
        self._stall = stall

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> int:
        self._control.wait()
        if self._stall > 0.0 and not self._control.ended:
            time.sleep(self._stall)
        return index


def train(control: Control, model: str, stall: float) -> None:
    step = TRAINING[model]()
    for _ in range(3):
        step()
    print("ready", flush=True)
    control.listen()
    for _ in DataLoader(Storage(control, stall), batch_size=None):
        if control.ended:
            return
        begin = time.monotonic()
        step()
        control.steps.append((begin, time.monotonic()))


def serve(control: Control) -> None:
    """Answer requests that come at random times, always the same ones."""
    model = make_model(jobs.PICTURE).eval()
    pictures = torch.randn(16, 1, jobs.PICTURE, jobs.PICTURE)
    dice = random.Random(jobs.SEED)
    with torch.no_grad():
        for _ in range(3):
            model(pictures)
        print("ready", flush=True)
        control.listen()
        arrival = time.monotonic()
        while True:
            control.wait()
            if control.ended:
                return
            arrival = max(arrival, time.monotonic() - 1.0)  # not what came while it rested
            arrival += dice.expovariate(REQUESTS_A_SECOND)
            time.sleep(max(0.0, arrival - time.monotonic()))
            model(pictures)
            control.steps.append((arrival, time.monotonic()))
            commensal.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*TRAINING, SERVER], required=True)
    parser.add_argument("--stall", type=float, default=0.0, help="seconds before each batch")
    parser.add_argument("--result", type=Path, help="written when it ends: how many steps")
    arguments = parser.parse_args()
    torch.manual_seed(jobs.SEED)
    control = Control()
    if arguments.model == SERVER:
        serve(control)
    else:
        train(control, arguments.model, arguments.stall)
    if arguments.result:
        arguments.result.write_text(json.dumps({"left": len(control.steps)}))


if __name__ == "__main__":
    main()
