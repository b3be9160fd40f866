# SPDX-License-Identifier: Apache-2.0
"""Shell completion, asked as a shell asks: by environment variables."""

from __future__ import annotations

import socket
import subprocess

import pytest
from test_run_training import start_job, stop_job
from world import COMMENSAL, World, wait_until

from commensal.cli._options import complete_jobs


def complete(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Return what bash gets for a command line whose last word is being typed."""
    return world.commensal(
        _COMMENSAL_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(("commensal", *words)),
        COMP_CWORD=str(len(words)),
    )


def test_a_name_that_several_have_is_completed_by_their_ids() -> None:
    jobs = [("a-1", "a"), ("a-2", "a"), ("b-1", "b")]
    assert complete_jobs(jobs, "") == ["a-1", "a-2", "b"]
    assert complete_jobs(jobs, "a") == ["a-1", "a-2"]
    assert complete_jobs(jobs, "b") == ["b"]
    assert complete_jobs(jobs, "b-") == ["b-1"]
    assert complete_jobs(jobs, "c") == []


def test_commands_and_options_are_completed(world: World) -> None:
    assert set(complete(world, "").stdout.split()) >= {"run", "top", "logs", "profile", "status"}
    assert complete(world, "pau").stdout.split() == ["pause"]
    assert "--follow" in complete(world, "logs", "x", "--f").stdout


@pytest.mark.parametrize("command", ["set", "pause", "resume", "logs", "status", "memory"])
def test_silent_without_a_coordinator(world: World, command: str) -> None:
    done = complete(world, command, "")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_silent_when_the_coordinator_does_not_answer(world: World) -> None:
    world.runtime_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(str(world.runtime_dir / "default.sock"))
        mute.listen()
        done = complete(world, "pause", "")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_names_of_jobs_come_from_the_coordinator_that_the_line_names(world: World) -> None:
    process = start_job(world, "trainer", "--guaranteed", "--instance", "second")
    assert complete(world, "pause", "").stdout.strip() == ""  # the default instance has none
    for command in ("set", "pause", "resume", "logs", "status"):
        assert complete(world, "--instance", "second", command, "").stdout.split() == ["trainer"]
    line = ("set", "--instance", "second", "tr")
    assert complete(world, *line).stdout.split() == ["trainer"]
    stop_job(world, "trainer", process)
    # One that ended has lines in the log, but nothing to pause.
    asked = ("--instance", "second")
    wait_until("it has ended", lambda: not complete(world, *asked, "pause", "").stdout.strip())
    assert complete(world, *asked, "logs", "").stdout.split() == ["trainer"]


def from_bash(world: World, *arguments: str, **environ: str) -> str:
    """Run the command from bash, which it finds among its parents; return what it says."""
    line = f'"{COMMENSAL}" {" ".join(arguments)}; exit $?'
    done = world.run(["bash", "-c", line], **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_for_this_shell_is_shown(world: World) -> None:
    assert "_COMMENSAL_COMPLETE=complete_bash" in from_bash(world, "--show-completion")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(world: World, shell: str) -> None:
    # Instead of looking at its parents it takes a name.
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = world.commensal("--show-completion", shell, **named)
    assert done.returncode == 0, done.stderr
    assert f"_COMMENSAL_COMPLETE=complete_{shell}" in done.stdout


def test_the_script_is_installed_where_the_shell_looks(world: World) -> None:
    from_bash(world, "--install-completion", HOME=str(world.folder))
    [script] = world.folder.glob(".bash_completions/*")
    assert "_COMMENSAL_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (world.folder / ".bashrc").read_text()
