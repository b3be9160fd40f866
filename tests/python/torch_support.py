# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of the PyTorch adaptor, each in a process of its own.

A session exists once a process, so a test module writes each scenario as a function that runs in
a process of its own (forked.py) and returns facts (plain JSON) for the tests to judge::

    def scenario() -> Facts:
        job = Job.start(limit_bytes=64 << 20)
        ...
        return {"served": job.owns(tensor.data_ptr())}

    @pytest.fixture(scope="module")
    def facts() -> Facts:
        return run_scenario(scenario)

The libraries come from the newest build folder that has them, or from the folder that
``COMMENSAL_TEST_LIBRARY_DIR`` names (``ctest`` sets it, with what a sanitizer's build needs).
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest

Facts = dict[str, Any]

NO_LIMIT = 2**64 - 1
MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]
TESTING_LIBRARY = "libcommensal_torch_testing.so"


def library_dir() -> Path | None:
    """Return the folder with the adaptor and the test library, None if nothing is built."""
    if named := os.environ.get("COMMENSAL_TEST_LIBRARY_DIR"):
        return Path(named)
    return newest_build(TESTING_LIBRARY)


def newest_build(library: str) -> Path | None:
    """Return the folder of the newest built ``library``, None if there is none.

    Those that ask for a sanitizer do not count: Python would have to load that before them.
    """
    built = (ROOT / "build").glob(f"**/{library}")
    plain = [path for path in built if b"__asan_init" not in path.read_bytes()]
    return max(plain, key=lambda path: path.stat().st_mtime).parent if plain else None


def adaptor_path() -> Path:
    """Return the adaptor's file."""
    folder = library_dir()
    assert folder is not None
    [adaptor] = folder.glob("libcommensal_torch-*.so")
    return adaptor


