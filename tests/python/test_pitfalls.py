# SPDX-License-Identifier: Apache-2.0
"""docs/results/pitfalls.md has every row, names tests that exist, and each sim row has its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_fault_matrix import TESTS, cpp_tests, python_tests

PAGE = (Path(__file__).resolve().parents[2] / "docs/results/pitfalls.md").read_text()
ROWS = {
    cells[0]: cells
    for line in PAGE.splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split(" | ")]) == 5
    and re.fullmatch(r"P\d+", cells[0])
}
SIM = [row for row, cells in ROWS.items() if "sim" in cells[2].split(", ")]


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+\.(?:py::)?\w+)`", text)) - {"test_pitfalls.py"}


def test_every_row_is_there() -> None:
    assert list(ROWS) == [f"P{number}" for number in range(1, 43)]
    assert len(SIM) == 19


def test_every_name_on_the_page_is_a_test() -> None:
    assert len(names(PAGE)) > 60
    assert names(PAGE) - cpp_tests(TESTS) - python_tests("test_*.py") == set()


@pytest.mark.parametrize("row", SIM)
def test_a_row_of_the_simulation_has_a_test_of_its_name_and_a_twin(row: str) -> None:
    *_, tests, switched_off = ROWS[row]
    assert any(re.search(rf"(\.|::test_){row}_", name, re.I) for name in names(tests)), tests
    assert switched_off
    assert "owed" not in switched_off or row == "P3"
