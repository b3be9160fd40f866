# SPDX-License-Identifier: Apache-2.0
"""Our simulator gives the figures of other people's, to their printed digits."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "equality", ROOT / "tests" / "simulator" / "equality.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["equality"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


equality = load()
PROGRAM = Path(sys.executable).with_name("commensal-simulate")


@pytest.mark.parametrize("suite", equality.SUITES, ids=lambda suite: suite.expected)
def test_figures_are_equal(suite: object) -> None:
    compared = list(equality.compare(PROGRAM, [suite]))
    assert compared
    assert not [str(one) for one in compared if not one.equal]


def test_other_rules_give_other_figures() -> None:
    # Tiresias' places are counted; Helios' are not, and stopping costs.
    helios = next(suite for suite in equality.SUITES if suite.expected == "helios_itp06")
    compared = list(equality.compare(PROGRAM, [replace(helios, semantics="tiresias")]))
    assert [one for one in compared if not one.equal]


def test_a_figure_is_equal_if_it_rounds_to_the_other() -> None:
    def one(theirs: str, ours: float | None) -> bool:
        return bool(equality.Compared("s", "p", "t", "m", theirs, ours).equal)

    assert one("200.82", 200.8166667)
    assert not one("200.82", 200.8266667)
    assert one("60", 60.0)
    assert not one("60", 61.0)
    assert not one("60", None)
