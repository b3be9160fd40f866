# SPDX-License-Identifier: Apache-2.0
"""Finds out that a spawned process trains: a helper that joins a process group is a rank.

What multiprocessing spawns imports PyTorch before it knows what it is for: a data loader's worker
and a rank of `torch.multiprocessing.spawn` look alike until then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from commensal._say import say

__all__ = ["watch_helper"]


def watch_helper(promote: Callable[[int, int], None]) -> None:
    """Call `promote(rank, world_size)` once this process has joined its first process group.

    One that trains without a group is told once that it is not managed.
    """
    from torch import distributed
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def complain(*_: object) -> None:
        hook.remove()
        say(
            "a spawned process trains without torch.distributed and is not managed; "
            "see docs/assumptions.md"
        )

    complain._torchdynamo_disable = True  # type: ignore[attr-defined]
    hook = register_optimizer_step_pre_hook(complain)
    if not distributed.is_available():
        return
    join = distributed.init_process_group
    homes = (distributed, distributed.distributed_c10d)

    @functools.wraps(join)
    def join_and_tell(*arguments: Any, **options: Any) -> None:
        join(*arguments, **options)
        for home in homes:
            home.init_process_group = join
        hook.remove()
        promote(distributed.get_rank(), distributed.get_world_size())

    for home in homes:
        home.init_process_group = join_and_tell
