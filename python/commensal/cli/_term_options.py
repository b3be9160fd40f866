# SPDX-License-Identifier: Apache-2.0
"""An option for each term of a job, made from its row (coordinator/wire/terms.h)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

import typer

from commensal._terms import Row, rows
from commensal.cli._options import blaming

__all__ = ["blaming_option", "with_terms"]

_VALUES = {
    "memory": "MIN[:MAX]",
    "share": "MIN[:MAX]",
    "law": "LAW",
    "percent": "PERCENT",
    "fraction": "MAX",
}


def with_terms(command: Callable[..., None], *, defaults: bool) -> Callable[..., None]:
    """Put options where a command has its parameter `terms`, which gets what was given, by name.

    Args:
        defaults: whether their help says what holds without them.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "terms":
            parameters += [_option(row, defaults=defaults) for row in rows()]
        else:
            parameters.append(parameter)

    def made(**given: Any) -> None:
        terms = {row.name: given.pop(row.name) for row in rows()}
        command(**given, terms=terms)

    made.__doc__ = command.__doc__
    made.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    made.__annotations__ = {each.name: each.annotation for each in parameters}
    return made


def blaming_option(row: Row) -> AbstractContextManager[None]:
    return blaming(row.option)


def _option(row: Row, *, defaults: bool) -> inspect.Parameter:
    told = f"{row.help} Default: {row.otherwise}." if defaults else row.help
    kind: Any
    if row.kind == "switch":
        names = f"{row.option}/--no-{row.option.removeprefix('--')}"
        kind = Annotated[bool | None, typer.Option(names, help=told)]
    else:
        kind = Annotated[str | None, typer.Option(row.option, help=told, metavar=_VALUES[row.kind])]
    return inspect.Parameter(
        row.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind
    )
