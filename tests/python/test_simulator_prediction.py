# SPDX-License-Identifier: Apache-2.0
"""The experiment of tests/simulator/prediction.py, on a few jobs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).with_name("commensal-simulate")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "prediction", ROOT / "tests" / "simulator" / "prediction.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prediction"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


prediction = load()


def test_predictions_of_jobs_that_recur_keep_most_of_the_gain() -> None:
    figures = prediction.run_case(str(PROGRAM), 3000, prediction.Case(0.95, 0.2, 1))
    gains = prediction.gains(figures)
    assert gains["fifo"] == 0
    assert gains["sjf truth"] == 100
    assert gains["sjf group-request"] > 80
    assert figures["sjf group-request"]["prediction"]["mape_percent"] < 40


def test_nothing_is_gained_where_nothing_recurs() -> None:
    figures = prediction.run_case(str(PROGRAM), 3000, prediction.Case(0.0, 0.2, 1))
    assert figures["sjf group-request"]["prediction"]["predicted"] == 0
    assert prediction.gains(figures)["sjf group-request"] < 50


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, picture = tmp_path / "told.json", tmp_path / "picture.png"
    code = prediction.main(
        [
            *("--program", str(PROGRAM), "--seeds", "1", "--jobs", "200"),
            *("--json", str(told), "--picture", str(picture)),
        ]
    )
    said = capsys.readouterr().out
    rows = json.loads(told.read_text())["rows"]
    assert len(rows) == len(prediction.RECURRENCES) + len(prediction.NOISES) - 1
    gain = next(r for r in rows if (r["recurrence"], r["noise"]) == (0.65, 0.2))
    percent = gain["runs"]["sjf group-request"]["gain_percent"]
    assert f"at 65 %: {percent:.1f} %" in said
    assert code == (0 if percent >= prediction.BAR else 1)
    assert picture.read_bytes().startswith(b"\x89PNG")
