# SPDX-License-Identifier: Apache-2.0
"""docs/results/fault_matrix.md names tests that exist, and all that belong on it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
MATRIX = (ROOT / "docs/results/fault_matrix.md").read_text()

_GTEST = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.MULTILINE)
_PYTEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)


@cache
def built(folder: Path) -> str:
    """What the CMake files of a folder and of those above it list."""
    lists = [p for f in (folder, *folder.parents) if TESTS in (f, *f.parents) for p in f.iterdir()]
    return "\n".join(
        p.read_text() for p in lists if p.suffix == ".cmake" or p.name == "CMakeLists.txt"
    )


def cpp_tests(folder: Path) -> set[str]:
    """Suite.Name of all GoogleTest cases under a folder that CMake builds."""
    return {
        f"{suite}.{name}"
        for path in folder.rglob("*_test.cpp")
        if path.stem in built(path.parent)  # a name alone: ${test}.cpp in a loop
        for suite, name in _GTEST.findall(path.read_text())
    }


def python_tests(pattern: str) -> set[str]:
    return {
        f"{path.name}::{name}"
        for folder in ("python", "demo")
        for path in (TESTS / folder).glob(pattern)
        for name in _PYTEST.findall(path.read_text())
    }


def fuzz_replays() -> set[str]:
    names = re.findall(r"^commensal_fuzz\((\w+)", (TESTS / "fuzz/CMakeLists.txt").read_text(), re.M)
    return {f"FuzzReplay.{name}" for name in names}


def named() -> set[str]:
    return set(re.findall(r"`(\w+\.(?:py::)?\w+)`", MATRIX)) - {"assumptions.md"}


def test_every_name_on_the_page_is_a_test() -> None:
    assert named() - cpp_tests(TESTS) - python_tests("test_*.py") - fuzz_replays() == set()


def test_every_fault_test_is_on_the_page() -> None:
    faults = cpp_tests(TESTS / "faults") | python_tests("test_faults_*.py") | fuzz_replays()
    assert len(faults) > 50
    assert faults - named() == set()
