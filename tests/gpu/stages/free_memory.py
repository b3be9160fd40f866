# SPDX-License-Identifier: Apache-2.0
"""What other processes see of a card's memory: NVML's numbers, asked by a process of its own.

    free_memory.py UUID SOCKET POLL_SECONDS

serves `Watch` on a socket until its standard input ends. It makes no CUDA call, so it holds no
memory of the card. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["CardMemory", "Watch", "Watcher"]

LIBRARY = "libnvidia-ml.so.1"
MOST_PROCESSES = 256


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class CardMemory:
    """The memory of one card. Raises OSError where NVML cannot be used."""

    def __init__(self, uuid: str) -> None:
        """`uuid`: as NVML writes it, or as CUDA does, without what it is in front."""
        self._library = ctypes.CDLL(LIBRARY)
        self._call("nvmlInit_v2")
        self._card = ctypes.c_void_p()
        names = [uuid] if "-" in uuid[:4] else [f"GPU-{uuid}", f"MIG-{uuid}"]
        for name in names:
            asked = self._library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(self._card))
            if asked == 0:
                return
        raise OSError(f"NVML knows no device {names[0]!r}")

    def free(self) -> int:
        """Return the bytes that any process could have now."""
        told = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._card, ctypes.byref(told))
        return int(told.free)

    def held_by(self, pid: int) -> int | None:
        """Return the bytes that a process holds; None if NVML does not show it."""
        count = ctypes.c_uint(MOST_PROCESSES)
        found = (_Process * MOST_PROCESSES)()
        self._call(
            "nvmlDeviceGetComputeRunningProcesses_v3", self._card, ctypes.byref(count), found
        )
        held = [int(one.used) for one in found[: count.value] if one.pid == pid]
        return held[0] if held else None

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise OSError(f"{name} failed with code {code}")


def serve_one(connection: socket.socket, card: CardMemory, poll_seconds: float) -> None:
    """Answer one process's questions until it hangs up."""
    with connection, connection.makefile("rw", encoding="ascii", newline="\n") as lines:

        def tell(*words: object) -> None:
            lines.write(" ".join(map(str, words)) + "\n")
            lines.flush()

        for line in lines:
            question, *numbers = line.split()
            if question == "free":
                tell(card.free())
            elif question == "held":
                tell(card.held_by(int(numbers[0])))
            else:  # until BYTES are free, SECONDS at most
                least, end = int(numbers[0]), time.monotonic() + float(numbers[1])
                tell("armed")
                while (free := card.free()) < least and time.monotonic() < end:
                    time.sleep(poll_seconds)
                tell(time.monotonic(), free)


class Watch:
    """One process's way to the watcher. Not for use by several threads."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(120.0)
        self._socket.connect(path)
        self._lines = self._socket.makefile("rw", encoding="ascii", newline="\n")
        self._least = 0

    def free(self) -> int:
        return int(self._ask("free"))

    def held(self, pid: int) -> int | None:
        answer = self._ask(f"held {pid}")
        return None if answer == "None" else int(answer)

    def arm(self, least: int, seconds: float = 10.0) -> None:
        """Watch from now on until so many bytes are free; `seen` must follow."""
        self._least = least
        self._ask(f"until {least} {seconds}")

    def seen(self) -> float | None:
        """Return when they were free, None if they were not in time."""
        when, free = self._answer().split()
        return float(when) if int(free) >= self._least else None

    def _ask(self, question: str) -> str:
        self._lines.write(question + "\n")
        self._lines.flush()
        return self._answer()

    def _answer(self) -> str:
        answer = self._lines.readline().strip()
        if not answer:
            raise OSError("the watcher of free memory has ended")
        return answer


class Watcher:
    """The watching process, for as long as the block lasts."""

    def __init__(self, uuid: str, folder: Path, poll_seconds: float) -> None:
        """Raises OSError with NVML's reason where the card cannot be watched."""
        self.path = str(folder / "free-memory.sock")
        command = [sys.executable, __file__, uuid, self.path, str(poll_seconds)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if said != "ready":
            rest = self._process.stdout.read().strip()
            self._process.wait()
            raise OSError((rest.splitlines() or [said])[-1])

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self._process.communicate()  # its standard input ends, and so it does


def main(uuid: str, path: str, poll_seconds: str) -> None:
    card = CardMemory(uuid)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def accept() -> None:
            while True:
                served = (listener.accept()[0], card, float(poll_seconds))
                threading.Thread(target=serve_one, args=served, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
