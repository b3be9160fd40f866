# SPDX-License-Identifier: Apache-2.0
"""What a guaranteed job has of its minimum beside a neighbour that cannot give memory back.

The neighbour has the memory first and then sleeps, so that memory is all that they share. Each
measurement of a kind of neighbour has one of an ordinary neighbour next to it, in turns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from harness import Bar, Bench, Result, Script

from commensal.demo.processes import Daemon
from commensal.demo.statistics import bootstrap_interval

MiB = 1 << 20
BUDGET, NEIGHBOUR, GUARANTEED, MINIMUM = 1024, 700, 700, 800  # MiB
KINDS = ("pandas", "blocking", "stopped")


def run(*, quick: bool) -> Result:
    """Compare a guaranteed job's speed beside each kind of neighbour and beside an ordinary one."""
    pairs, seconds = (1, 1.0) if quick else (7, 10.0)
    result = Result(
        "minimum",
        f"A guaranteed job's steps beside a neighbour that keeps its memory ({pairs} pairs)",
        ["neighbour", "of the speed beside an ordinary one", "95 % interval"],
    )
    bench = Bench(result, quick=quick)
    for kind in KINDS:
        if kind == "pandas" and importlib.util.find_spec("pandas") is None:
            result.notes.append("pandas is not installed: its row is left out")
            continue
        rates: dict[str, list[float]] = {kind: [], "ordinary": []}
        for number in range(pairs):
            order = (kind, "ordinary") if number % 2 == 0 else ("ordinary", kind)
            for one in order:
                rate = bench.window(
                    f"{kind}, pair {number + 1}: {one}", lambda one=one: beside(one, seconds)
                )
                rates[one].append(rate)
        ratios = [ours / plain for ours, plain in zip(rates[kind], rates["ordinary"], strict=True)]
        interval = bootstrap_interval([ratios], lambda drawn: float(np.median(drawn[0])))
        result.figures[kind] = {"steps_per_second": rates, "ratios": ratios}
        spread = f"{interval.low:.3f} to {interval.high:.3f}"
        result.rows.append((kind, f"{median(ratios):.3f}", spread))
        result.bars.append(Bar(f"{kind}: upper end of the interval", interval.high, least=0.95))
    return result


@contextlib.contextmanager
def stopped(job: Script) -> Iterator[None]:
    """Keep a job stopped meanwhile."""
    os.kill(job.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(job.pid, signal.SIGCONT)


def beside(kind: str, seconds: float) -> float:
    """Return the steps a second of a guaranteed job that comes for a neighbour's memory."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="commensal-bench-"))
        daemon = stack.enter_context(Daemon(Path(folder) / "run", BUDGET * MiB))

        def start(job_class: str, mib: int, *more: str, does: str = "ordinary") -> Script:
            return stack.enter_context(
                Script(
                    *("minimum_job.py", "--mib", f"{mib}", "--kind", does),
                    *("--seconds", repr(seconds)),
                    launcher=daemon.launcher(job_class, job_class, "--quiet", *more),
                    environment=daemon.environment(),
                )
            )

        does = kind if kind in ("pandas", "blocking") else "ordinary"
        neighbour = start("opportunistic", NEIGHBOUR, "--no-idle-class", does=does)
        if kind == "stopped":
            stack.enter_context(stopped(neighbour))
        guaranteed = start("guaranteed", GUARANTEED, "--memory", f"{MINIMUM}MiB")
        return float(guaranteed.tell("go"))
