# SPDX-License-Identifier: Apache-2.0
"""What the installed package consists of, and how a wrong build is refused."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from mypy import stubtest
from world import COMMENSAL, DEADLINE

import commensal

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(commensal.__file__).parent


def test_an_isolated_build_is_refused_in_one_sentence() -> None:
    # What pip's isolated environment is to the backend: no site-packages.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _CALL_BACKEND, str(ROOT / "python" / "build_backend")],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "pip install --no-build-isolation ." in done.stderr
    assert "'torch==2.11.*'" in done.stderr


_CALL_BACKEND = """
import sys
sys.path.insert(0, sys.argv[1])
import commensal_build
commensal_build.get_requires_for_build_wheel()
"""


def test_the_version_is_told_once() -> None:
    assert metadata.version("commensal") == commensal.__version__


def test_the_package_is_complete() -> None:
    for name in ("py.typed", "_core.pyi", "cli/__init__.py", "demo/__init__.py"):
        assert (PACKAGE / name).is_file(), name
    assert list(PACKAGE.glob("_core.*.so"))
    for name in ("commensald", "commensal-simulate"):
        assert (COMMENSAL.parent / name).is_file(), name


def test_only_the_adaptor_links_torch() -> None:
    binaries = [
        *PACKAGE.glob("_core.*.so"),
        *PACKAGE.glob("lib/*.so*"),
        COMMENSAL.parent / "commensald",
        COMMENSAL.parent / "commensal-simulate",
    ]
    linking = {path.name for path in binaries if b"libtorch_cpu.so" in path.read_bytes()}
    assert len(binaries) >= 4
    # The adaptor is in two parts: the second is for a PyTorch with CUDA.
    adaptor = ("libcommensal_torch-", "libcommensal_torch_cuda-")
    assert all(name.startswith(adaptor) for name in linking), linking
    assert linking


def test_the_stub_names_what_the_module_has(tmp_path: Path) -> None:
    # pybind11's classes have a metaclass and a constructor (which refuses) that no stub shows.
    allowed = tmp_path / "allowed"
    allowed.write_text(r"commensal\._core\.(JobPage|LimitTicket|Session|TagTicket)(\.__init__)?")
    # With the package's own settings, or all of PyTorch would be read.
    options = stubtest.parse_options(
        [
            *("commensal._core", "--allowlist", str(allowed)),
            *("--mypy-config-file", str(ROOT / "pyproject.toml")),
        ]
    )
    assert stubtest.test_stubs(options) == 0
