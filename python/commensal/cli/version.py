# SPDX-License-Identifier: Apache-2.0
"""`commensal version`."""

from __future__ import annotations

import typer

import commensal
from commensal._activation import adaptor_versions
from commensal._coordinator import find_daemon

__all__ = ["register", "version"]


def register(app: typer.Typer) -> None:
    app.command("version")(version)


def version() -> None:
    """Show the version, the PyTorch versions it was built for, and where the daemon is."""
    print(f"commensal {commensal.__version__}")
    print(f"built for PyTorch {', '.join(adaptor_versions()) or 'no version'}")
    print(f"commensald {find_daemon() or 'not found'}")
