# SPDX-License-Identifier: Apache-2.0
"""Stands in for `examples/digits_cnn.py` where kernels do nothing: same options, same log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from stand_in import BLOCK_BYTES, Training, blocks, parser
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

MEETING_STEP = 4  # whose batch comes when the other job trains


class Stored(Dataset[Tensor]):
    """Blocks behind a storage of `read_rate` bytes a second; `waited` was for the last batch."""

    def __init__(self, training: Training, read_rate: float) -> None:
        self._training = training
        self._read_rate = read_rate
        self._fetches = 0
        self.waited = 0.0

    def __len__(self) -> int:
        return 1 << 30

    def __getitems__(self, indices: list[int]) -> Tensor:
        begin = time.monotonic()
        time.sleep(len(indices) * BLOCK_BYTES / self._read_rate)
        if self._fetches == MEETING_STEP:
            self._training.await_other("trains")
        self._fetches += 1
        self.waited = time.monotonic() - begin
        return blocks(len(indices))


def as_it_is(batch: Tensor) -> Tensor:
    return batch


def batches(stored: Stored, batch: int) -> Iterator[Tensor]:
    return iter(DataLoader(stored, batch_size=batch, collate_fn=as_it_is))


if __name__ == "__main__":
    options = parser()
    options.add_argument("--double-at", type=int, required=True)
    options.add_argument("--batch", type=int, required=True, help="blocks a batch")
    options.add_argument("--read-rate", type=float, required=True, help="bytes a second")
    arguments = options.parse_args(sys.argv[1:])
    with Training(arguments) as training:
        stored = Stored(training, arguments.read_rate)
        source = batches(stored, arguments.batch)
        for step in range(arguments.steps):
            if step == arguments.double_at:
                source = batches(stored, 2 * arguments.batch)
                training.write(event="double", batch=2 * arguments.batch)
            begin = time.monotonic()
            training.step(step, next(source), begin, stored.waited)
