# SPDX-License-Identifier: Apache-2.0
"""The stage `probes` of tests/gpu/run_all.sh: each question is answered once, over several runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import probes_stage

pytestmark = pytest.mark.tool("tests/gpu")

# Stands for the program of the probes: one question fails while it is told to, one hangs.
PROGRAM = """#!{python}
import json, os, pathlib, sys, time
arguments = sys.argv[1:]
here = pathlib.Path("{here}")
if arguments == ["--list"]:
    print("first  Is it?\\nsecond  Was it?\\nthird  Will it be?")
    sys.exit()
asked = [after for before, after in zip(arguments, arguments[1:]) if before == "--only"]
print(*asked, file=open(here / "asked", "a"))
told = []
for question in asked:
    if (here / f"{{question}}.hangs").exists():
        (here / "hanging").touch()
        time.sleep(600)
    status = "failed" if (here / f"{{question}}.fails").exists() else "answered"
    told.append({{"id": question, "status": status}})
    out = pathlib.Path(arguments[arguments.index("--out") + 1])
    out.write_text(json.dumps({{"schema": 1, "date": "today", "probes": told}}))
sys.exit(4 if "failed" in [one["status"] for one in told] else 0)
"""


class Probes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = folder / "program"
        self.program.write_text(PROGRAM.format(python=sys.executable, here=folder))
        self.program.chmod(0o755)

    def run(self) -> int:
        return probes_stage.main([str(self.program), "--out", str(self.folder)])

    def asked(self) -> list[str]:
        file = self.folder / "asked"
        words = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return words

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "probes.json").read_text())
        return found


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probes:
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    monkeypatch.delenv("STAGE_CARD", raising=False)
    return Probes(tmp_path)


def test_answers_are_those_of_the_program(probes: Probes) -> None:
    assert probes.run() == 0
    assert probes.told() == {
        "schema": 1,
        "date": "today",
        "left": [],
        "probes": [{"id": name, "status": "answered"} for name in ("first", "second", "third")],
    }
    probes.asked()
    assert probes.run() == 0
    assert probes.asked() == []
    assert len(probes.told()["probes"]) == 3


def test_a_question_that_failed_is_asked_again(probes: Probes) -> None:
    (probes.folder / "second.fails").touch()
    assert probes.run() == 4
    assert [one["status"] for one in probes.told()["probes"]] == ["answered", "failed", "answered"]
    (probes.folder / "second.fails").unlink()
    probes.asked()
    assert probes.run() == 0
    assert probes.asked() == ["second"]
    assert {one["status"] for one in probes.told()["probes"]} == {"answered"}


def test_what_there_was_no_time_for_is_asked_the_next_time(
    probes: Probes, monkeypatch: pytest.MonkeyPatch
) -> None:
    class UpAtOnce(subprocess.Popen[bytes]):
        """Its time is up as soon as it hangs."""

        def wait(self, timeout: float | None = None) -> int:
            hangs = probes.folder / "hanging"
            end = time.monotonic() + 60.0
            while timeout and self.poll() is None and time.monotonic() < end:
                if hangs.exists():
                    hangs.unlink()
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.005)
            return super().wait()

    monkeypatch.setattr(probes_stage.subprocess, "Popen", UpAtOnce)
    (probes.folder / "third.hangs").touch()
    assert probes.run() == 0
    assert probes.told()["left"] == ["third"]
    (probes.folder / "third.hangs").unlink()
    probes.asked()
    assert probes.run() == 0
    assert probes.asked() == ["third"]
    assert probes.told()["left"] == []


def test_without_a_device_there_are_no_answers(probes: Probes) -> None:
    probes.program.write_text(probes.program.read_text().replace("told = []", "sys.exit(3)", 1))
    assert probes.run() == 3
    assert probes.told()["left"] == ["first", "second", "third"]
