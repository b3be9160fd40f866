# SPDX-License-Identifier: Apache-2.0
"""A job that holds so many MiB and works on all of them; told `go`, it answers its steps a second.

`--kind` says what the process does besides: `ordinary` nothing, `pandas` imports it, `blocking` has
a thread that blocks all signals and sleeps.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from pathlib import Path

PIECES = 16


def begin(kind: str) -> None:
    """Become a process of that kind."""
    if kind == "pandas":
        import pandas

        pandas.DataFrame({"a": ["x", "y"]}).sort_values("a")
    if kind == "blocking":
        threading.Thread(target=sleep_deaf, daemon=True).start()


def sleep_deaf() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(3600)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--kind", choices=("ordinary", "pandas", "blocking"), default="ordinary")
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    begin(arguments.kind)
    import torch

    import commensal

    pieces = [torch.ones((arguments.mib << 18) // PIECES) for _ in range(PIECES)]
    rate = 0.0

    def step() -> None:
        for piece in pieces:
            piece.add_(1.0)
        commensal.step()

    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        count, began = 0, time.monotonic()
        while (passed := time.monotonic() - began) < arguments.seconds:
            step()
            count += 1
        rate = count / passed
        print(repr(rate), flush=True)
    arguments.result.write_text(json.dumps({"steps_per_second": rate}))


if __name__ == "__main__":
    main()
