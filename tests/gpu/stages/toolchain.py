# SPDX-License-Identifier: Apache-2.0
"""Where PyTorch, CUDA's headers and what was carried are, as `stages.sh` wants to know it.

toolchain.py COMMAND...    runs a command that knows it
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ROOT", "NoToolchain", "toolchain"]

ROOT = Path(__file__).resolve().parents[3]


class NoToolchain(RuntimeError):
    """Something without which nothing can be built or run is missing; says what."""


def cuda_headers(site: Path, major: str) -> tuple[list[Path], list[Path]]:
    """Return the folders of CUDA's headers and of its libraries, of PyTorch's wheels or a toolkit.

    Raises:
        NoToolchain: there are no headers.
    """
    roots = [site / "nvidia" / f"cu{major}", site / "nvidia" / "cuda_runtime"]
    roots.append(Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda"))
    found = [root / "include" for root in roots if (root / "include" / "nvrtc.h").exists()]
    if not found:
        raise NoToolchain("no CUDA headers: neither beside torch nor in a toolkit (CUDA_HOME)")
    # The wheels' headers lack those in crt/, which a toolkit has, and Triton.
    whole = [folder for folder in found if (folder / "crt/host_config.h").exists()]
    triton = site / "triton/backends/nvidia/include"
    rest = [triton] if not whole and (triton / "crt/host_config.h").exists() else []
    libraries = [root / name for root in roots for name in ("lib", "lib64")]
    return whole[:1] or [found[0], *rest], [folder for folder in libraries if folder.is_dir()]


def unpack_wheels(bundle: Path, site: Path) -> None:
    """Unpack wheels of pure Python, or for any Python 3: unpacked is installed."""
    for wheel in sorted((bundle / "wheels").glob("*.whl")):
        mark = site / f"{wheel.name}.unpacked"
        if not mark.exists():
            with zipfile.ZipFile(wheel) as packed:
                packed.extractall(site)
            mark.touch()


def joined(*paths: object) -> str:
    return ":".join(str(path) for path in paths if str(path))


def toolchain(given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with what `stages.sh` uses.

    Raises:
        NoToolchain: there is no PyTorch, no CUDA headers or no compiler.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoToolchain(f"{sys.executable} does not import torch")
    torch = Path(spec.origin).parent
    version = runpy.run_path(str(torch / "version.py"))
    major = (version["cuda"] or "0").split(".")[0]
    headers, libraries = cuda_headers(torch.parent, major)
    compiler = given.get("CXX") or "g++"
    if shutil.which(compiler) is None:
        raise NoToolchain(f"no {compiler}")
    work = Path(given.get("BUILD") or ROOT / "build" / "gpu").absolute()
    work.mkdir(parents=True, exist_ok=True)
    python_path, library_path = given.get("PYTHONPATH", ""), given.get("LD_LIBRARY_PATH", "")
    found = {"GTEST_ROOT": given.get("GTEST_ROOT", ""), "carried": "/nowhere"}
    if given.get("BUNDLE"):
        bundle = Path(given["BUNDLE"]).absolute()
        unpack_wheels(bundle, work / "site")
        python_path = joined(work / "site", python_path)
        library_path = joined(bundle / "lib", library_path)
        found = {
            "GTEST_ROOT": given.get("GTEST_ROOT") or str(bundle),
            "BUNDLE": str(bundle),
            "carried": str(bundle / "objects"),
        }
    return {
        **given,
        **found,
        "PYTHON": sys.executable,
        "PYTHONPATH": python_path,
        "LD_LIBRARY_PATH": joined(library_path, *libraries),
        "PRODUCT": given.get("PRODUCT") or "built",
        "here": str(ROOT / "tests" / "gpu"),
        "root": str(ROOT),
        "work": str(work),
        "torch_dir": str(torch),
        "torch_version": version["__version__"],
        "cuda_include": joined(*headers),
        "compiler": compiler,
    }


if __name__ == "__main__":
    try:
        environment = toolchain(os.environ)
    except NoToolchain as missing:
        sys.exit(f"toolchain: {missing}")
    os.execvpe(sys.argv[1], sys.argv[1:], environment)
