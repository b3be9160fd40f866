# SPDX-License-Identifier: Apache-2.0
"""`commensal run` becomes the script: descriptors, signals, exit codes. No PyTorch needed."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

pytestmark = pytest.mark.fresh_process("how commensal run becomes its script")

RUN = [str(COMMENSAL), "run", "--quiet", "--"]

# Prints "ready", then each signal that it gets; SIGTERM ends it with code 7. A handler runs at any
# point of a print, which cannot be entered twice: it writes to the descriptor itself.
LISTENER = """
import os, signal, sys, time
def tell(number, frame):
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
    if number == signal.SIGTERM:
        sys.exit(7)
for name in ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2"):
    signal.signal(getattr(signal, "SIG" + name), tell)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.05)  # pause() could miss a signal that comes just before it
"""


@pytest.fixture
def listener(world: World) -> subprocess.Popen[str]:
    """A running script behind `commensal run`, which leads a process group of its own."""
    process = world.start([*RUN, sys.executable, world.script(LISTENER)], start_new_session=True)
    read_line(process, "ready")
    return process


def test_the_script_takes_the_launchers_place(world: World) -> None:
    script = world.script(
        """
import os
print(os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
try:
    os.wait()
except ChildProcessError:
    print("no children")
"""
    )
    process = world.start([str(COMMENSAL), "run", "--", sys.executable, script])
    out, _ = process.communicate(timeout=DEADLINE)
    ids = [process.pid, os.getpid(), os.getpgrp(), os.getsid(0)]
    assert out.splitlines() == [" ".join(map(str, ids)), "no children"]


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
def test_a_signal_for_the_job_arrives_once(listener: subprocess.Popen[str], name: str) -> None:
    listener.send_signal(getattr(signal, f"SIG{name}"))
    assert read_line(listener, "got") == f"got SIG{name}\n"
    listener.send_signal(signal.SIGTERM)
    rest, _ = listener.communicate(timeout=DEADLINE)
    assert rest == "got SIGTERM\n"  # and nothing twice
    assert listener.returncode == 7


def test_a_signal_for_the_whole_group_arrives_once(listener: subprocess.Popen[str]) -> None:
    os.killpg(listener.pid, signal.SIGUSR1)
    assert read_line(listener, "got") == "got SIGUSR1\n"
    os.killpg(listener.pid, signal.SIGTERM)
    rest, _ = listener.communicate(timeout=DEADLINE)
    assert rest == "got SIGTERM\n"
    assert listener.returncode == 7


class TestWatcher:
    """What stays behind to say the last line: harmless, and gone soon after."""

    NOTHING = "commensal: nothing was managed"

    @pytest.fixture
    def job(self, world: World) -> subprocess.Popen[str]:
        command = [str(COMMENSAL), "run", "--", sys.executable, world.script(LISTENER)]
        process = world.start(command, start_new_session=True)
        read_line(process, "ready")
        return process

    def test_says_the_last_line_of_a_job_that_was_killed_with_its_group(
        self, world: World, job: subprocess.Popen[str]
    ) -> None:
        assert list(world.folder.glob("commensal-run-*"))
        os.killpg(job.pid, signal.SIGKILL)
        _, errors = job.communicate(timeout=DEADLINE)  # ends when the watcher lets go of stderr
        assert errors.startswith(self.NOTHING)
        assert errors.count("\n") == 1
        assert job.returncode == -signal.SIGKILL
        wait_until("folder gone", lambda: not list(world.folder.glob("commensal-run-*")))

    def test_holds_stderr_alone(self, job: subprocess.Popen[str]) -> None:
        [watcher] = _watchers(job.pid)
        links = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{watcher}/fd")]
        ours = os.readlink(f"/proc/{job.pid}/fd/2")
        assert sorted(links) == sorted([os.devnull] * 2 + ["anon_inode:[pidfd]", ours])
        assert os.readlink(f"/proc/{watcher}/cwd") == "/"

    def test_says_nothing_about_a_command_that_did_not_start(self, world: World) -> None:
        done = world.run([str(COMMENSAL), "run", "--", "no-such-command-here"])
        assert done.stderr == "commensal: command not found: no-such-command-here\n"

    def test_a_quiet_job_has_none(self, listener: subprocess.Popen[str]) -> None:
        assert _watchers(listener.pid) == []


def _watchers(script: int) -> list[int]:
    """Find who waits for a process by a pidfd, outside of its session."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(COMMENSAL) in command and process.pid != script:
            for info in Path(f"/proc/{process.pid}/fdinfo").iterdir():
                if f"\nPid:\t{script}\n" in info.read_text():
                    found.append(process.pid)
    return found


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


def test_no_signal_is_ignored_that_was_not_before(world: World) -> None:
    script = ["/bin/sh", "-c", "grep -E 'Sig(Ign|Cgt|Blk)' /proc/self/status"]
    assert world.run([*RUN, *script]).stdout == world.run(script).stdout


class TestTerminal:
    """The same on a terminal, whose keys signal the whole process group."""

    def test_a_key_arrives_once(self, world: World) -> None:
        command = [*RUN, sys.executable, world.script(LISTENER)]
        with _on_terminal(world, command) as (process, master):
            _read_until(master, b"ready")
            os.write(master, b"\x03")  # Ctrl-C
            seen = _read_until(master, b"got SIGINT")
            process.send_signal(signal.SIGTERM)
            seen += _read_until(master, b"got SIGTERM")
            assert seen.count(b"got SIGINT") == 1
            assert process.wait(DEADLINE) == 7

    def test_a_shell_can_stop_a_job_and_go_on_with_it(self, world: World) -> None:
        command = " ".join([*RUN, sys.executable, world.script(LISTENER)])
        shell = f"set -m; {command}; echo code $?; fg; echo code $?"
        with _on_terminal(world, ["/bin/sh", "-c", shell]) as (process, master):
            script = int(_read_until(master, b"\n").split(b"ready")[1])
            os.write(master, b"\x1a")  # Ctrl-Z
            _read_until(master, b"code %d" % (128 + signal.SIGTSTP))
            os.kill(script, signal.SIGUSR1)
            seen = _read_until(master, b"got SIGUSR1")
            os.kill(script, signal.SIGTERM)
            seen += _read_until(master, b"code 7")
            assert seen.count(b"got SIGUSR1") == 1
            assert process.wait(DEADLINE) == 0


@contextmanager
def _on_terminal(
    world: World, command: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a command as the leader of a terminal's session; the other end comes with it."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
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


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(master: int, wanted: bytes) -> bytes:
    seen = b""
    end = time.monotonic() + DEADLINE
    while wanted not in seen:
        readable, _, _ = select.select([master], [], [], max(0.0, end - time.monotonic()))
        assert readable, seen
        seen += os.read(master, 1000)
    return seen
