# SPDX-License-Identifier: Apache-2.0
"""The program commensal-simulate: where it is, what it knows, and what its failures mean."""

from __future__ import annotations

import difflib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commensal._coordinator import find_program

__all__ = [
    "BadInput",
    "Listed",
    "SimulatorFailed",
    "find_simulator",
    "generate",
    "listed",
    "nearest",
]

PROGRAM = "commensal-simulate"
BAD_INPUT = 2  # its exit code


class SimulatorFailed(Exception):
    """The program is missing, or ended with an error that is not the user's."""


class BadInput(SimulatorFailed):
    """An option, a trace or a cluster that cannot be used; the text names it."""


@dataclass(frozen=True)
class Listed:
    """What the program knows by name."""

    policies: dict[str, str]  # with what each does
    formats: tuple[str, ...]
    semantics: tuple[str, ...]
    predictors: tuple[str, ...]

    def check(self, kind: str, names: Sequence[str]) -> None:
        """Raise BadInput for a name that is not known, with the nearest one that is."""
        known = {
            "policy": tuple(self.policies),
            "format": self.formats,
            "semantics": self.semantics,
            "predictor": self.predictors,
        }[kind]
        for name in names:
            if name not in known:
                raise BadInput(f"there is no {kind} {name!r}; did you mean {nearest(name, known)}?")


def nearest(name: str, names: Sequence[str]) -> str:
    """Return the name that somebody may have meant."""
    return difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.0)[0]


def find_simulator() -> Path:
    """Return the program."""
    found = find_program(PROGRAM)
    if found is None:
        raise SimulatorFailed(
            f"{PROGRAM} is not installed beside this command: ./scripts/setup builds it"
        )
    return found


def listed(program: Path) -> Listed:
    """Ask the program what it knows."""
    policies = _ask(program, ["--list-policies"])["policies"]
    known = _ask(program, ["--list-formats"])
    return Listed(
        {policy["name"]: policy["summary"] for policy in policies},
        tuple(known["formats"]),
        tuple(known["semantics"]),
        tuple(known["predictors"]),
    )


def generate(program: Path, arguments: Sequence[str]) -> int:
    """Let the program write jobs that it makes up; return how many."""
    return int(_ask(program, arguments)["trace"]["jobs"])


def failure(code: int, said: str) -> SimulatorFailed:
    """Return the error that an exit code and a text on stderr mean."""
    text = said.strip().removeprefix(f"{PROGRAM}: ")
    if code == BAD_INPUT:
        return BadInput(text)
    if code < 0:
        return SimulatorFailed(f"{PROGRAM} was ended by signal {-code}")
    return SimulatorFailed(text or f"{PROGRAM} ended with code {code}")


def _ask(program: Path, arguments: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise failure(done.returncode, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
