# SPDX-License-Identifier: Apache-2.0
"""`commensal version`."""

from __future__ import annotations

import json
import platform

import typer

import commensal
from commensal._activation import adaptor_versions
from commensal._coordinator import find_daemon
from commensal.cli._manual import manual
from commensal.cli._options import AsJson

__all__ = ["register", "version"]


def register(app: typer.Typer) -> None:
    app.command(
        "version",
        epilog=manual(
            [
                ("commensal version", "what is installed"),
                ("commensal version --json | jq -r .torch[]", "the PyTorch versions alone"),
            ],
            [0, 2],
            [],
        ),
    )(version)


def version(as_json: AsJson = False) -> None:
    """Show what is installed, and where.

    The version, the PyTorch versions it was built for, and where the daemon is. Asks nobody and
    imports no PyTorch. 'commensal doctor' tells whether all this works here.
    """
    torch, daemon = list(adaptor_versions()), find_daemon()
    if as_json:
        report = {
            "schema": 1,
            "version": commensal.__version__,
            "torch": torch,
            "python": platform.python_version(),
            "daemon": None if daemon is None else str(daemon),
        }
        print(json.dumps(report, indent=2))
        return
    print(f"commensal {commensal.__version__}")
    print(f"built for PyTorch {', '.join(torch) or 'no version'}")
    print(f"commensald {daemon or 'not found'}")
