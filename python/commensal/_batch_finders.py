# SPDX-License-Identifier: Apache-2.0
"""Lets programs that look for the largest batch that fits find the limit of elastic GPU memory.

They try batches until one is out of memory. Above its limit a job's new tensors come from the
slower tier, which is right for a job whose limit has fallen, and would let a batch pass that then
trains at the speed of the link. So while such a search tries a batch, the slower tier serves
nothing new: for two steps of an optimizer, in the second of which all is there that a step needs.
What follows may be the training itself, whose memory may move as any other's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

from commensal._launches import when_imported

__all__ = ["Trials", "follow_batch_finders"]

ACCELERATE = "accelerate.utils.memory"  # transformers' auto_find_batch_size goes through it
LIGHTNING = (
    "lightning.pytorch.tuner.batch_size_scaling",
    "pytorch_lightning.tuner.batch_size_scaling",
)
STEPS = 2


class Trials(Protocol):
    """The functions of libcommensal_torch_cuda between which a batch is tried."""

    def commensal_torch_cuda_begin_trial(self) -> None: ...
    def commensal_torch_cuda_end_trial(self) -> None: ...


def follow_batch_finders(trials: Trials) -> None:
    """Wrap how accelerate and Lightning try a batch, once each is imported."""

    def wrap_accelerate(module: Any) -> None:
        finder = getattr(module, "find_executable_batch_size", None)
        if finder is None:
            return

        @functools.wraps(finder)
        def find(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
            # Without a function it returns a decorator, which comes back here with one.
            return finder(function and _tried(function, trials), *args, **kwargs)

        module.find_executable_batch_size = find

    def wrap_lightning(module: Any) -> None:
        if (run := getattr(module, "_try_loop_run", None)) is not None:
            module._try_loop_run = _tried(run, trials)

    when_imported(ACCELERATE, wrap_accelerate)
    for name in LIGHTNING:
        when_imported(name, wrap_lightning)


def _tried(function: Callable[..., Any], trials: Trials) -> Callable[..., Any]:
    @functools.wraps(function)
    def trying(*args: Any, **kwargs: Any) -> Any:
        trial = _Trial(trials)
        try:
            return function(*args, **kwargs)
        finally:
            trial.end()

    return trying


class _Trial:
    """Runs from its making until it is ended, or enough steps of an optimizer have."""

    def __init__(self, trials: Trials) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._trials = trials
        self._left = STEPS
        self._hook = register_optimizer_step_post_hook(self._stepped)
        trials.commensal_torch_cuda_begin_trial()

    def _stepped(self, *_: object) -> None:
        self._left -= 1
        if self._left == 0:
            self._trials.commensal_torch_cuda_end_trial()

    def end(self) -> None:
        self._hook.remove()  # not within a hook: PyTorch is going through them there
        if self._left > 0:
            self._trials.commensal_torch_cuda_end_trial()
