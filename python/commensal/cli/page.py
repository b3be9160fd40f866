# SPDX-License-Identifier: Apache-2.0
"""`commensal page`: the address of the cluster's page, with the token that its buttons need."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from commensal._cluster import cluster_of
from commensal._coordinator import Refused
from commensal.cli._manual import manual
from commensal.cli._options import Instance, brought_back, coordinator_of, reporting

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "page",
        epilog=manual(
            [
                ("commensal page", "the address, to be opened in a browser"),
                ("commensal page --open", "opens it"),
                (
                    "ssh -L PORT:127.0.0.1:PORT HOST",
                    "brings the page of another machine here, under the same address",
                ),
            ],
            [0, 2, 3, 4],
        ),
    )(page)


def page(
    context: typer.Context,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    instance: Instance = None,
) -> None:
    """Show the address of the cluster's page.

    What follows '#token=' lets its holder cancel jobs, drain nodes and set quotas. A browser does
    not send it to anybody but the coordinator.
    """
    cluster = brought_back(cluster_of(coordinator_of(context, instance)))
    with reporting(cluster):
        told = cluster.ask("nodes")["coordinator"]
        address = _address(told.get("page", ""), told.get("page_token_file", ""))
    print(address)
    if open_it:
        webbrowser.open(address)


def _address(page: str, token_file: str) -> str:
    """@raises Refused."""
    if not page:
        raise Refused(
            "this coordinator has no page: it was started with --http off, or its log says why"
        )
    try:
        token = Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise Refused(f"the page's token cannot be read: {token_file}: {error}") from error
    return f"{page}#token={token}"
