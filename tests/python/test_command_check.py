# SPDX-License-Identifier: Apache-2.0
"""What is told of a command before it is queued: its program and, for Python, its script."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from commensal._cluster import Cluster
from commensal.cli._command_check import problem_with, why_unmanaged
from commensal.cli.submit import _starts_here


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('trains')\n")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("python3", "python3.11", "tool"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    return tmp_path


def told(folder: Path, words: str) -> str:
    """Return what is said of a command, with the folder left out."""
    said = problem_with(shlex.split(words), folder, {"PATH": str(folder / "tools")})
    return said.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("python3 nosuch.py", "no such file: 'nosuch.py'"),
        ("python3.11 -u -W ignore -Xdev sub/nosuch.py x", "no such file: 'sub/nosuch.py'"),
        ("python3 /nowhere/train.py", "no such file: '/nowhere/train.py'"),
        ("./tools/python3 nosuch.py", "no such file: 'nosuch.py'"),
        ("nosuchprogram", "command not found: 'nosuchprogram'"),
        ("train.py", "command not found: 'train.py' (did you mean 'python train.py'?)"),
        ("./nosuch", "no such file: 'nosuch'"),
        ("./train.py", "not a program: 'train.py'"),
        ("./tools", "not a program: 'tools'"),
    ],
)
def test_what_cannot_start_is_named(folder: Path, words: str, says: str) -> None:
    assert told(folder, words) == says


@pytest.mark.parametrize(
    "words",
    [
        "python3 train.py nosuch.py",
        "python3 -u -W ignore train.py",
        "python3 -Xdev -B train.py",
        "python3 tools",
        "python3 -m nosuch.module",
        "python3 -c 'print(1)' nosuch",
        "python3 -Bc 'print(1)'",
        "python3 -",
        "python3 --check-hash-based-pycs never train.py",
        "python3",
        "tool nosuch.py",
        "./tools/tool nosuch.py",
        "/bin/sh -c nosuch",
    ],
)
def test_what_may_start_is_left_alone(folder: Path, words: str) -> None:
    assert told(folder, words) == ""


def test_the_path_is_that_of_the_job(folder: Path) -> None:
    assert problem_with(["tool"], folder, {"PATH": "/nowhere"}) == "command not found: 'tool'"
    assert problem_with([sys.executable, "train.py"], folder, {"PATH": "/nowhere"}) == ""


class Engine:
    """A coordinator that says which engine it has; none: nobody listens."""

    instance = "default"

    def __init__(self, name: str | None) -> None:
        self.name = name

    def listens(self) -> bool:
        return self.name is not None

    def ask(self, request: str) -> dict[str, Any]:
        assert request == "nodes"
        return {"coordinator": {"engine": self.name}}


@pytest.mark.parametrize(("engine", "here"), [("local", True), ("slurm", False), (None, True)])
def test_only_commands_that_start_here_are_refused(engine: str | None, here: bool) -> None:
    assert _starts_here(cast(Cluster, Engine(engine))) is here


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("python3 nosuch.py", "no such file: 'nosuch.py'"),
        ("python3 train.py", "the script did not import PyTorch"),
        ("tool train.py", "the script did not import PyTorch"),
        (
            "python3.11 train.py",
            f"python3.11 has no commensal: start the script with {sys.executable}, ",
        ),
    ],
)
def test_it_is_said_why_nothing_was_managed(folder: Path, words: str, says: str) -> None:
    (folder / "tools" / "python3.11").write_text("#!/bin/sh\nexit 1\n")  # what it is asked: no
    environ = {"PATH": str(folder / "tools")}
    said = why_unmanaged(shlex.split(words), folder, environ)
    assert said.replace(f"{folder}/", "").startswith(says)
