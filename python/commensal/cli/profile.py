# SPDX-License-Identifier: Apache-2.0
"""`commensal profile`: what a neighbour could take from a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commensal._say import say
from commensal.cli._manual import manual
from commensal.cli._options import BROKEN
from commensal.cli.run import job_name

if TYPE_CHECKING:
    from commensal.profiling.report import Profile

__all__ = ["profile", "register"]


def register(app: typer.Typer) -> None:
    app.command(
        "profile",
        context_settings={"allow_interspersed_args": False},
        epilog=manual(
            [
                ("commensal profile -- python train.py", "until the script ends, or Ctrl-C"),
                ("commensal profile --seconds 60 -- python train.py", "ends it after a minute"),
                (
                    "commensal profile --steps 200 --json p.json -- python train.py",
                    "also the figures, for scripts",
                ),
            ],
            {
                "N": "the script's own; 128 + n if signal n ended it",
                0: "--seconds or --steps ended it",
                1: "the report could not be written",
                2: "usage: an unknown option or a wrong value, named on stderr",
                126: "the command cannot be executed",
                127: "the command is not found",
            },
            ["COMMENSAL_SPILL_DIR", "TMPDIR"],
        ),
    )(profile)


def profile(
    command: Annotated[
        list[str], typer.Argument(help="The script and its arguments, after --.", metavar="COMMAND")
    ],
    seconds: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="End the script after so many, the warm-up not counted.", metavar="N"
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="End the script after so many, the same.", metavar="N"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for profile.png and profile.json.", metavar="DIR")
    ] = Path("profile-report"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures there.", metavar="FILE")
    ] = None,
) -> None:
    """Run a job alone and say what a neighbour could take.

    The script runs unmodified, as a guaranteed job with a coordinator of its own. Meanwhile its
    processor time is read every 3 ms from outside, its steps and waits from the page that it
    publishes, and which of its memory it touches from the kernel. The report on stderr: busy
    share, gaps by phase, cold memory, and what follows from them. What else used the machine is
    measured and said. stdin, stdout and stderr are the script's own.
    """
    from commensal.profiling.conduct import CannotRun, Limits, run_profile
    from commensal.profiling.report import describe, to_json

    files = [out / "profile.json", *([json_file] if json_file else [])]
    with _writing(BROKEN):  # better now than when the script has run
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
    try:
        seen = run_profile(command, job_name(command), Limits(seconds, steps))
    except CannotRun as error:
        say(str(error))
        raise typer.Exit(error.code) from None
    say(describe(seen))
    with _writing(seen.exit_code or BROKEN):
        for file in files:
            file.write_text(json.dumps(to_json(seen), indent=2) + "\n", encoding="utf-8")
        say(f"report: {_draw(out, seen)}")
    raise typer.Exit(seen.exit_code)


@contextmanager
def _writing(code: int) -> Iterator[None]:
    """Turn what the system refuses into a line and an exit code."""
    try:
        yield
    except OSError as error:
        say(f"cannot write the report: {error.filename}: {error.strerror}")
        raise typer.Exit(code) from None


def _draw(out: Path, seen: Profile) -> str:
    """Draw the picture if there are figures and matplotlib; return what was written."""
    figures = str(out / "profile.json")
    if seen.analysis is None:
        return figures
    try:
        from commensal.profiling.picture import draw
    except ImportError as error:
        return f"{figures} (no picture, a package is missing: {error})"
    draw(out / "profile.png", seen)
    return f"{out / 'profile.png'}, {figures}"
