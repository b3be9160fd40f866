# SPDX-License-Identifier: Apache-2.0
"""Our simulator gives the figures of other people's: to their digits, or as near as is said."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "equality", ROOT / "tests" / "simulator" / "equality.py"
    )
    assert spec is not None and spec.loader is not None
    sys.path.insert(0, str(ROOT / "tests" / "simulator"))  # as where a script is
    module = importlib.util.module_from_spec(spec)
    sys.modules["equality"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


equality = load()
PROGRAM = Path(sys.executable).with_name("commensal-simulate")


@pytest.mark.parametrize("suite", equality.SUITES, ids=lambda suite: suite.expected)
def test_figures_are_equal(suite: Any) -> None:
    compared = list(equality.compare(PROGRAM, [suite]))
    assert compared
    assert not [str(one) for one in compared if one.verdict == "OFF"]
    if not suite.tolerance:
        assert {one.verdict for one in compared} == {"equal"}


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


def test_a_figure_is_judged_by_what_its_table_allows() -> None:
    def verdict(ours: float | None, tolerance: float, loose: float = 0.0) -> str:
        one = equality.Compared("s", "p", "t", "m", "100.0", ours, tolerance, loose)
        return str(one.verdict)

    assert verdict(100.04, 0.05) == "equal"
    assert verdict(104.9, 0.05) == "within"
    assert verdict(95.2, 0.05) == "within"
    assert verdict(105.1, 0.05) == "OFF"
    assert verdict(105.1, 0.05, 0.1) == "loose"
    assert verdict(110.1, 0.05, 0.1) == "OFF"
    assert verdict(None, 0.05, 0.1) == "OFF"


def test_the_command_counts_and_ends_with_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert equality.main(["--program", str(PROGRAM), "--only", "helios_itp06"]) == 0
    assert "0 within what their table allows, 0 loose, 0 off" in capsys.readouterr().out
    [helios] = [suite for suite in equality.SUITES if suite.expected == "helios_itp06"]
    monkeypatch.setattr(equality, "SUITES", (replace(helios, semantics="tiresias"),))
    assert equality.main(["--program", str(PROGRAM), "helios_itp06"]) == 1
    assert "OFF" in capsys.readouterr().out


@pytest.mark.soak  # one seed of each workload: tests/coordinator/fgd_equality_test.cpp
def test_means_of_fgds_ten_seeds_are_as_near_as_is_said() -> None:
    far, means = equality.fgd_equality.run(str(PROGRAM), [], equality.fgd_equality.ALL_SEEDS)
    assert means == 216, "every workload, policy and demand that is published"
    assert far == 0


def test_an_unknown_table_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        equality.main(["--only", "helios"])
    assert ended.value.code == 2
    assert "no table helios; there are tiresias, helios_itp06" in capsys.readouterr().err
