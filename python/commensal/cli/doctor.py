# SPDX-License-Identifier: Apache-2.0
"""`commensal doctor`: what is active here, what is not, and why."""

from __future__ import annotations

import json

import typer

from commensal.cli._manual import manual
from commensal.cli._options import AsJson, Instance, coordinator_of

__all__ = ["doctor", "register"]


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        epilog=manual(
            [
                ("commensal doctor", "one line a check: ok, note, off or broken, and why"),
                ("commensal doctor --json", "the same for scripts"),
            ],
            {0: "nothing is broken", 1: "something is broken", 2: "usage"},
            ["COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR", "COMMENSAL_SPILL_DIR"],
        ),
    )(doctor)


def doctor(context: typer.Context, as_json: AsJson = False, instance: Instance = None) -> None:
    """Say what works here, what does not, and why. Exits with 1 only if something is broken.

    A machine without a GPU, without a running coordinator or without root is not broken. Each
    check tries the thing itself where that is harmless; nothing is changed.
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
