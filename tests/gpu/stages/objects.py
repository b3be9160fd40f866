# SPDX-License-Identifier: Apache-2.0
"""Compiles sources into a folder of objects; what is there of the same sources stays.

    objects.py FOLDER [FLAG...] -- SOURCE...

Sources are of this tree. Beside each object lies what it was made of: flags, PyTorch's version, and
the contents of the source and of each header of this tree. An object of anything else is made anew,
so a folder of objects can be carried to another machine (`carried`). Times of files mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

ALWAYS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-I.")


@cache
def content(file: Path) -> str:
    """Return what stands for a file's content; empty: there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


class Folder:
    """A folder of objects of sources that are compiled with the same flags."""

    def __init__(self, objects: Path, flags: Sequence[str], told: Mapping[str, str]) -> None:
        """`told`: what `toolchain.py` tells."""
        self._objects = objects
        self._root = Path(told["root"])
        self._carried = Path(told.get("carried") or "/nowhere") / objects.name
        headers = [part for part in told.get("cuda_include", "").split(":") if part]
        places = [word for folder in headers for word in ("-isystem", folder)]
        self._command = [told.get("compiler") or "g++", *ALWAYS, *flags, *places]
        # Where headers lie differs from machine to machine.
        words = [
            word
            for before, word in zip(("", *flags), flags, strict=False)
            if "-isystem" not in (before, word) and not word.startswith("-I")
        ]
        self._made_with = {"flags": words, "torch": told.get("torch_version", "")}

    def make(self, source: Path) -> bool:
        """See to it that a source's object is there; tell whether it is."""
        target = self.target(source)
        if self._is_of_this_tree(target):
            return True
        carried = self._carried / target.name
        if self._is_of_this_tree(carried):
            stamp_of(target).unlink(missing_ok=True)
            shutil.copyfile(carried, target)
            shutil.copyfile(stamp_of(carried), stamp_of(target))
            return True
        return self._compile(source.relative_to(self._root), target)

    def target(self, source: Path) -> Path:
        name = str(source.relative_to(self._root)).replace("/", ".")
        return self._objects / f"{name}.o"

    def _is_of_this_tree(self, target: Path) -> bool:
        try:
            stamp: dict[str, Any] = json.loads(stamp_of(target).read_text())
            files = stamp.pop("files")
        except (OSError, ValueError, KeyError, AttributeError):
            return False
        return (
            target.exists()
            and stamp == self._made_with
            and all(content(self._root / name) == told for name, told in files.items())
        )

    def _compile(self, name: Path, target: Path) -> bool:
        told = target.with_suffix(".d")
        stamp_of(target).unlink(missing_ok=True)
        command = [*self._command, "-MD", "-MF", str(told), "-c", "-o", str(target), str(name)]
        if subprocess.run(command, cwd=self._root, check=False).returncode != 0:
            return False
        if told.exists():
            words = told.read_text().replace("\\\n", " ").partition(":")[2].split()
            files = {word: content(self._root / word) for word in words if word[0] != "/"}
            stamp_of(target).write_text(json.dumps({**self._made_with, "files": files}) + "\n")
            told.unlink()
        return True


def stamp_of(target: Path) -> Path:
    return target.with_suffix(".json")


def main(argv: Sequence[str]) -> int:
    cut = argv.index("--")
    objects, flags = Path(argv[0]), argv[1:cut]
    sources = [Path(name) for name in argv[cut + 1 :]]
    objects.mkdir(parents=True, exist_ok=True)
    folder = Folder(objects, flags, dict(os.environ))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(folder.make, sources))
    # What is linked is all that lies there.
    for other in set(objects.glob("*.o")) - {folder.target(source) for source in sources}:
        other.unlink()
    return 0 if all(made) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
