# SPDX-License-Identifier: Apache-2.0
"""Training of copies, allocations and element-wise kernels, logged as the demo's scripts do.

What is logged as a loss is a checksum of what was on the GPU: the step's batch after a copy to
other memory of the device, and a place of the text.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn

BLOCK_BYTES = 1 << 16
WIDTH = 1 << 18  # of a parameter: 1 MiB
PARAMETERS = 8
STEP_SECONDS = 0.015  # of work on the host, so that a step is long enough to be watched
OTHERS_PATIENCE_SECONDS = 60.0


def parser() -> argparse.ArgumentParser:
    """Return what both scripts take."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, required=True)
    options.add_argument("--device", required=True)
    options.add_argument("--log", type=Path, required=True)
    options.add_argument("--result", type=Path, required=True)
    return options


def blocks(count: int) -> Tensor:
    """Return a batch."""
    return torch.randint(256, (count, BLOCK_BYTES), dtype=torch.uint8)


def checksum(*tensors: Tensor) -> str:
    """Return a loss, as the scripts write theirs, of the bytes of tensors on the device.

    What `clone` and `cpu` do to whole tensors are copies, no kernels.
    """
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.clone().cpu().numpy().tobytes())
    return float(int.from_bytes(digest.digest()[:6], "little")).hex()


class Training:
    """A model, its optimizer, and the files that the demo reads; the result comes at the end."""

    def __init__(self, arguments: argparse.Namespace, text_bytes: int = 0) -> None:
        torch.manual_seed(1)
        self._arguments = arguments
        self.tell("ready")
        self.await_other("ready")  # before the GPU is used: a gate could hold the other back
        self._log = arguments.log.open("w", buffering=1)
        self._digest = hashlib.sha256()
        host = torch.randint(256, (text_bytes,), dtype=torch.uint8)
        self._text = host.to(arguments.device)
        self._weights = nn.ParameterList(
            nn.Parameter(torch.ones(WIDTH)) for _ in range(PARAMETERS)
        ).to(arguments.device)
        self._optimizer = torch.optim.SGD(self._weights.parameters(), lr=0.01, momentum=0.9)
        self.write(event="start", threads=torch.get_num_threads())

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.write(event="end")
            told = {"sha256": self._digest.hexdigest()}
            self._arguments.result.write_text(json.dumps(told))
        self._log.close()

    def await_other(self, event: str) -> None:
        """Wait until the other job of the window, if it is shared, has told of an event.

        On a busy machine, too, both train at the same time.
        """
        folder = self._arguments.log.parent
        own = self._arguments.log.with_suffix(f".{event}")
        alone = folder.name.endswith("_alone")
        until = time.monotonic() + OTHERS_PATIENCE_SECONDS
        while not alone and time.monotonic() < until:
            if set(folder.glob(f"*.{event}")) - {own}:
                return
            time.sleep(0.01)

    def tell(self, event: str) -> None:
        self._arguments.log.with_suffix(f".{event}").touch()

    def write(self, **values: object) -> None:
        self._log.write(json.dumps({"time": time.monotonic(), **values}) + "\n")

    def step(self, number: int, host: Tensor, begin: float, wait_seconds: float = 0.0) -> None:
        """Train on a batch of blocks, for which was waited since `begin`, and log it."""
        inputs = host.to(self._arguments.device)
        self._optimizer.zero_grad()
        x = inputs.flatten()[:WIDTH].float()
        loss = torch.stack([(weight[: len(x)] * x).relu().sum() for weight in self._weights]).sum()
        loss.backward()
        time.sleep(STEP_SECONDS)
        self._optimizer.step()
        place = number * BLOCK_BYTES % max(1, len(self._text))
        seen = checksum(inputs, self._text[place : place + BLOCK_BYTES])
        self._digest.update(seen.encode())
        self.write(
            step=number,
            seconds=time.monotonic() - begin,
            wait_seconds=wait_seconds,
            loss=seen,
            batch=len(host),
        )
