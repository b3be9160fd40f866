# SPDX-License-Identifier: Apache-2.0
"""The hook for commit messages, and the hosted workflow beside the scripts that it runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def hook(name: str) -> list[str]:
    told = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (found,) = [one for repo in told["repos"] for one in repo["hooks"] if one["id"] == name]
    return shlex.split(found["entry"])


@pytest.mark.parametrize(
    ("message", "passes"),
    [
        ("fix(gate): look again\n\n" + "a body may have long lines " * 5, True),
        ("x" * 72, True),
        ("x" * 73, False),
        ("\n# On branch main\n" + "x" * 73 + "\n# a comment that is longer " + "y" * 72, False),
        ("# " + "y" * 80 + "\nfix(gate): ä" + "ö" * 60, True),
    ],
)
def test_the_length_of_a_commits_title_is_looked_at(
    tmp_path: Path, message: str, passes: bool
) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    run = subprocess.run(
        [*hook("commit-title"), str(file)],
        check=False,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode == 0) == passes, run.stdout
    if not passes:
        assert "has 73 characters, 72 at most: xxx" in run.stdout


def test_the_workflow_runs_every_part_of_both_scripts_once() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    run = [one.split() for one in workflow["jobs"]["run"]["strategy"]["matrix"]["command"]]
    of_check = re.search(r"^parts=\((.*)\)$", (ROOT / "scripts/check").read_text(), re.M)
    assert of_check is not None
    assert sorted(p for script, *parts in run if script == "./scripts/check" for p in parts) == (
        sorted(of_check[1].split())
    )
    assert sorted(p for script, *parts in run if script == "./scripts/test" for p in parts) == [
        "cpp",
        "python",
    ]
    assert {script for script, *_ in run} == {"./scripts/check", "./scripts/test"}
