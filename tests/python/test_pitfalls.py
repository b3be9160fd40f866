# SPDX-License-Identifier: Apache-2.0
"""The pages of pitfalls have every row, name tests that exist, and what can be tested has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_fault_matrix import TESTS, cpp_tests, python_tests

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
PAGE = (RESULTS / "pitfalls.md").read_text()
COMPUTE = (RESULTS / "compute_pitfalls.md").read_text()


def rows_of(page: str, letter: str) -> dict[str, list[str]]:
    return {
        cells[0]: cells
        for line in page.splitlines()
        if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
        and re.fullmatch(rf"{letter}\d+", cells[0])
    }


ROWS = rows_of(PAGE, "P")
COMPUTE_ROWS = rows_of(COMPUTE, "C")
ON_A_CPU = [row for row, cells in COMPUTE_ROWS.items() if "cpu" in cells[2].split(", ")]
SIM = [row for row, cells in ROWS.items() if "sim" in cells[2].split(", ")]


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+\.(?:py::)?\w+)`", text)) - {"test_pitfalls.py"}


def test_every_row_is_there() -> None:
    assert list(ROWS) == [f"P{number}" for number in range(1, 43)]
    assert len(SIM) == 24


def test_every_name_on_the_page_is_a_test() -> None:
    assert len(names(PAGE)) > 60
    assert names(PAGE) - cpp_tests(TESTS) - python_tests("test_*.py") == set()


@pytest.mark.parametrize("row", SIM)
def test_a_row_of_the_simulation_has_a_test_of_its_name_and_a_twin(row: str) -> None:
    *_, tests, switched_off = ROWS[row]
    assert any(re.search(rf"(\.|::test_){row}_", name, re.I) for name in names(tests)), tests
    assert switched_off
    assert "owed" not in switched_off or row == "P3"


def test_every_row_of_compute_is_there() -> None:
    assert list(COMPUTE_ROWS) == [f"C{number}" for number in range(1, 22)]
    assert len(ON_A_CPU) == 9


def test_every_name_on_the_page_of_compute_is_a_test() -> None:
    assert len(names(COMPUTE)) > 15
    assert names(COMPUTE) - cpp_tests(TESTS) - python_tests("test_*.py") == set()


@pytest.mark.parametrize("row", ON_A_CPU)
def test_a_row_that_needs_no_gpu_has_a_test(row: str) -> None:
    *_, tests, switched_off = COMPUTE_ROWS[row]
    assert names(tests)
    assert switched_off
    if row != "C21":
        assert any(re.search(rf"(\.|::test_){row}_", name, re.I) for name in names(tests)), tests
