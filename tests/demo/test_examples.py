# SPDX-License-Identifier: Apache-2.0
"""The example scripts run alone, know nothing of us, and give the same result twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = {
    "digits_cnn.py": [
        *("--steps", "12", "--double-at", "6", "--size", "16", "--read-rate", "4e6"),
        *("--evaluate-every", "5", "--checkpoint-every", "5"),
    ],
    "char_transformer.py": [
        *("--steps", "8", "--width", "64", "--layers", "2", "--text-bytes", "200000"),
    ],
}


Run = tuple[list[dict[str, object]], dict[str, object]]


def run(script: str, folder: Path, *more: str) -> Run:
    """Run a script quickly; return its log lines and its result."""
    log, result = folder / "log.jsonl", folder / "result.json"
    command = [sys.executable, str(EXAMPLES / script), *QUICK[script], *more]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
    subprocess.run(
        [*command, "--log", str(log), "--result", str(result)],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        timeout=120,
    )
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines, json.loads(result.read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One run of each script."""
    return {script: run(script, tmp_path_factory.mktemp("run")) for script in QUICK}


def losses(lines: list[dict[str, object]]) -> list[object]:
    return [line["loss"] for line in lines if "step" in line]


@pytest.mark.parametrize("script", sorted(QUICK))
def test_gives_the_same_hash_twice(script: str, runs: dict[str, Run], tmp_path: Path) -> None:
    lines, result = runs[script]
    again_lines, again = run(script, tmp_path)
    assert losses(lines) == losses(again_lines)
    assert result == again


def test_the_file_of_the_digits_is_the_digits(runs: dict[str, Run], tmp_path: Path) -> None:
    datasets = find_spec("sklearn.datasets")
    assert datasets is not None and datasets.origin is not None
    file = Path(datasets.origin).parent / "data" / "digits.csv.gz"
    again = run("digits_cnn.py", tmp_path, "--digits", str(file))[1]
    assert again == runs["digits_cnn.py"][1]


@pytest.mark.soak
@pytest.mark.parametrize("script", sorted(QUICK))
def test_another_seed_gives_another_hash(script: str, runs: dict[str, Run], tmp_path: Path) -> None:
    assert run(script, tmp_path, "--seed", "2")[1]["sha256"] != runs[script][1]["sha256"]


def test_the_digits_log_says_what_happened(runs: dict[str, Run]) -> None:
    lines, result = runs["digits_cnn.py"]
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == list(range(12))
    assert [line["batch"] for line in steps] == [32] * 6 + [64] * 6
    for line in steps:
        assert line["wait_seconds"] == pytest.approx(line["batch"] * 16 * 16 / 4e6)
        assert line["seconds"] > line["wait_seconds"]
        assert float.fromhex(str(line["loss"])) > 0
    events = [line["event"] for line in lines if "event" in line]
    assert events[0] == "start"
    assert events[-1] == "end"
    assert events.count("double") == 1
    assert events.count("evaluation") == events.count("checkpoint") == 2
    assert result["steps"] == 12


@pytest.mark.parametrize("script", sorted(QUICK))
def test_knows_nothing_of_commensal(script: str) -> None:
    lines = (EXAMPLES / script).read_text().splitlines()
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    assert imports
    assert not [line for line in imports if "commensal" in line]
