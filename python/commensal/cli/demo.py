# SPDX-License-Identifier: Apache-2.0
"""`commensal demo`: two real training jobs share this machine, measured and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commensal._say import say
from commensal.cli._manual import manual
from commensal.cli._options import blaming
from commensal.demo.plan import DEVICES

__all__ = ["demo", "register"]


def register(app: typer.Typer) -> None:
    app.command(
        "demo",
        epilog=manual(
            [
                ("commensal demo", "the whole run, under 4 minutes on 2 cores"),
                ("commensal demo --seconds 30 --out /tmp/look", "a short look, not judged"),
                ("commensal demo --json figures.json", "also the figures, for scripts"),
                ("commensal demo --device cpu", "on the machine's cores, though it has a GPU"),
            ],
            {0: "done, and its own checks hold", 1: "a check failed, with the reason", 2: "usage"},
            ["NO_COLOR", "TMPDIR"],
        ),
    )(demo)


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
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda, or auto: a GPU if PyTorch sees one that is free enough.",
            metavar="DEVICE",
        ),
    ] = "auto",
) -> None:
    """Let two jobs share this machine, and report.

    A guaranteed and an opportunistic training job run on real data: each alone, both with the
    machine's default sharing, and both under commensal. It compares their speeds and results, and
    writes a page with pictures. A window in which others used the machine is repeated. Where there
    is a GPU, they share that one (experimental: on the one card that it ran on, its end was not
    reached).
    """
    if device not in DEVICES:
        with blaming("--device"):
            raise ValueError(f"must be {', '.join(DEVICES[:-1])} or {DEVICES[-1]}: {device!r}")
    try:
        from commensal.demo import main
    except ImportError as error:
        say(f"the demo needs a package that is missing: {error} (pip install 'commensal[demo]')")
        raise typer.Exit(1) from None
    raise typer.Exit(main(out, seconds, json_file, device))
