# SPDX-License-Identifier: Apache-2.0
"""What experiments with the simulator share: its runs, their JSON, tables and pictures."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

__all__ = ["DATA", "Words", "given", "markdown", "run_all", "unpacked", "write_json"]

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"

Words = Sequence[str]


def given(description: str | None, argv: Words | None) -> Namespace:
    """Read the options that every experiment has: --program, --out, --small."""
    parser = ArgumentParser(description=(description or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--program", type=Path, help="commensal-simulate")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", help="has the folders results and images"
    )
    parser.add_argument("--small", action="store_true", help="a few runs, to see that it works")
    options = parser.parse_args(argv)
    beside = Path(sys.executable).with_name("commensal-simulate")
    found = options.program or (beside if beside.exists() else shutil.which(beside.name))
    if found is None:
        parser.error("commensal-simulate is not installed: --program PATH")
    options.program = Path(found)
    for folder in ("results", "images"):
        (options.out / folder).mkdir(parents=True, exist_ok=True)
    return options


def run_all(program: Path, runs: Iterable[Words]) -> list[dict[str, Any]]:
    """Run commensal-simulate with each of these words, several at a time; return the results."""

    def one(words: Words) -> dict[str, Any]:
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)["results"][0]
        return result

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(one, runs))


def unpacked(name: str, folder: Path) -> Path:
    """Unpack a trace of tests/data/cluster-traces into a folder."""
    file = folder / name.removesuffix(".xz")
    file.write_bytes(lzma.decompress((DATA / "cluster-traces" / name).read_bytes()))
    return file


def markdown(heading: Words, rows: Iterable[Words]) -> str:
    """Return a table, texts to the left."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
