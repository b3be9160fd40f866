# SPDX-License-Identifier: Apache-2.0
"""The terms of a job: one row makes option, variable, argument, message and line of the docs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from commensal import _core
from commensal._quantities import MemoryRange, ShareRange
from commensal._terms import GivenTerms, JobTerms, Row, rows, with_variables
from commensal.cli import main

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
ROWS = rows()
# As people write it, what that is, and what the core takes. One for each kind.
VALUES: dict[str, tuple[Any, object, object]] = {
    "memory": ("1GiB:4GiB", MemoryRange(GIB, 4 * GIB), (GIB, 4 * GIB)),
    "share": ("0.1:0.5", ShareRange(0.1, 0.5), (0.1, 0.5)),
    "law": ("duty_cycle", "duty_cycle", "duty_cycle"),
    "percent": ("3 %", 0.03, 0.03),
    "fraction": ("0.25", 0.25, 0.25),
    "switch": ("0", False, False),
}


def named(row: Row) -> str:
    return row.name


def test_types_are_declared_for_each_row() -> None:
    names = [row.name for row in ROWS]
    assert [field.name for field in fields(JobTerms)] == names
    assert list(GivenTerms.__annotations__) == names


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_term_is_read_written_and_handed_on(row: Row) -> None:
    text, value, told = VALUES[row.kind]
    guaranteed = row.only == "guaranteed"
    terms = JobTerms.parse({row.name: text}, guaranteed=guaranteed)
    assert getattr(terms, row.name) == value
    assert terms.to_core() == {row.name: told}
    environ = terms.to_environ()
    assert environ.keys() == {each.variable for each in ROWS}, "those of a job around are hidden"
    assert {key for key, written in environ.items() if written} == {row.variable}
    assert JobTerms.from_environ(environ, guaranteed=guaranteed) == terms


@pytest.mark.parametrize("row", ROWS, ids=named)
@pytest.mark.parametrize("command", ["run", "set"])
def test_a_term_is_an_option(row: Row, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert row.option in shown
    assert row.help in shown
    assert (f"Default: {row.otherwise}." in shown) == (command == "run")


def test_the_environments_page_tells_each_row() -> None:
    page = (ROOT / "docs/environment.md").read_text()
    for row in ROWS:
        line = f"| `{row.variable}` | `{row.option}` | {row.help} | {row.otherwise} |"
        assert line in page, f"docs/environment.md must have the line\n{line}"


@pytest.mark.parametrize("row", [row for row in ROWS if row.only], ids=named)
def test_the_other_class_is_refused_it(row: Row) -> None:
    text = VALUES[row.kind][0]
    guaranteed = row.only != "guaranteed"
    if row.kind == "switch":  # it holds for when the class changes
        assert JobTerms.parse({row.name: text}, guaranteed=guaranteed) != JobTerms()
        return
    with pytest.raises(ValueError, match=text) as caught:
        JobTerms.parse({row.name: text}, guaranteed=guaranteed)
    assert row.refusal in str(caught.value)


def test_what_is_no_term_is_named() -> None:
    with pytest.raises(TypeError, match="ram"):
        JobTerms.parse({"ram": "1GiB"}, guaranteed=False)
    with pytest.raises(TypeError, match="ram"):
        _core.control_set("/nowhere", "job", 1, terms={"ram": (1, 2)}, paused=None, job_class=None)


def test_variables_stand_for_options_outside_of_a_job() -> None:
    outside = {"COMMENSAL_SM_SHARE": "0.5", "COMMENSAL_MEMORY": "1GiB", "COMMENSAL_SHARE": ""}
    filled = with_variables({"memory": "2GiB"}, outside, guaranteed=False)
    assert JobTerms.parse(filled, guaranteed=False) == JobTerms(
        memory=MemoryRange(0, 2 * GIB), sm_share=0.5
    )
    filled = with_variables({}, outside, guaranteed=True)  # which has no such share
    assert JobTerms.parse(filled, guaranteed=True) == JobTerms(memory=MemoryRange(GIB, GIB))
    inside = outside | {"COMMENSAL_RUN": "1"}  # those of that job
    assert with_variables({}, inside, guaranteed=False) == {}


@pytest.mark.parametrize("given", [True, [], -1, "", "no"])
@pytest.mark.parametrize("row", ROWS, ids=named)
def test_a_wrong_value_is_named(row: Row, given: object) -> None:
    if row.kind == "switch" and given is True:
        return
    with pytest.raises(ValueError, match=r".") as caught:
        row.parse(given, guaranteed=False)
    assert repr(given) in str(caught.value) or str(given) == ""
