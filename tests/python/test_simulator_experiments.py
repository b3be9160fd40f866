# SPDX-License-Identifier: Apache-2.0
"""The experiments of docs/results run, and their pages have the tables of their figures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "simulator"
PROGRAM = Path(sys.executable).with_name("commensal-simulate")
NAMES = ("failures", "openb")


def load(name: str) -> ModuleType:
    """Load an experiment as if it was started from its folder."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


load("experiment")
EXPERIMENTS = {name: load(f"{name}_experiment") for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_small_run_writes_figures_picture_and_tables(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--program", str(PROGRAM), "--out", str(tmp_path), "--small"]
    assert EXPERIMENTS[name].main(words) == 0
    figures = json.loads((tmp_path / "results" / f"simulator_{name}.json").read_text())
    assert EXPERIMENTS[name].tables(figures) in capsys.readouterr().out
    picture = (tmp_path / "images" / f"simulator_{name}.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", NAMES)
def test_the_page_has_the_tables_of_its_figures(name: str) -> None:
    results = ROOT / "docs" / "results"
    figures = json.loads((results / f"simulator_{name}.json").read_text())
    page = (results / f"simulator_{name}.md").read_text()
    for table in EXPERIMENTS[name].tables(figures).strip().split("\n\n"):
        assert table in page


def test_retries_by_class_waste_least_and_lose_no_job() -> None:
    experiment = EXPERIMENTS["failures"]
    of = {one["name"]: one for one in experiment.measure(PROGRAM, small=True)["handlings"]}
    by_class, everything = of["retries by class"], of["up to 3 retries of everything"]
    assert by_class["wasted"] < everything["wasted"] < of["no retry"]["wasted"]
    assert by_class["completed"] == everything["completed"]
    assert of["by class, blacklist"]["completed"] > by_class["completed"]
    assert of["by class, blacklist, pre-runs"]["found_by_pre_run"] > 0
