# SPDX-License-Identifier: Apache-2.0
"""`commensal demo`: two real training jobs share this machine, measured and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commensal._say import say

__all__ = ["demo", "register"]


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for report.html, the picture and the figures.")
    ] = Path("demo-report"),
    seconds: Annotated[
        int | None,
        typer.Option(min=1, help="A shorter run of about this long; not judged.", metavar="N"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there.", metavar="FILE")
    ] = None,
) -> None:
    """Let a guaranteed and an opportunistic job share this machine, and report what it cost."""
    try:
        from commensal.demo import main
    except ImportError as error:
        say(f"the demo needs a package that is missing: {error} (pip install 'commensal[demo]')")
        raise typer.Exit(1) from None
    raise typer.Exit(main(out, seconds, json_file))
