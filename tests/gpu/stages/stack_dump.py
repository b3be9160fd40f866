# SPDX-License-Identifier: Apache-2.0
"""Has Python processes that are not done in time write their stacks before they end.

They do it themselves, on SIGABRT: `stacks/sitecustomize.py` prepares each for it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["LATE", "abort_tree", "dump_stacks", "program_of", "run_within", "send"]

LATE = 124  # exit code of what is not done in time, as timeout(1) has it
LAST_WORDS = 2000  # characters
DUMP_SECONDS = 1.0  # for a process that writes its stack
END_SECONDS = 20.0


def dump_stacks(pids: Sequence[int], log: Path) -> None:
    """End the Python processes among some; each adds its stack to the log. Until then nothing moves
    in any of them, and those that are not Python stay stopped.
    """
    for pid in pids:
        send(pid, signal.SIGSTOP)
    for pid in pids:
        if "python" not in program_of(pid):
            continue
        with log.open("ab") as file:
            file.write(f"--- stack of {pid}: {command_of(pid)}\n".encode())
        send(pid, signal.SIGABRT)
        send(pid, signal.SIGCONT)
        end = time.monotonic() + DUMP_SECONDS
        while lives(pid) and time.monotonic() < end:
            time.sleep(0.005)


def abort_tree(pid: int) -> None:
    """In a stage: dump a process and its descendants, and end them all."""
    pids = tree(pid)
    if log := os.environ.get("STAGE_STACKS"):
        dump_stacks(pids, Path(log))
    for each in pids:
        send(each, signal.SIGKILL)


def run_within(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """In a stage: run a command; return its exit code and its last words. One that takes longer has
    code 124, and its stacks are in the stage's log.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            code, late = process.wait(max(1.0, seconds)), ""
        except subprocess.TimeoutExpired:
            abort_tree(process.pid)
            code, late = LATE, "not done in time: "
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it for long
            process.wait(END_SECONDS)
        said.seek(0)
        return code, late + said.read()[-LAST_WORDS:]


def tree(pid: int) -> list[int]:
    """Return a process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := status_of(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:  # it grows
        found += children.get(each, [])
    return found


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def status_of(pid: int) -> list[str]:
    """Return the fields of a process from its state on; empty: there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def lives(pid: int) -> bool:
    fields = status_of(pid)
    return bool(fields) and fields[0] not in "ZX"


def program_of(pid: int) -> str:
    """Return the name of a process' program."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return "?"


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return b" ".join(words).decode(errors="replace").strip()[:400]
    return "?"
