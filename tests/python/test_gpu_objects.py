# SPDX-License-Identifier: Apache-2.0
"""Objects that are carried to a machine with a card: taken as they are, never of other sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import objects

pytestmark = pytest.mark.tool("tests/gpu")

ROOT = Path(__file__).resolve().parents[2]
# An object is its source and what it includes, a line each; a source that says so does not compile.
COMPILER = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
source, target = arguments[-1], arguments[arguments.index("-o") + 1]
text = pathlib.Path(source).read_text()
made = [source, *text.splitlines()]
if "wrong" in made:
    sys.exit("it is wrong")
headers = [line for line in made[1:] if line.endswith(".h")]
pathlib.Path(target).write_text("\\n".join([text, *(pathlib.Path(h).read_text() for h in headers)]))
told = " \\\\\\n ".join([source, "/usr/include/stdio.h", *headers])
pathlib.Path(arguments[arguments.index("-MF") + 1]).write_text(f"{{target}}: {{told}}\\n")
print(source, file=open("{log}", "a"))
"""


class Tree:
    """A source tree, folders of objects beside it, and a compiler that is made up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.root = folder / "tree"
        self.log = folder / "log"
        compiler = folder / "compiler"
        compiler.write_text(COMPILER.format(python=sys.executable, log=self.log))
        compiler.chmod(0o755)
        (self.root / "allocator").mkdir(parents=True)
        self.write("allocator/a.cpp", "one\nallocator/a.h")
        self.write("allocator/b.cpp", "two")
        self.write("allocator/a.h", "three")
        self.tell = monkeypatch.setenv
        monkeypatch.delenv("carried", raising=False)
        for name, value in {"compiler": compiler, "root": self.root, "cuda_include": ""}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("torch_version", "2.11.0")

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def make(self, *flags: str, code: int = 0) -> list[str]:
        """Make the objects; return what was compiled for that."""
        objects.content.cache_clear()
        sources = [str(path) for path in sorted((self.root / "allocator").glob("*.cpp"))]
        assert objects.main([str(self.work / "allocator"), *flags, "--", *sources]) == code
        compiled = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return sorted(compiled)

    def objects(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.work / "allocator").glob("*.o")}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    return Tree(tmp_path, monkeypatch)


BOTH = ["allocator/a.cpp", "allocator/b.cpp"]


def test_what_has_not_changed_is_compiled_once(tree: Tree) -> None:
    assert tree.make("-DX") == BOTH
    assert set(tree.objects()) == {"allocator.a.cpp.o", "allocator.b.cpp.o"}
    assert tree.make("-DX") == []
    for path in tree.root.rglob("*"):  # times mean nothing: a copy of a tree has new ones
        path.touch()
    assert tree.make("-DX") == []


@pytest.mark.parametrize(
    ("change", "compiled"),
    [
        (lambda tree: tree.write("allocator/a.cpp", "four"), BOTH[:1]),
        (lambda tree: tree.write("allocator/a.h", "five"), BOTH[:1]),
        (lambda tree: tree.tell("torch_version", "2.11.1"), BOTH),
        (lambda tree: (tree.work / "allocator/allocator.b.cpp.o").unlink(), BOTH[1:]),
        (lambda tree: (tree.work / "allocator/allocator.b.cpp.json").write_text("{"), BOTH[1:]),
    ],
)
def test_an_object_of_anything_else_is_made_anew(
    tree: Tree, change: Callable[[Tree], object], compiled: list[str]
) -> None:
    tree.make()
    change(tree)
    assert tree.make() == compiled
    assert tree.make() == []


def test_flags_count_and_where_headers_lie_does_not(tree: Tree) -> None:
    tree.make("-DX", "-isystem", "/here", "-I/here")
    assert tree.make("-DX", "-isystem", "/there", "-I/there") == []
    assert tree.make("-DY", "-isystem", "/there") == BOTH


def test_carried_objects_are_taken_where_they_are_of_this_tree(tree: Tree) -> None:
    tree.make()
    made = tree.objects()
    tree.work.rename(tree.folder / "bundle")
    tree.tell("carried", str(tree.folder / "bundle"))
    assert tree.make() == []
    assert tree.objects() == made
    tree.write("allocator/b.cpp", "changed")
    assert tree.make() == BOTH[1:], "neither the one here nor the carried one"
    assert tree.objects()["allocator.b.cpp.o"].startswith("changed")


def test_a_changed_tree_goes_back_to_what_was_carried(tree: Tree) -> None:
    tree.make()
    tree.work.rename(tree.folder / "bundle")
    tree.tell("carried", str(tree.folder / "bundle"))
    tree.write("allocator/b.cpp", "changed")
    tree.make()
    tree.write("allocator/b.cpp", "two")
    assert tree.make() == []
    assert tree.objects()["allocator.b.cpp.o"].startswith("two")


def test_a_source_that_does_not_compile_leaves_no_object_that_counts(tree: Tree) -> None:
    tree.make()
    tree.write("allocator/a.cpp", "wrong")
    assert tree.make(code=1) == []
    tree.write("allocator/a.cpp", "one\nallocator/a.h")
    assert tree.make() == BOTH[:1]


def test_objects_of_sources_that_are_gone_are_not_linked(tree: Tree) -> None:
    tree.make()
    (tree.root / "allocator" / "b.cpp").unlink()
    tree.make()
    assert set(tree.objects()) == {"allocator.a.cpp.o"}


def test_headers_of_the_system_are_not_told(tree: Tree) -> None:
    tree.make()
    stamp = json.loads((tree.work / "allocator" / "allocator.a.cpp.json").read_text())
    assert set(stamp["files"]) == {"allocator/a.cpp", "allocator/a.h"}


# Makes an object of its source alone; links nothing that was made elsewhere.
FOREIGN = """#!/bin/sh
for word; do
  case $word in
    -c) compiles=1 ;;
    *.o) grep -qs carried "$word" && echo "not of this compiler: $word" >&2 && exit 1 ;;
  esac
  [ "$before" = -o ] && target=$word
  [ "$before" = -MF ] && told=$word
  before=$word
done
[ -z "$target" ] || : >"$target"
[ -z "$compiles" ] || echo "x.o: $word" >"$told"
"""


def test_carried_objects_that_do_not_link_are_made_here(tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text(FOREIGN)
    compiler.chmod(0o755)
    work, bundle = tmp_path / "work", tmp_path / "bundle"
    environment = {
        **os.environ,
        "here": str(ROOT / "tests" / "gpu"),
        "root": str(ROOT),
        "work": str(work),
        "carried": str(bundle / "objects"),
        "compiler": str(compiler),
        "simulated": "",
        "torch_dir": str(tmp_path),
        "torch_version": "2.11.0",
        "cuda_include": "",
        "PYTHON": sys.executable,
        "PRODUCT": "installed",
        "OUT": str(tmp_path),
        "GTEST_ROOT": "",
        "BUNDLE": "",
    }

    def build() -> str:
        command = [str(ROOT / "tests" / "gpu" / "stages.sh"), "build"]
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    work.mkdir()
    assert build() == ""
    bundle.mkdir()
    work.rename(bundle / "objects")
    for made in (bundle / "objects").glob("*/*.o"):
        made.write_text("carried")
    work.mkdir()
    assert build() == "what was carried does not do here: all is compiled\n"
    assert {made.read_text() for made in work.glob("*/*.o")} == {""}
    assert build() == "", "the next time it is known"
