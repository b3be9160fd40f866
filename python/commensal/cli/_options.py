# SPDX-License-Identifier: Apache-2.0
"""What several commands share: exit codes, and wrong values that become usage errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer

from commensal._coordinator import Coordinator
from commensal._environment import check_instance

__all__ = ["NO_COORDINATOR", "REFUSED", "Instance", "blaming", "coordinator_of"]

NO_COORDINATOR = 3
REFUSED = 4


Instance = Annotated[
    str | None,
    typer.Option("--instance", help="Which coordinator of this machine.", metavar="NAME"),
]


def coordinator_of(context: typer.Context, instance: str | None) -> Coordinator:
    """Return the coordinator that a command is for: --instance may stand before or after it."""
    coordinator: Coordinator = context.obj
    with blaming("--instance"):
        return (
            coordinator
            if instance is None
            else replace(coordinator, instance=check_instance(instance))
        )


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Turn a ValueError raised inside into a usage error of an option (exit code 2)."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None
