# SPDX-License-Identifier: Apache-2.0
"""Times tiny ops in this process: without a callback, with an empty one, with ours, in turn.

Reports processor time of the calling thread, so that waiting and neighbours do not count.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

A, B = torch.ones(16), torch.ones(16)
OUT = torch.empty(16)


def nanoseconds_an_op(ops: int) -> float:
    add = torch.add
    begin = time.thread_time_ns()
    for _ in range(ops):
        add(A, B, out=OUT)
    return (time.thread_time_ns() - begin) / ops


def measure(modes: dict[str, Callable[[], None]], rounds: int, ops: int) -> dict[str, list[float]]:
    """Switch to each mode in turn, and time ops in it."""
    nanoseconds_an_op(ops)
    found: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode, switch in modes.items():
            switch()
            nanoseconds_an_op(ops // 10)
            found[mode].append(nanoseconds_an_op(ops))
    return found


class Callbacks:
    """Switches between no callback, the empty one and our gate's."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.add_empty_callback.restype = ctypes.c_uint64
        self._library.remove_empty_callback.argtypes = [ctypes.c_uint64]
        self._handle: int | None = None

    def _drop(self) -> None:
        import commensal

        if self._handle is not None:
            self._library.remove_empty_callback(self._handle)
            self._handle = None
        commensal.set_compute_share(1.0)

    def none(self) -> None:
        self._drop()

    def empty(self) -> None:
        self._drop()
        self._handle = self._library.add_empty_callback()

    def ours(self) -> None:
        import commensal

        self._drop()
        commensal.set_compute_share(0.999)  # metered: the callback is on, and nearly never waits
        seen = commensal.stats()["gate"]["ops_seen_total"]
        nanoseconds_an_op(1000)
        if commensal.stats()["gate"]["ops_seen_total"] == seen:
            raise RuntimeError("the gate's callback is not on: there is nothing to measure")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ops", type=int, default=20_000)
    parser.add_argument("--library", type=Path, help="the empty callback; without: only time ops")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.library is None:
        modes: dict[str, Callable[[], None]] = {"as_is": lambda: None}
    else:
        import commensal

        commensal.init(job_class="opportunistic")
        callbacks = Callbacks(arguments.library)
        modes = {"none": callbacks.none, "empty": callbacks.empty, "ours": callbacks.ours}
    found = measure(modes, arguments.rounds, arguments.ops)
    arguments.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
