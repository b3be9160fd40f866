# SPDX-License-Identifier: Apache-2.0
"""Data on a card whose change is seen: what fills tensors, and checksums of them.

On a card both are kernels, since tens of GiB are checked. On the simulated driver kernels do
nothing: there the data comes from the host and is hashed on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import torch
from stage_report import on_simulated_driver
from torch import Tensor

__all__ = ["Contents", "mix"]

BLOCK = 1 << 23  # words of 8 bytes that are looked at at once
PIECE = 20 << 20  # the size of PyTorch's own segments of mid-sized blocks
# What a transformer's Adam job asks for, in parts of 64: matrices, and vectors between them.
LAYER = (16, 16, 12, 4, 4, 4, 4, 1, 1, 1, 1)
LAYERS = 8


def mix(total: int) -> list[int]:
    """Split bytes into one big block (half), segments (a quarter), and those of an Adam job."""
    piece = max(8, min(PIECE, total // 32))
    sizes = [total // 2, *[piece] * (total // 4 // piece)]
    unit = max(8, (total - sum(sizes)) // (LAYERS * sum(LAYER)))
    sizes += [part * unit for _ in range(LAYERS) for part in LAYER]
    return [size // 8 * 8 for size in sizes]


class Contents:
    """Fills tensors from a seed and tells checksums that know the order of what is in them."""

    def __init__(self, seed: int = 7) -> None:
        self._random = torch.Generator("cpu" if on_simulated_driver() else "cuda")
        self._random.manual_seed(seed)
        self._weights: Tensor | None = None

    def fill(self, tensors: Iterable[Tensor]) -> None:
        for block in blocks(tensors):
            if on_simulated_driver():
                words = torch.empty(block.numel(), dtype=torch.int64)
                block.copy_(words.random_(generator=self._random))
            else:
                block.random_(generator=self._random)
        torch.cuda.synchronize()

    def checksum(self, tensors: Iterable[Tensor]) -> str:
        """Return a text that is another one when a byte of them is."""
        found = hashlib.sha256()
        if on_simulated_driver():
            for block in blocks(tensors):
                found.update(block.cpu().numpy().tobytes())
            return found.hexdigest()
        if self._weights is None:
            odd = torch.arange(BLOCK, dtype=torch.int64, device="cuda")
            self._weights = odd.mul_(0x5851F42D4C957F2D).bitwise_or_(1)
        sums = [(block * self._weights[: block.numel()]).sum() for block in blocks(tensors)]
        found.update(torch.stack(sums).cpu().numpy().tobytes())
        return found.hexdigest()


def blocks(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the words of tensors, as many at once as are looked at."""
    for tensor in tensors:
        yield from tensor.detach().flatten().view(torch.uint8).view(torch.int64).split(BLOCK)
