# SPDX-License-Identifier: Apache-2.0
"""`commensal doctor`: what is active here, what is not, and why."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from commensal.cli._options import Instance, coordinator_of

__all__ = ["doctor", "register"]


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    instance: Instance = None,
) -> None:
    """Say what works here, what does not, and why. Exits with 1 only if something is broken.

    A machine without a GPU, without a running coordinator or without root is not broken.
    """
    from commensal.cli._checks import examine

    checks = examine(coordinator_of(context, instance))
    broken = any(check.state == "broken" for check in checks)
    if as_json:
        listed = [
            {"name": check.name, "state": check.state, "detail": check.detail} for check in checks
        ]
        print(json.dumps({"schema": 1, "broken": broken, "checks": listed}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            print(f"{check.state:<7} {check.name:<{width}}  {check.detail}")
    raise typer.Exit(1 if broken else 0)
