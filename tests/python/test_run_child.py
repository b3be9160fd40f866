# SPDX-License-Identifier: Apache-2.0
"""`commensal run` passes everything on: descriptors, signals, exit codes. No PyTorch needed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

RUN = [str(COMMENSAL), "run", "--quiet", "--"]

# Prints "ready", then each signal that it gets; SIGTERM ends it with code 7.
LISTENER = """
import os, signal, sys
def tell(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    signal.signal(getattr(signal, "SIG" + name), tell)
print("ready", os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def listener(world: World) -> tuple[subprocess.Popen[str], int]:
    """A running script behind `commensal run`, and its pid."""
    process = world.start([*RUN, sys.executable, world.script(LISTENER)])
    return process, int(read_line(process, "ready").split()[1])


def test_stdin_stdout_and_stderr_are_the_scripts_own(world: World) -> None:
    script = world.script(
        "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('trouble\\n')"
    )
    done = world.run([*RUN, sys.executable, script], stdin="abc\n")
    assert done.stdout == "ABC\n"
    assert "trouble\n" in done.stderr
    assert done.returncode == 0


def test_other_descriptors_are_inherited(world: World) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    script = world.script("import os, sys; os.write(int(sys.argv[1]), b'through')")
    subprocess.run(
        [*RUN, sys.executable, script, str(writing)],
        env=world.environ,
        close_fds=False,
        timeout=DEADLINE,
        check=True,
    )
    os.close(writing)
    assert os.read(reading, 100) == b"through"
    os.close(reading)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 42, 255])
def test_exit_codes_pass(world: World, code: int) -> None:
    assert world.run([*RUN, "/bin/sh", "-c", f"exit {code}"]).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
def test_ends_by_the_signal_that_ended_the_script(world: World, number: signal.Signals) -> None:
    done = world.run([*RUN, "/bin/sh", "-c", f"kill -{int(number)} $$"])
    assert done.returncode == -number
    assert "Traceback" not in done.stderr


def test_a_missing_command_is_127_and_one_that_cannot_run_126(world: World) -> None:
    missing = world.run([*RUN, "no-such-command-here"])
    assert missing.returncode == 127
    assert "command not found: no-such-command-here" in missing.stderr
    folder = world.run([*RUN, "/tmp"])
    assert folder.returncode == 126
    assert "cannot execute /tmp" in folder.stderr
    assert "Traceback" not in missing.stderr + folder.stderr


@pytest.mark.parametrize("name", ["HUP", "INT", "QUIT", "USR1", "USR2"])
def test_a_signal_for_the_launcher_reaches_the_script_once(
    listener: tuple[subprocess.Popen[str], int], name: str
) -> None:
    process, _ = listener
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert read_line(process, "got") == f"got SIG{name}\n"
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=DEADLINE)
    assert rest == "got SIGTERM\n"  # and nothing twice
    assert process.returncode == 7


def test_a_signal_for_the_script_alone_leaves_the_launcher_waiting(
    listener: tuple[subprocess.Popen[str], int],
) -> None:
    process, script = listener
    os.kill(script, signal.SIGUSR1)
    read_line(process, "got SIGUSR1")
    assert process.poll() is None
    os.kill(script, signal.SIGTERM)
    assert process.wait(DEADLINE) == 7


def test_stop_and_continue_reach_both(listener: tuple[subprocess.Popen[str], int]) -> None:
    process, script = listener
    launcher = psutil.Process(process.pid)
    process.send_signal(signal.SIGTSTP)
    for stopped in (launcher, psutil.Process(script)):
        wait_until("stopped", lambda one=stopped: one.status() == psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGCONT)
    wait_until("goes on", lambda: psutil.Process(script).status() != psutil.STATUS_STOPPED)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 7


def test_kill_9_of_the_launcher_takes_the_script_along(
    listener: tuple[subprocess.Popen[str], int],
) -> None:
    process, script = listener
    process.kill()
    wait_until("script gone", lambda: not _alive(script))


def test_a_signal_that_is_ignored_stays_ignored(world: World) -> None:
    script = world.script("import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    done = world.run(["nohup", *RUN, sys.executable, script])
    assert done.stdout == "True\n"


def test_the_script_starts_with_the_signal_mask_of_its_starter(world: World) -> None:
    script = world.script(
        "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    )
    plain = world.run([sys.executable, script])
    assert world.run([*RUN, sys.executable, script]).stdout == plain.stdout


class TestTerminal:
    """The same on a terminal, whose keys signal the whole process group."""

    @pytest.fixture
    def terminal(self, world: World) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
        master, slave = pty.openpty()
        process = subprocess.Popen(
            [*RUN, sys.executable, world.script(LISTENER)],
            env=world.environ,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  (no thread here)
        )
        os.close(slave)
        try:
            yield process, master
        finally:
            process.kill()
            process.wait()
            os.close(master)

    def test_a_key_arrives_once(self, terminal: tuple[subprocess.Popen[bytes], int]) -> None:
        process, master = terminal
        _read_until(master, b"ready")
        os.write(master, b"\x03")  # Ctrl-C
        seen = _read_until(master, b"got SIGINT")
        process.send_signal(signal.SIGTERM)
        seen += _read_until(master, b"got SIGTERM")
        assert seen.count(b"got SIGINT") == 1
        assert process.wait(DEADLINE) == 7


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(master: int, wanted: bytes) -> bytes:
    seen = b""
    end = time.monotonic() + DEADLINE
    while wanted not in seen:
        assert time.monotonic() < end, seen
        seen += os.read(master, 1000)
    return seen


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
