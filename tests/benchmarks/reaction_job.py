# SPDX-License-Identifier: Apache-2.0
"""The opportunistic job of `reaction`: one op over and over, and when the gate held it.

    go       begins to work; answers at once
    stop     ends after the op that it is in; answers when it has
    take     answers with JSON of what happened since the last `take`: `holds`, a list of [end of
             the op before, begin of the op that was held], and `longest`, the longest of the others

Times are of the monotonic clock. An op that was held slept in its call; it began when the rest of
that call did: at its end, less the processor time of the call. One that the kernel took off its
core did not sleep, and counts with all of its time.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage

import torch

# Sides of a square matrix product with about so many milliseconds on one core; 0: a tiny op.
SIDES = {0: 0, 1: 320, 5: 560}


def op_of(milliseconds: int) -> Callable[[], object]:
    if milliseconds == 0:
        first, second, out = torch.ones(16), torch.ones(16), torch.empty(16)
        return lambda: torch.add(first, second, out=out)
    side = SIDES[milliseconds]
    left, right, product = (torch.ones(side, side) for _ in range(3))
    return lambda: torch.mm(left, right, out=product)


class Loop:
    """Runs the op on its own thread while it is told to."""

    def __init__(self, op: Callable[[], object]) -> None:
        self._op = op
        self._works = threading.Event()
        self._rests = threading.Event()
        self._lock = threading.Lock()
        self._holds: list[tuple[float, float]] = []
        self._longest = 0.0

    def go(self) -> None:
        self._rests.clear()
        self._works.set()

    def stop(self) -> None:
        self._works.clear()
        self._rests.wait()

    def take(self) -> dict[str, object]:
        with self._lock:
            taken = {"holds": self._holds, "longest": self._longest}
            self._holds, self._longest = [], 0.0
        return taken

    def run(self) -> None:
        op, clock, processor = self._op, time.monotonic, time.thread_time
        while True:
            self._rests.set()
            self._works.wait()
            before, slept = clock(), getrusage(RUSAGE_THREAD).ru_nvcsw
            while self._works.is_set():
                begin, ran = clock(), processor()
                op()
                ran = processor() - ran
                end = clock()
                sleeps = getrusage(RUSAGE_THREAD).ru_nvcsw
                with self._lock:
                    if sleeps > slept:
                        self._holds.append((before, max(begin, end - ran)))
                    else:
                        self._longest = max(self._longest, end - begin)
                before, slept = end, sleeps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=int, choices=list(SIDES), default=0)
    parser.add_argument("--result", type=Path, help="not written: all is told by `take`")
    torch.set_num_threads(1)  # with helpers it would sleep in its ops, too
    loop = Loop(op_of(parser.parse_args().milliseconds))
    threading.Thread(target=loop.run, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        command = line.strip()
        answer = "done"
        if command == "go":
            loop.go()
        elif command == "stop":
            loop.stop()
        elif command == "take":
            answer = json.dumps(loop.take())
        else:
            answer = f"unknown command: {command}"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
