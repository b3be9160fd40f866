# SPDX-License-Identifier: Apache-2.0
"""Finds out that a spawned process trains: a helper that joins a process group is a rank.

What multiprocessing spawns imports PyTorch before it knows what it is for: a data loader's worker
and a rank of `torch.multiprocessing.spawn` look alike until then. One that joins no group shows it
at its first optimizer step (`_activation.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["watch_groups"]


def watch_groups(promote: Callable[[int, int], None]) -> None:
    """Call `promote(rank, world_size)` once this process has joined its first process group."""
    from torch import distributed

    if not distributed.is_available():
        return
    join = distributed.init_process_group
    homes = (distributed, distributed.distributed_c10d)

    @functools.wraps(join)
    def join_and_tell(*arguments: Any, **options: Any) -> None:
        join(*arguments, **options)
        for home in homes:
            home.init_process_group = join
        promote(distributed.get_rank(), distributed.get_world_size())

    for home in homes:
        home.init_process_group = join_and_tell