def run_scenario(
    scenario: Callable[..., Facts], *arguments: Any, deadline_s: float = 180, **environment: str
) -> Facts:
    """Run ``scenario(*arguments)`` in a process of its own and return its facts.

    Fails the test if the process crashes, raises, or is not done by the deadline.
    """
    if library_dir() is None:
        pytest.skip(f"{TESTING_LIBRARY} is not built: build the project with COMMENSAL_TORCH=ON")
    with tempfile.TemporaryDirectory(prefix="commensal-test-") as folder:
        answer = Path(folder, "facts.json")
        command = [sys.executable, __file__, scenario.__module__, scenario.__name__]
        process = forked.start(
            [*command, json.dumps(arguments), str(answer)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "2", **environment},
        )
        try:
            output, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints where every thread is
            output, _ = process.communicate()
            pytest.fail(f"{scenario.__name__} not done after {deadline_s:.0f} s:\n{output}")
        if process.returncode != 0:
            pytest.fail(f"{scenario.__name__} ended with {process.returncode}:\n{output}")
        facts: Facts = json.loads(answer.read_text())
        return facts


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 60) -> None:
    """Wait for a condition; raise if the deadline passes first."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline_s} s: {what}")
        time.sleep(0.001)


class Job:
    """The session of this process, with the adaptor under torch."""

    def __init__(self, library: ctypes.CDLL, adaptor: ctypes.CDLL) -> None:
        self._library = library
        self.adaptor = adaptor

    @classmethod
    def start(
        cls,
        limit_bytes: int = NO_LIMIT,
        *,
        host_cap_bytes: int = NO_LIMIT,
        job_class: str = "opportunistic",
        law: str = "open",
        install: bool = True,
        cut_into_a_move: tuple[bool, int] | None = None,
    ) -> Job:
        """Start a session without a coordinator and put it under torch.

        ``cut_into_a_move``: whether moves stop threads, as they always do in production, and how
        many milliseconds the first one waits for a step between its comparison and its exchange.
        """
        import torch  # noqa: F401  (the adaptor binds to the libraries that it loads)

        folder = library_dir()
        assert folder is not None
        library = ctypes.CDLL(str(folder / TESTING_LIBRARY))
        adaptor = ctypes.CDLL(str(adaptor_path()))
        _declare(library, adaptor)
        job = cls(library, adaptor)
        if cut_into_a_move is not None:
            library.commensal_testing_cut_into_a_move(*cut_into_a_move)
        if install:
            spill_dir = os.environ.get("COMMENSAL_SPILL_DIR", "/var/tmp")
            error = library.commensal_testing_start(
                job_class.encode(), limit_bytes, host_cap_bytes, law.encode(), spill_dir.encode()
            )
            error = error or adaptor.commensal_torch_install()
            if error:
                raise RuntimeError(error.decode())
        return job

    @property
    def chunks_compared(self) -> int:
        """Count the comparisons of chunks that moves ended with; of `cut_into_a_move`."""
        return int(self._library.commensal_testing_compared())

    @property
    def steps_in_a_move(self) -> int:
        """Count the steps that began and ended within the first move; of `cut_into_a_move`."""
        return int(self._library.commensal_testing_steps_in())

    def stepped(self) -> None:
        """Say that a step ended; of `cut_into_a_move`."""
        self._library.commensal_testing_stepped()

    def shutdown(self) -> None:
        """End the session, as at the end of the process."""
        self._library.commensal_testing_shutdown()

    def set_limit(self, limit_bytes: int) -> int:
        """Set the limit and enforce it; return the bytes that are deferred."""
        self._library.commensal_testing_set_limit(limit_bytes)
        return int(self._library.commensal_testing_deferred())

    def shrink(self, amount_bytes: int = NO_LIMIT) -> int:
        """Move device memory out without changing the limit; return the bytes given back."""
        return int(self._library.commensal_testing_shrink(amount_bytes))

    def grow(self, amount_bytes: int = NO_LIMIT) -> int:
        """Bring live memory back; return its bytes."""
        return int(self._library.commensal_testing_grow(amount_bytes))

    def reason(self) -> str:
        """Say why the last change was deferred."""
        return str(self._library.commensal_testing_reason().decode())

    def owns(self, address: int) -> bool:
        """Tell whether an address is managed."""
        return bool(self._library.commensal_testing_owns(address))

    def tier_of(self, address: int) -> str:
        """Name the tier of the chunk at an address."""
        return str(self._library.commensal_testing_tier_of(address).decode())

    def pause(self) -> None:
        """Close the gate."""
        self._library.commensal_testing_pause()

    def resume(self) -> None:
        """Open the gate."""
        self._library.commensal_testing_resume()

    def resume_after(self, milliseconds: int) -> None:
        """Open the gate after a while, whoever holds Python's lock then."""
        self._library.commensal_testing_resume_after(milliseconds)

    def pass_gate(self, *, keep_pythons_lock: bool = False) -> None:
        """Come to the gate as an op does, though nothing here is one."""
        if not keep_pythons_lock:
            self._library.commensal_testing_pass_gate()
            return
        ctypes.PyDLL(self._library._name).commensal_testing_pass_gate()

    def wants_callback(self) -> bool:
        """Tell whether the op callback is on."""
        return bool(self._library.commensal_testing_wants_callback())

    def ops_in_flight(self) -> int:
        """Count threads inside of an op that they entered through the gate."""
        return int(self._library.commensal_testing_ops_in_flight())

    def has_current(self) -> bool:
        """Tell whether this process (a forked child, perhaps) has an active session."""
        return bool(self._library.commensal_testing_has_current())

    def stats(self) -> dict[str, Any]:
        """Return the statistics of docs/stats.md."""
        stats: dict[str, Any] = json.loads(self._library.commensal_testing_stats())
        return stats

    def memory(self, name: str) -> int:
        """Return one statistic of memory."""
        return int(self.stats()["memory"][name])

    def ops_gated(self) -> int:
        """Count the ops that had to wait so far."""
        return int(self.stats()["gate"]["ops_gated_total"])

    @contextmanager
    def moving(self, pause_s: float = 0.0) -> Iterator[Facts]:
        """Move all live memory out and back, again and again, while the body runs."""
        counts: Facts = {"rounds": 0, "deferred": []}
        stop = threading.Event()

        def move() -> None:
            while not stop.is_set():
                self.shrink()
                if reason := self.reason():
                    counts["deferred"].append(reason)
                time.sleep(pause_s)
                self.grow()
                time.sleep(pause_s)
                counts["rounds"] += 1

        before = self.memory("moved_out_bytes_total")
        thread = threading.Thread(target=move, name="mover")
        thread.start()
        try:
            yield counts
        finally:
            stop.set()
            thread.join()
            counts["moved_bytes"] = self.memory("moved_out_bytes_total") - before
            counts["deferred"] = sorted(set(counts["deferred"]))


def _declare(library: ctypes.CDLL, adaptor: ctypes.CDLL) -> None:
    text, size, number = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int
    for name, result, arguments in (
        ("start", text, [text, size, size, text, text]),
        ("cut_into_a_move", None, [number, number]),
        ("stepped", None, []),
        ("compared", number, []),
        ("steps_in", number, []),
        ("set_limit", size, [size]),
        ("shrink", size, [size]),
        ("grow", size, [size]),
        ("deferred", size, []),
        ("reason", text, []),
        ("owns", number, [ctypes.c_void_p]),
        ("tier_of", text, [ctypes.c_void_p]),
        ("pause", None, []),
        ("resume", None, []),
        ("wants_callback", number, []),
        ("ops_in_flight", size, []),
        ("pass_gate", None, []),
        ("resume_after", None, [number]),
        ("stats", text, []),
        ("has_current", number, []),
        ("shutdown", None, []),
    ):
        function = getattr(library, f"commensal_testing_{name}")
        function.restype, function.argtypes = result, arguments
    adaptor.commensal_torch_install.restype = text
    adaptor.commensal_torch_install.argtypes = []
    adaptor.commensal_torch_built_for.restype = text
    adaptor.commensal_torch_built_for.argtypes = []
    adaptor.commensal_torch_check.restype = text
    adaptor.commensal_torch_check.argtypes = [text]


def _main(module: str, function: str, arguments: str, answer: str) -> None:
    import faulthandler

    faulthandler.enable()  # SIGABRT is how run_scenario ends a process that is late
    scenario = getattr(importlib.import_module(module), function)
    facts = scenario(*json.loads(arguments))
    Path(answer).write_text(json.dumps(facts))


if __name__ == "__main__":
    _main(*sys.argv[1:])
