#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a Python process on the simulated CUDA driver.

From a shell, with settings as ``NAME=VALUE`` (see README.md)::

    tests/simulated_cuda/run.py MEMORY=268435456 -- script.py its arguments

From Python: ``environment(...)`` is what the process's environment must hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = "libsimulated_cudart.so"
FINGERPRINT = "libsimulated_fingerprint.so"


def library_dir() -> Path | None:
    """Return the folder with the driver: ``SIMULATED_CUDA_LIBRARY_DIR``, else the newest built."""
    if named := os.environ.get("SIMULATED_CUDA_LIBRARY_DIR"):
        return Path(named)
    found = sorted((ROOT / "build").glob(f"*/tests/**/{RUNTIME}"), key=lambda p: p.stat().st_mtime)
    return found[-1].parent if found else None


def environment(
    base: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
    *,
    fingerprints: bool = False,
) -> dict[str, str]:
    """Return ``base`` (default: this process's environment) made to use the simulated driver.

    ``settings`` are those of README.md: ``environment(settings={"MEMORY": 1 << 28})``. With
    ``fingerprints`` the kernel that tells whether memory changed works; otherwise none does.
    """
    made = dict(os.environ if base is None else base)
    folder = library_dir()
    if folder is None:
        raise FileNotFoundError(f"{RUNTIME} is not built: build the target simulated_cudart")
    preload = [str(folder / RUNTIME), *made.get("LD_PRELOAD", "").split()]
    if fingerprints:
        preload.append(str(folder / FINGERPRINT))
    path = [str(folder), *filter(None, made.get("LD_LIBRARY_PATH", "").split(":"))]
    made["LD_PRELOAD"] = " ".join(preload)
    made["LD_LIBRARY_PATH"] = ":".join(path)
    made["TRITON_LIBCUDA_PATH"] = str(folder)
    for name, value in (settings or {}).items():
        made[f"SIMULATED_CUDA_{name}"] = str(value)
    return made


def main(arguments: list[str]) -> NoReturn:
    """Replace this process by the script's; exit with 2 if the arguments are wrong."""
    settings: dict[str, object] = {}
    while arguments and arguments[0] != "--" and "=" in arguments[0]:
        name, _, value = arguments.pop(0).partition("=")
        settings[name] = value
    if arguments and arguments[0] == "--":
        arguments.pop(0)
    if not arguments:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    os.environ.update(environment(settings=settings))
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
