# SPDX-License-Identifier: Apache-2.0
"""Runs the script of a job as Slurm would: its words, its output, the signals that Slurm sends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["body_of", "environ_for", "run_script", "settle_output"]

# What srun would ask for again, though a job in a seat has no `gpu`.
_OF_GPUS = {
    *("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET"),
    *("SLURM_CPUS_PER_GPU", "SLURM_MEM_PER_GPU", "SLURM_NTASKS_PER_GPU", "SLURM_TRES_PER_TASK"),
    *("SLURM_GPU_BIND", "SLURM_GPU_FREQ"),
}
# The pair's, which jobs that the script submits are not of.
_OF_PAIR = re.compile(r"SLURM_SPANK_(COMMENSAL_|_SLURM_SPANK_OPTION_commensal)")
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def body_of(text: bytes) -> bytes:
    """Return the user's script: what follows the three lines of job_submit.lua.

    @raises ValueError for anything else.
    """
    parts = text.split(b"\n", 3)
    if len(parts) < 4 or not parts[1].startswith(b"# commensal-slurm-auto:"):
        raise ValueError("this is no script of --commensal=auto")
    return parts[3]


def environ_for(
    job_class: str, environ: Mapping[str, str], devices: str | None = None
) -> dict[str, str]:
    """Return the script's variables; `devices`: the seats that Slurm set no variable for."""
    out = {name: value for name, value in environ.items() if not _OF_PAIR.match(name)}
    out["COMMENSAL_CLASS"] = job_class
    if job_class == "opportunistic":
        out = {name: value for name, value in out.items() if name not in _OF_GPUS}
        if devices is not None:
            out.setdefault("CUDA_VISIBLE_DEVICES", devices)
    return out


def settle_output(
    job_class: str, links: Sequence[str] = ("/proc/self/fd/1", "/proc/self/fd/2")
) -> None:
    """Give the output the name that the user gave it; of a name without a number Slurm would have
    made the same file for both twins. A twin that does not run the script keeps its own."""
    for link in links:
        path = os.readlink(link)
        name = path.removesuffix(f".commensal-{job_class}")
        if name != path and os.path.exists(path):  # stdout and stderr may be one
            os.replace(path, name)


def run_script(
    words: Sequence[str | Path], environ: Mapping[str, str], tick: Callable[[], float | None]
) -> int:
    """Run a program to its end and return its code, 128 and the number for a signal.

    `tick` is called while it runs; it returns the seconds to the next call, nothing for no more.
    Signals that a batch script may be sent are handed on.
    @raises OSError if it cannot be started.
    """
    waiting: list[int] = []  # signals that came before the program was there
    process: subprocess.Popen[bytes] | None = None

    def hand_on(number: int, _frame: object) -> None:
        if process is None:
            waiting.append(number)
        else:
            process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _FORWARDED}
    try:
        process = subprocess.Popen([str(word) for word in words], env=dict(environ))
        for number in waiting:
            process.send_signal(number)
        pause: float | None = 0.0
        while True:
            try:
                code = process.wait(pause)
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                pause = tick()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
