# SPDX-License-Identifier: Apache-2.0
"""Times tiny ops in this process, in turn: as it is, with an empty callback, with a metered gate.

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


class EmptyCallback:
    """The callback that does nothing, added and removed."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.add_empty_callback.restype = ctypes.c_uint64
        self._library.remove_empty_callback.argtypes = [ctypes.c_uint64]
        self._handle: int | None = None

    def remove(self) -> None:
        if self._handle is not None:
            self._library.remove_empty_callback(self._handle)
            self._handle = None

    def add(self) -> None:
        self.remove()
        self._handle = self._library.add_empty_callback()


def require_gate() -> None:
    """Make sure that ops pass our gate.

    Raises:
        RuntimeError: they do not; there is nothing to measure then.
    """
    import commensal

    seen = commensal.stats()["gate"]["ops_seen_total"]
    nanoseconds_an_op(2000)
    if commensal.stats()["gate"]["ops_seen_total"] == seen:
        raise RuntimeError(f"the gate's callback is not on: {commensal.stats()['gate']}")


def metered_modes(empty: EmptyCallback) -> dict[str, Callable[[], None]]:
    """Return modes for a job of its own whose share is bounded, so that every op is metered."""
    import commensal

    commensal.init(job_class="opportunistic")

    def set_share(share: float) -> None:
        empty.remove()
        commensal.set_compute_share(share)

    def metered() -> None:
        set_share(0.999)  # nearly never waits
        require_gate()

    def only_empty() -> None:
        set_share(1.0)
        empty.add()

    return {"none": lambda: set_share(1.0), "empty": only_empty, "metered": metered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--ops", type=int, default=20_000)
    parser.add_argument("--modes", choices=["as_is", "empty", "gate", "metered"], required=True)
    parser.add_argument("--library", type=Path, help="the empty callback")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    modes: dict[str, Callable[[], None]] = {arguments.modes: lambda: None}
    if arguments.modes == "empty":
        EmptyCallback(arguments.library).add()
    elif arguments.modes == "gate":
        modes = {"gate": require_gate}
    elif arguments.modes == "metered":
        modes = metered_modes(EmptyCallback(arguments.library))
    found = measure(modes, arguments.rounds, arguments.ops)
    arguments.result.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
