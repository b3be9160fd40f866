# SPDX-License-Identifier: Apache-2.0
"""Whether a command can be started at all: what is told before a job waits for hours to fail; and
why one that was started was not managed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from commensal._environment import told_to_run

__all__ = ["problem_with", "why_unmanaged"]

_PYTHON = re.compile(r"python[0-9.]*")
_LOOK_SECONDS = 10.0


def problem_with(command: Sequence[str], directory: Path, environ: Mapping[str, str]) -> str:
    """Say why a command cannot be started in a folder with an environment; empty: it can.

    Looks at the program and, if that is Python, at the script; knows no other program's arguments.
    """
    program = command[0]
    if os.sep in program:
        file = directory / program
        if not file.exists():
            return f"no such file: {str(file)!r}"
        if file.is_dir() or not os.access(file, os.X_OK):
            return f"not a program: {str(file)!r}"
    elif shutil.which(program, path=environ.get("PATH", os.defpath)) is None:
        hint = f" (did you mean 'python {program}'?)" if (directory / program).is_file() else ""
        return f"command not found: {program!r}{hint}"
    script = _script_of(command)
    if script is not None and not (directory / script).exists():
        return f"no such file: {str(directory / script)!r}"
    return ""


def why_unmanaged(command: Sequence[str], directory: Path, environ: Mapping[str, str]) -> str:
    """Say why a command that has ended imported no PyTorch that commensal could manage."""
    if problem := problem_with(command, directory, environ):
        return problem
    if _is_python(command[0]) and not _has_commensal(command[0], directory, environ):
        return (
            f"{command[0]} has no commensal: start the script with {sys.executable}, "
            "or install commensal there"
        )
    return "the script did not import PyTorch: it has no 'import torch', or ended before it"


def _has_commensal(program: str, directory: Path, environ: Mapping[str, str]) -> bool:
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('commensal') is None)"
    try:
        done = subprocess.run(
            [program, "-c", look],
            cwd=directory,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_LOOK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True  # not known: nothing is said against it
    return done.returncode != 1


def _is_python(program: str) -> bool:
    return _PYTHON.fullmatch(Path(program).name) is not None


def _script_of(command: Sequence[str]) -> str | None:
    """Return the script that Python is given; None if it is given something else."""
    how, what = told_to_run(command) if _is_python(command[0]) else ("", "")
    return what if not how and what not in ("", "-") else None
