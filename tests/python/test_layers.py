# SPDX-License-Identifier: Apache-2.0
"""Who may know whom: the borders of docs/architecture.md, by what sources include and import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python/commensal"
BASE = "allocator/base"

# A folder of C++ sources, and the others that it may include.
MAY_INCLUDE = {
    BASE: set(),
    "allocator": {BASE, "allocator/host"},
    "allocator/host": {BASE, "allocator"},
    "allocator/cuda": {BASE, "allocator", "allocator/host"},
    "coordinator/wire": {BASE},
    "coordinator/keys": {"coordinator/wire"},
    "coordinator/prediction": set(),
    "coordinator/policies": {BASE, "coordinator/prediction"},
    "coordinator/page": {BASE, "coordinator/wire"},
    "coordinator/node": {BASE, "coordinator/keys", "coordinator/policies", "coordinator/wire"},
    "coordinator/cluster": {
        BASE,
        "coordinator/engines/local",
        "coordinator/engines/slurm",
        "coordinator/keys",
        "coordinator/node",
        "coordinator/page",
        "coordinator/policies",
        "coordinator/prediction",
        "coordinator/wire",
    },
    "coordinator/engines/local": {"coordinator/cluster", "coordinator/node", "coordinator/wire"},
    "coordinator/engines/slurm": {
        BASE,
        "coordinator/cluster",
        "coordinator/engines/local",
        "coordinator/node",
        "coordinator/wire",
    },
    "coordinator/engines/simulator": {
        BASE,
        "coordinator/cluster",
        "coordinator/engines/simulator/readers",
        "coordinator/policies",
        "coordinator/prediction",
        "coordinator/wire",
    },
    "coordinator/engines/simulator/readers": {
        "coordinator/engines/simulator",
        "coordinator/policies",
    },
    "torch_ext/gate": {BASE, "coordinator/wire"},
    "torch_ext/runtime": {
        BASE,
        "allocator",
        "allocator/host",
        "coordinator/wire",
        "torch_ext/gate",
    },
    "torch_ext": {BASE, "allocator", "allocator/host", "torch_ext/gate", "torch_ext/runtime"},
    "torch_ext/cuda": {
        BASE,
        "allocator",
        "allocator/cuda",
        "torch_ext",
        "torch_ext/gate",
        "torch_ext/runtime",
    },
    "python/src": {"allocator/host", "coordinator/keys", "coordinator/wire", "torch_ext/runtime"},
}
# What brings a library's headers along stays in the folders that are meant for it.
LIBRARIES = {
    r"<(torch|ATen|c10)/": {"torch_ext", "torch_ext/cuda"},
    r"<cuda(_runtime\w*)?\.h>": {"allocator/cuda", "torch_ext/cuda"},
    r"<pybind11/": {"python/src"},
    r"<zmq\w*\.hpp>": {
        "coordinator/cluster",
        "coordinator/keys",
        "coordinator/node",
        "coordinator/wire",
        "torch_ext/runtime",
    },
}
# A folder of Python sources, and the others that it may import.
MAY_IMPORT = {
    "": {"cli"},  # __main__
    "cli": {"", "demo", "profiling", "simulation"},
    "_report": set(),
    "demo": {"", "_report"},
    "profiling": {"", "_report"},
    "simulation": {"", "_report"},
    "slurm_auto": {""},
}


def sources() -> list[Path]:
    found = [ROOT / top for top in ("allocator", "torch_ext", "coordinator", "python/src")]
    return [f for top in found for f in top.rglob("*") if f.suffix in {".h", ".cpp", ".cu"}]


def violations(folder: str, text: str) -> list[str]:
    own = re.findall(r'^#include "([^"]+)/[^/"]+"', text, re.M)
    told = [f"{folder} includes {o}" for o in own if o not in {folder, *MAY_INCLUDE[folder]}]
    for library, places in LIBRARIES.items():
        if folder not in places and re.search(rf"^#include {library}", text, re.M):
            told.append(f"{folder} includes {library}")
    return told


def test_sources_include_only_what_their_folder_may() -> None:
    found = {
        f"{file.name}: {one}"
        for file in sources()
        for one in violations(str(file.parent.relative_to(ROOT)), file.read_text())
    }
    assert found == set()


@pytest.mark.parametrize(
    ("folder", "text"),
    [
        ("allocator", '#include "torch_ext/gate/gate.h"'),
        ("torch_ext/gate", "// the gate\n#include <ATen/ATen.h>"),
        ("torch_ext/runtime", "#include <cuda_runtime_api.h>"),
    ],
)
def test_a_source_that_reaches_over_a_border_is_found(folder: str, text: str) -> None:
    assert len(violations(folder, text)) == 1


def module_of(file: Path) -> str:
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("commensal", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {module_of(file): file for file in PACKAGE.rglob("*.py")}


def imported(module: str) -> set[str]:
    """Modules of ours that one imports, at its top or later; but for types alone."""
    found = set()
    tree = ast.parse(MODULES[module].read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {one if one in MODULES else node.module for one in inner}
    # Whoever imports a part of the package has imported the package.
    return {one for one in found if one in MODULES} - {module, "commensal"}


def test_modules_import_only_what_their_folder_may() -> None:
    def folder(module: str) -> str:
        return str(MODULES[module].parent.relative_to(PACKAGE)).removeprefix(".")

    edges = {(folder(m), folder(other)) for m in MODULES for other in imported(m)}
    assert {(a, b) for a, b in edges if a != b and b not in MAY_IMPORT[a]} == set()


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """What is in a circle, or leads into one."""
    while leaves := {one for one, others in graph.items() if not others & graph.keys()}:
        graph = {one: others for one, others in graph.items() if one not in leaves}
    return set(graph)


def test_nothing_imports_or_includes_itself_by_way_of_others() -> None:
    assert in_circles({module: imported(module) for module in MODULES}) == set()
    headers = {
        str(file.relative_to(ROOT)): set(re.findall(r'^#include "([^"]+)"', file.read_text(), re.M))
        for file in sources()
        if file.suffix == ".h"
    }
    assert in_circles(headers) == set()
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"a", "b", "c"}
