# SPDX-License-Identifier: Apache-2.0
"""The terms under which a job runs: the rows of coordinator/wire/terms.h.

Options, environment variables and arguments of `commensal.init` are made from the rows; only what
a type checker is to know of them is written here once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass, fields
from functools import cache
from typing import Any, Literal, TypedDict

from commensal._quantities import (
    MemoryRange,
    ShareRange,
    parse_fraction,
    parse_memory_range,
    parse_percent,
    parse_share_range,
)

__all__ = ["GivenTerms", "JobTerms", "Row", "parse_switch", "rows", "with_variables"]

Value = MemoryRange | ShareRange | str | float | bool
Law = Literal["gap", "duty_cycle", "antman", "rate_aimd", "token_window", "open"]


@dataclass(frozen=True)
class JobTerms:
    """What a job asks for; None: it does not (`Row.otherwise` says what holds then)."""

    memory: MemoryRange | None = None
    share: ShareRange | None = None
    law: str | None = None
    slo: float | None = None  # a fraction
    idle_class: bool | None = None
    affinity: bool | None = None
    sm_share: float | None = None

    @classmethod
    def parse(
        cls,
        given: Mapping[str, object],
        *,
        guaranteed: bool,
        refuse: bool = True,
        naming: Callable[[Row], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> JobTerms:
        """Read terms as people write them, by their names; None is not asked for.

        Args:
            given: texts, or numbers where they are numbers.
            guaranteed: whether the job is: then one value of a range is both.
            refuse: whether a job that is not, or is, is refused what it cannot have.
            naming: puts a row's name to a ValueError that is raised inside.

        Raises:
            ValueError: a wrong value, named.
        """
        if unknown := given.keys() - {row.name for row in rows()}:
            raise TypeError(f"a job has no such term: {', '.join(sorted(unknown))}")
        values: dict[str, Any] = {}
        for row in rows():
            if (text := given.get(row.name)) is None:
                continue
            with naming(row):
                values[row.name] = row.parse(text, guaranteed=guaranteed)
                if refuse:
                    row.refuse(text, guaranteed=guaranteed)
        return cls(**values)

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        guaranteed: bool,
        naming: Callable[[Row], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> JobTerms:
        """Read the variables of a job. @raises ValueError naming the value."""
        given = {row.name: environ.get(row.variable) or None for row in rows()}
        return cls.parse(given, guaranteed=guaranteed, naming=naming)

    def to_environ(self) -> dict[str, str]:
        """Return the variables. Empty where nothing is asked for: that of a job around this one is
        not meant.
        """
        return {row.variable: row.text(getattr(self, row.name)) for row in rows()}

    def to_json(self) -> dict[str, Any]:
        """Return the fields of messages and of stored jobs: what is asked for."""
        told: dict[str, Any] = dict(self.to_core())
        if self.memory is not None:
            told["memory"] = {
                "min_bytes": self.memory.min_bytes,
                "max_bytes": self.memory.max_bytes,
            }
        if self.share is not None:
            told["share"] = {"min": self.share.min_share, "max": self.share.max_share}
        return told

    def to_core(self) -> dict[str, Any]:
        """Return what `_core` takes: by name what is asked for, a range as a pair."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: astuple(value) if isinstance(value, MemoryRange | ShareRange) else value
            for name, value in told.items()
            if value is not None
        }


class GivenTerms(TypedDict, total=False):
    """The terms as arguments of `commensal.init`."""

    memory: int | str | None
    share: float | str | None
    law: Law | None
    slo: float | str | None
    idle_class: bool | None
    affinity: bool | None
    sm_share: float | str | None


@dataclass(frozen=True)
class Row:
    """One term: how it is named, written and read."""

    name: str
    kind: str  # memory, share, law, percent, fraction or switch
    help: str
    otherwise: str  # what holds where nobody asks for it
    only: str  # the only class that can have it; empty: both can
    refusal: str  # what the other one is told
    most: float  # of a percentage or a fraction

    @property
    def option(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "COMMENSAL_" + self.name.upper()

    def can_have(self, *, guaranteed: bool) -> bool:
        return self.only in ("", "guaranteed" if guaranteed else "opportunistic")

    def refuse(self, given: object, *, guaranteed: bool) -> None:
        """Raise for a class that cannot have it. A switch is for the class that it may get, too."""
        if self.kind != "switch" and not self.can_have(guaranteed=guaranteed):
            raise ValueError(f"{self.refusal}: {given!r}")

    def parse(self, given: Any, *, guaranteed: bool) -> Value:
        """Return the value of a text or a number. @raises ValueError naming it."""
        if self.kind == "memory":
            return parse_memory_range(given, guaranteed=guaranteed)
        if self.kind == "share":
            return parse_share_range(given, guaranteed=guaranteed)
        if self.kind == "percent":
            return parse_percent(given, most=100 * self.most, what=self.name) / 100
        if self.kind == "fraction":
            return parse_fraction(given, most=self.most, what=self.name)
        if self.kind == "law":
            return _parse_law(given)
        return parse_switch(given)

    def text(self, value: Value | None) -> str:
        """Write a value as `parse` reads it; empty for None."""
        if value is None:
            return ""
        if isinstance(value, MemoryRange):
            return f"{value.min_bytes}:{'' if value.max_bytes is None else value.max_bytes}"
        if isinstance(value, ShareRange):
            return f"{value.min_share!r}:{value.max_share!r}"
        if isinstance(value, bool):
            return "1" if value else "0"
        if self.kind == "percent":
            return repr(round(100 * float(value), 10))
        return str(value)


def with_variables(
    given: Mapping[str, object], environ: Mapping[str, str], *, guaranteed: bool
) -> dict[str, object]:
    """Fill up what is not given from the variables of the environment.

    Not inside of a job, whose own they are; nor with what is for jobs of the other class.
    """
    filled = dict(given)
    if environ.get("COMMENSAL_RUN") == "1":
        return filled
    for row in rows():
        if filled.get(row.name) is None and row.can_have(guaranteed=guaranteed):
            filled[row.name] = environ.get(row.variable) or None
    return filled


@cache
def rows() -> tuple[Row, ...]:
    """Return all terms, in the order in which people are told of them."""
    from commensal import _core

    return tuple(Row(*row) for row in _core.terms())


def parse_switch(given: object) -> bool:
    """Read 0 or 1, or what is a switch already. @raises ValueError naming the value."""
    if isinstance(given, bool):
        return given
    if given not in ("0", "1"):
        raise ValueError(f"not 0 or 1: {given!r}")
    return given == "1"


def _parse_law(given: object) -> str:
    from commensal import _core

    if not isinstance(given, str) or given not in _core.LAWS:
        raise ValueError(f"not a pacing law: {given!r} ({', '.join(_core.LAWS)})")
    return given
