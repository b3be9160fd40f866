# SPDX-License-Identifier: Apache-2.0
"""What several commands share: wrong values become usage errors, our lines go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

__all__ = ["NO_COORDINATOR", "REFUSED", "blaming", "say"]

NO_COORDINATOR = 3
REFUSED = 4


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Turn a ValueError raised inside into a usage error of an option (exit code 2)."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


def say(line: str) -> None:
    """Print one line of ours on stderr, if anybody can read it."""
    try:
        print(f"commensal: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        return  # stderr is closed: nobody to tell
