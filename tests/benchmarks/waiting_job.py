# SPDX-License-Identifier: Apache-2.0
"""A guaranteed job in one long gap: its data loader waits for a storage that never answers."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class SilentStorage(Dataset[torch.Tensor]):
    """Writes a mark when it is asked, and then keeps its reader waiting."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        self.mark.write_text("waiting")
        time.sleep(3600)
        raise TimeoutError(f"no answer for item {index}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", type=Path, required=True)
    next(iter(DataLoader(SilentStorage(parser.parse_args().mark))))


if __name__ == "__main__":
    main()
