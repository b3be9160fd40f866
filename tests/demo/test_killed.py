# SPDX-License-Identifier: Apache-2.0
"""A demo that is killed, or whose terminal is closed, leaves no process and no folder behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp

import psutil
import pytest

DEADLINE = 120.0

# A demo in the window with most processes, cut down: a daemon, and a job under it that trains.
SMALL_DEMO = """
import sys, time
from pathlib import Path
from commensal._lifetime import temporary_folder
from commensal.demo.processes import Daemon, Job

with temporary_folder("commensal-demo-") as folder, Daemon(folder / "run", 64 << 20) as daemon:
    launcher = daemon.launcher("opportunistic", "o", "--no-idle-class")
    job = Job("o", [sys.argv[1]], folder, launcher=launcher, environment=daemon.environment())
    with job:
        while not job.output.read_text().endswith("training\\n"):
            time.sleep(0.05)
        print(job.pid, daemon._process.pid, flush=True)
        time.sleep(600)
"""
JOB = """
import tempfile, time, torch
with tempfile.TemporaryDirectory():
    print("training", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def hangups_end_programs() -> Iterator[None]:
    """Undo what `nohup` did: a program inherits that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def wait_until(what: str, condition: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"not within {DEADLINE:.0f} s: {what}"
        time.sleep(0.02)


def processes_of(folder: Path) -> list[psutil.Process]:
    """Everything whose temporary files or arguments are in the folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            at = str(folder)
            if at in process.environ().get("TMPDIR", "") or at in " ".join(process.cmdline()):
                found.append(process)
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for temporary files; what still runs from it is killed at the end.

    Its path is short: those of sockets have 107 bytes.
    """
    folder = Path(mkdtemp(prefix="cm-", dir="/tmp"))
    yield folder
    for process in processes_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def start(place: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_daemon_job_and_folder_go_with_the_demo(
    place: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "demo.py").write_text(SMALL_DEMO)
    (tmp_path / "job.py").write_text(JOB)
    demo = start(place, sys.executable, str(tmp_path / "demo.py"), str(tmp_path / "job.py"))
    assert demo.stdout is not None
    job, daemon = (psutil.Process(int(pid)) for pid in demo.stdout.readline().split())
    assert daemon.name() == "commensald"
    assert list(place.glob("commensal-demo-*/tmp*")), "the job's own folder"
    demo.send_signal(number)
    assert demo.wait(DEADLINE) == -number
    wait_until(
        "job and daemon have ended", lambda: not job.is_running() and not daemon.is_running()
    )
    wait_until("no folder is left", lambda: not list(place.iterdir()))
    wait_until("no process is left", lambda: not processes_of(place))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_the_whole_demo_leaves_nothing(place: Path, tmp_path: Path, number: signal.Signals) -> None:
    commensal = str(Path(sys.executable).parent / "commensal")
    demo = start(place, commensal, "demo", "--seconds", "1", "--out", str(tmp_path / "out"))
    wait_until("a job trains", lambda: list(place.glob("commensal-demo-*/*/*.log.jsonl")))
    demo.send_signal(number)
    ended_by_itself = 128 + number
    assert demo.wait(DEADLINE) == (-number if number == signal.SIGKILL else ended_by_itself)
    wait_until("no folder is left", lambda: not list(place.iterdir()))
    wait_until("no process is left", lambda: not processes_of(place))
