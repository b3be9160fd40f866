# SPDX-License-Identifier: Apache-2.0
"""`commensal doctor`: what is active here or in a cluster, what is not, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, NoReturn

import typer

from commensal.cli._manual import manual
from commensal.cli._options import (
    AsJson,
    Instance,
    RemoteAddress,
    cluster_for,
    coordinator_of,
)

__all__ = ["doctor", "register"]


def register(app: typer.Typer) -> None:
    app.command(
        "doctor",
        epilog=manual(
            [
                ("commensal doctor", "one line a check: ok, note, off or broken, and why"),
                ("commensal doctor --json", "the same for scripts"),
                ("commensal doctor --cluster", "ok, warning or error, and what to do"),
            ],
            {0: "nothing is broken", 1: "something is broken", 2: "usage"},
            [
                *("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR", "COMMENSAL_SPILL_DIR"),
                *("COMMENSAL_COORDINATOR", "COMMENSAL_KEY", "COMMENSAL_KEYS_DIR"),
            ],
        ),
    )(doctor)


def doctor(
    context: typer.Context,
    cluster: Annotated[
        bool,
        typer.Option("--cluster", help="Look at the cluster's coordinator and its nodes instead."),
    ] = False,
    as_json: AsJson = False,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Say what works here, what does not, and why. Exits with 1 only if something is broken.

    A machine without a GPU, without a running coordinator or without root is not broken. Each
    check tries the thing itself where that is harmless; nothing is changed.

    With --cluster, or --coordinator, the cluster is looked at instead: not both at once, since a
    node is well without one, and must be told so without waiting for a network.
    """
    if cluster or coordinator:
        _of_cluster(context, instance, coordinator, as_json)
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


def _of_cluster(
    context: typer.Context, instance: str | None, address: str | None, as_json: bool
) -> NoReturn:
    from commensal import __version__
    from commensal.cli._cluster_checks import examine_cluster

    asked = cluster_for(coordinator_of(context, instance), address)
    findings = examine_cluster(asked, __version__)
    broken = any(finding.state == "error" for finding in findings)
    if as_json:
        listed = [asdict(finding) for finding in findings]
        print(json.dumps({"schema": 1, "broken": broken, "checks": listed}, indent=2))
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            print(f"{finding.state:<7} {finding.name:<{width}}  {finding.detail}")
            if finding.do:
                print(f"{'':<7} {'':<{width}}  -> {finding.do}")
    raise typer.Exit(1 if broken else 0)
