# SPDX-License-Identifier: Apache-2.0
"""Where the results of `run_all.sh` lie, what they are of, and how they are packed.

`KEPT/KEY/CARD-...` has all that was measured of these sources; KEY stands for the sources. The
folder of results has the same, packed, and `run.json`.
"""

from __future__ import annotations

import datetime
import hashlib
import importlib.util
import json
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from toolchain import ROOT

__all__ = ["Results", "digest", "sources_key"]

PRODUCT = ("allocator", "coordinator", "torch_ext", "python", "examples")
TESTS = ("tests/gpu", "tests/allocator", "tests/torch_ext", "tests/simulated_cuda")


def digest(paths: Iterable[Path]) -> str:
    """Return a text that stands for the contents of files, and of all in folders but documents and
    what tools leave there.
    """
    found = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(path.parent)
            left_there = any(part.startswith((".", "__pycache__")) for part in name.parts)
            if file.is_file() and not left_there and file.suffix != ".md":
                found.update(f"{name}\0".encode())
                found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()[:12]


def sources_key(*, installed: bool, simulated: Path | None) -> str:
    """Return what stands for all that is measured and that measures: a commit that changes only
    documents changes nothing, and what is in no commit yet has a key of its own.
    """
    paths = [ROOT / name for name in (*PRODUCT, *TESTS)]
    paths += sorted((ROOT / "tests" / "python").glob("test_cuda_*.py"))
    spec = importlib.util.find_spec("commensal") if installed else None
    if spec is not None and spec.origin is not None:
        paths.append(Path(spec.origin).parent)
    return digest([*paths, simulated] if simulated else paths)


def commit() -> str:
    """Return the tree's commit, `-changed` where it has changes; empty: git does not know."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    found = git("rev-parse", "HEAD")
    return found + ("-changed" if found and git("status", "--porcelain") else "")


class Results:
    """The results of a card, of these sources: those of earlier runs, and of this one."""

    def __init__(self, out: Path, kept: Path, card: str, key: str, **facts: object) -> None:
        self.out = out
        self.card = card
        self.folder = kept / key
        self._run = self.folder / f"{card}-run.json"
        self._told: dict[str, Any] = {"schema": 2, "card": card, "sources": key, **facts}
        self._told |= {"commit": commit(), "stages": self._earlier()}

    def _earlier(self) -> list[dict[str, Any]]:
        try:
            return list(json.loads(self._run.read_text())["stages"])
        except (OSError, ValueError, KeyError, TypeError):
            return []

    def make_folders(self) -> None:
        """Raises OSError."""
        for folder in (self.folder, self.out):
            folder.mkdir(parents=True, exist_ok=True)

    def done(self, stage: str) -> str:
        """Return when a stage passed with all that it is to measure; empty: it has not."""
        for told in self._told["stages"]:
            if told["stage"] == stage and told["exit_code"] == 0 and not told["left"]:
                return str(told["date"])
        return ""

    def log(self, stage: str) -> Path:
        return self.folder / f"{self.card}-{stage}.log"

    def left(self, stage: str) -> list[str]:
        """Return what a stage says that it had no time for."""
        try:
            told = json.loads((self.folder / f"{self.card}-{stage}.json").read_text())
            return list(told.get("left", []))
        except (OSError, ValueError):
            return []

    def note(self, stage: str, exit_code: int | None, **facts: object) -> None:
        """Say how a stage ended; None: it did not run."""
        self._told["stages"] = [told for told in self._told["stages"] if told["stage"] != stage]
        self._told["stages"].append(
            {"stage": stage, "exit_code": exit_code, "date": now(), **facts}
            | {"left": self.left(stage)}
        )

    def pack(self) -> None:
        """Write `run.json` and `results.tar.gz`, each whole at every moment."""
        text = json.dumps({**self._told, "date": now()}, indent=1) + "\n"
        for path in (self._run, self.out / "run.json"):
            with replaced(path) as beside:
                beside.write_text(text)
        with (
            replaced(self.out / "results.tar.gz") as beside,
            tarfile.open(beside, "w:gz") as packed,
        ):
            for file in sorted(self.folder.iterdir()):
                if file.is_file() and not file.name.endswith(".part"):
                    packed.add(file, f"{self.folder.name}/{file.name}")


class replaced:  # noqa: N801  # used as a function
    """A file that is written beside another one and takes its place when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f"{path.name}.part")

    def __enter__(self) -> Path:
        return self._beside

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            os.replace(self._beside, self._path)


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
