# SPDX-License-Identifier: Apache-2.0
"""Which tests run for a change: scripts/reach.py, scripts/changed and the marker `tool`."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import reach  # noqa: E402


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small tree of ours, committed, with what was recorded of it."""
    files = {
        "allocator/pool.h": "",
        "allocator/pool.cpp": '#include "allocator/pool.h"',
        "allocator/block.h": '#include "pool.h"',
        "allocator/block.cpp": '#include "allocator/block.h"',
        "coordinator/wire.cpp": "",
        "tests/allocator/CMakeLists.txt": "commensal_test(\n  pool_test x)\n"
        "commensal_test(block_test y)",
        "tests/python/test_run.py": "def test_runs(): ...\ndef test_ends(): ...",
        "tests/python/test_docs.py": "def test_all(): open('guide.md')",
        "docs/guide.md": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "all")
    monkeypatch.setattr(reach, "ROOT", tmp_path)
    monkeypatch.setattr(reach, "FILE", tmp_path / "tests" / "reach.txt")
    reach.write(
        {
            "allocator/pool.cpp": ["pool_test", "tests/python/test_run.py::test_runs"],
            "allocator/block.cpp": ["block_test", "gone_test"],
            "coordinator/wire.cpp": [
                "tests/python/test_run.py::test_ends",
                "tests/python/test_run.py::test_gone",
            ],
        }
    )
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "what was recorded")
    return tmp_path


RUNS, ENDS = "tests/python/test_run.py::test_runs", "tests/python/test_run.py::test_ends"


@pytest.mark.parametrize(
    ("changed", "reached"),
    [
        (["allocator/pool.cpp"], ["pool_test", RUNS]),
        (["allocator/block.h"], ["block_test"]),  # the source that includes it
        (["allocator/pool.h"], ["block_test", "pool_test", RUNS]),  # also by another header
        (["allocator/new.cpp"], ["block_test", "pool_test", RUNS]),  # as its folder
        (["coordinator/wire.cpp", "allocator/block.cpp"], ["block_test", ENDS]),
        (
            ["tests/python/test_run.py", "allocator/pool.cpp"],
            ["pool_test", RUNS.partition("::")[0]],
        ),
        (["docs/guide.md"], ["tests/python/test_docs.py"]),  # names it
        (["tests/allocator/CMakeLists.txt"], ["all"]),
        ([], []),
    ],
)
def test_a_change_reaches_what_ran_it(
    tree: Path, capsys: pytest.CaptureFixture[str], changed: list[str], reached: list[str]
) -> None:
    for name in changed:
        with (tree / name).open("a") as file:
            file.write("\n")
    assert reach.tests("HEAD") == 0
    assert capsys.readouterr().out.split() == reached


def test_a_change_may_be_committed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "allocator/pool.cpp").write_text("int pool;\n")
    git(tree, "commit", "-a", "-m", "pool")
    reach.tests("HEAD")
    assert capsys.readouterr().out == ""
    reach.tests("HEAD~1")
    assert capsys.readouterr().out.split() == ["pool_test", RUNS]


def test_an_unknown_commit_is_named(tree: Path) -> None:
    assert tree.exists()
    with pytest.raises(SystemExit, match="no-such-commit"):
        reach.tests("no-such-commit")


def test_a_source_has_run_where_a_count_of_it_is_not_zero() -> None:
    function = struct.pack("<Ii", 0x01000000, 12) + bytes(12)
    some = struct.pack("<Ii", 0x01A10000, 16) + bytes(16)
    none = struct.pack("<Ii", 0x01A10000, -16)  # all of them are zero
    assert reach.executed(bytes(16) + function + none + function + some)
    assert not reach.executed(bytes(16) + function + none)
    assert not reach.executed(b"")


def test_without_a_record_all_tests_are_reached(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "tests/reach.txt").unlink()
    assert reach.tests("HEAD") == 0
    told = capsys.readouterr()
    assert told.out == "all\n"
    assert "reach.txt is not there" in told.err


@pytest.fixture
def landed(tree: Path) -> Path:
    """The tree again, with the script that looks for what changed since it landed."""
    (tree / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "changed", tree / "scripts" / "changed")
    (tree / ".ci").mkdir()
    (tree / ".ci" / "landed").write_text(git(tree, "rev-parse", "HEAD") + "\n")
    return tree


def is_changed(tree: Path, *paths: str, **environ: str) -> bool:
    asked = subprocess.run(
        [str(tree / "scripts" / "changed"), *paths], check=False, env=os.environ | environ
    )
    return asked.returncode == 0


def test_what_has_not_changed_since_it_landed_is_told(landed: Path) -> None:
    assert not is_changed(landed, "allocator", "docs")
    (landed / "allocator/pool.cpp").write_text("int pool;\n")
    assert is_changed(landed, "docs", "allocator")
    git(landed, "commit", "-a", "-m", "pool")
    assert is_changed(landed, "allocator")
    assert not is_changed(landed, "docs")
    (landed / "docs/new.md").write_text("")
    assert is_changed(landed, "docs")
    assert is_changed(landed, "coordinator", COMMENSAL_ALL_TOOLS="1")


@pytest.mark.parametrize("landed_at", ["", "0123456789012345678901234567890123456789", None])
def test_what_cannot_be_told_has_changed(landed: Path, landed_at: str | None) -> None:
    assert not is_changed(landed, "docs")
    file = landed / ".ci" / "landed"
    if landed_at is None:
        shutil.rmtree(landed / ".git")
    else:
        file.write_text(landed_at)
    assert is_changed(landed, "docs")
