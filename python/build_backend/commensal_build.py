# SPDX-License-Identifier: Apache-2.0
"""Build backend: scikit-build-core, after a check that it runs where PyTorch is installed.

commensal is compiled against the installed PyTorch. An isolated build would fetch another one and
produce a library that does not load, so it is refused with one sentence.
"""

from __future__ import annotations

import importlib.util
from typing import Any

_NEEDED = {
    "torch": "torch==2.11.*",
    "scikit_build_core": "scikit-build-core",
    "pybind11": "pybind11",
}


def _check() -> None:
    missing = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        packages = " ".join(f"'{name}'" for name in missing)
        raise SystemExit(
            "commensal is built against the PyTorch that is installed, so build it in that "
            f"environment: pip install --no-build-isolation .  (missing here: {packages})"
        )


def _backend() -> Any:
    _check()
    import scikit_build_core.build

    return scikit_build_core.build


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    return list(_backend().get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    return list(_backend().get_requires_for_build_editable(config_settings))


def prepare_metadata_for_build_wheel(directory: str, config_settings: Any = None) -> str:
    return str(_backend().prepare_metadata_for_build_wheel(directory, config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: Any = None) -> str:
    return str(_backend().prepare_metadata_for_build_editable(directory, config_settings))


def build_wheel(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    return str(_backend().build_wheel(directory, config_settings, metadata))


def build_editable(directory: str, config_settings: Any = None, metadata: str | None = None) -> str:
    return str(_backend().build_editable(directory, config_settings, metadata))
