# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/stages.sh builds without CMake: each library has the sources that CMake's has."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tool("tests/gpu", "allocator", "torch_ext")

ROOT = Path(__file__).resolve().parents[2]
DATABASE = ROOT / "build" / "release" / "compile_commands.json"
DEADLINE = 300
# Stands for the compiler: an object is CMake's of the same source, and the rest is the real one's
# work. So what is linked is what stages.sh names, without the minutes that compiling takes. CMake
# compiles several sources in one go: the first of them has the object of all, the others none.
COMPILER = """#!{python}
import json, os, shutil, sys
arguments = sys.argv[1:]
if "-c" not in arguments:
    os.execvp("{real}", ["{real}", *arguments])
source, target = os.path.abspath(arguments[-1]), arguments[arguments.index("-o") + 1]
known = json.load(open("{objects}"))
if source not in known:
    sys.exit(f"CMake does not compile {{source}}")
shutil.copyfile(known[source], target)
print(source, file=open("{compiled}", "a"))
"""


def objects() -> dict[tuple[str, ...], str]:
    """Return the objects of the release build by their sources; of two the position-independent."""
    if not DATABASE.exists():
        pytest.skip("there is no release build: ./scripts/test makes it")
    found: dict[tuple[str, ...], str] = {}
    for entry in json.loads(DATABASE.read_text()):
        words = shlex.split(entry["command"])
        sources = (entry["file"],)
        if "/Unity/" in entry["file"]:
            text = Path(entry["file"]).read_text()
            sources = tuple(re.findall(r'^#include "(.*)"', text, re.MULTILINE))
        file = Path(entry["directory"], words[words.index("-o") + 1])
        if any("/tests/" in source for source in sources):
            continue
        if file.exists() and (sources not in found or "-fPIC" in words):
            found[sources] = str(file)
    return found


def place_of_torch() -> tuple[Path, str]:
    import torch

    if not torch.version.cuda:
        pytest.skip("this PyTorch has no CUDA")
    return Path(torch.__file__).parent, torch.__version__


@pytest.mark.slow
def test_what_a_bare_machine_builds_links_and_runs(tmp_path: Path) -> None:
    folder, version = place_of_torch()
    batches = objects()
    empty = tmp_path / "empty.o"
    subprocess.run(["g++", "-x", "c++", "-c", os.devnull, "-o", str(empty)], check=True)
    known = {source: str(empty) for batch in batches for source in batch[1:]}
    known |= {batch[0]: file for batch, file in batches.items()}
    if not any("torch_ext/cuda/" in source for source in known):
        pytest.skip("the CUDA adaptor is not built: it needs CUDA's headers")
    (tmp_path / "objects.json").write_text(json.dumps(known))
    compiler = tmp_path / "compiler"
    compiler.write_text(
        COMPILER.format(
            python=sys.executable,
            real="g++",
            objects=tmp_path / "objects.json",
            compiled=tmp_path / "compiled",
        )
    )
    compiler.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    environment: dict[str, Any] = os.environ | {
        "here": str(ROOT / "tests" / "gpu"),
        "root": str(ROOT),
        "work": str(work),
        "simulated": "",
        "PYTHON": sys.executable,
        "PRODUCT": "built",
        "torch_dir": str(folder),
        "torch_version": version,
        "cuda_include": str(folder),  # nothing is compiled
        "compiler": str(compiler),
    }
    environment.pop("BUNDLE", None)
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "stages.sh"), "product"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("commensal "), "the product says its version"
    compiled = set((tmp_path / "compiled").read_text().splitlines())
    left_out = [set(batch) - compiled for batch in batches if compiled.intersection(batch)]
    assert not set().union(*left_out), "sources that CMake has in the same library"
    daemon = subprocess.run(
        [str(work / "product" / "bin" / "commensald"), "--help"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert daemon.returncode == 0, daemon.stderr
    assert "--coordinator" in daemon.stdout
    module = subprocess.run(
        [sys.executable, "-c", "import commensal._core as core; print(core.__file__)"],
        env=os.environ | {"PYTHONPATH": str(work / "product")},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert module.stdout.startswith(str(work / "product")), module.stdout + module.stderr
