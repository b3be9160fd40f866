# SPDX-License-Identifier: Apache-2.0
"""Whether a command can be started at all: what is told before a job waits for hours to fail."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["problem_with"]

_PYTHON = re.compile(r"python[0-9.]*")


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


def _script_of(command: Sequence[str]) -> str | None:
    """Return the script that Python is given; None if it is given something else."""
    if not _PYTHON.fullmatch(Path(command[0]).name):
        return None
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-"):
            return word
        if word == "-" or word.startswith("--"):  # stdin; a long option, which may take a word
            return None
        for place, letter in enumerate(word[1:], start=2):
            if letter in "cm":
                return None
            if letter in "WX":  # these take the rest of the word, or the next one
                if place == len(word):
                    next(words, None)
                break
    return None
