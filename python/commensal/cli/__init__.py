# SPDX-License-Identifier: Apache-2.0
"""The command `commensal`.

Results go to stdout, trouble and our own remarks to stderr. Exit codes:

    0    done
    1    something is broken (doctor, demo), or a file cannot be read or written
    2    usage: an unknown option or a wrong value, named on stderr
    3    no coordinator answers
    4    the coordinator refused, with its reason on stderr

`commensal run` ends with the script's own code: 128 + n or death by the same signal if signal n
ended it, 127 if the command is not found, 126 if it cannot be executed.

Nothing here imports PyTorch, NumPy or matplotlib, rich only where a table is drawn, and of the
commands only the one that is asked for.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from commensal._coordinator import Coordinator
from commensal._environment import check_instance, default_instance, default_runtime_dir
from commensal._say import stand_in_for_closed_streams
from commensal.cli._manual import EXIT_CODES, manual
from commensal.cli._options import blaming

__all__ = ["app", "main"]

_MANUAL = manual(
    [
        ("commensal run --guaranteed -- python train.py", "a job that trains as if alone"),
        ("commensal run -- python other.py", "another one, which lives in its gaps"),
        ("commensal top", "watch both"),
        ("commensal submit -- python train.py", "let the cluster's coordinator start it"),
        ("commensal COMMAND --help", "all about one command"),
    ],
    EXIT_CODES
    | {
        "N": "'run' and 'profile': the script's own; 127 not found, 126 not executable",
    },
    ["COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR", "NO_COLOR"],
)


# The module of each command, in the order of the help. A module's `register` adds its commands.
_MODULES = {
    **{name: name for name in ("run", "status", "top", "explain", "logs", "memory")},
    **dict.fromkeys(("set", "pause", "resume"), "control"),
    "submit": "submit",
    **dict.fromkeys(("queue", "cancel", "nodes", "backup", "state", "tenants"), "cluster"),
    **dict.fromkeys(("drain", "undrain"), "cluster"),
    **{name: name for name in ("page", "profile", "doctor", "simulate", "demo", "version")},
    **{"quota": "cluster", "inputs": "inputs", "keys": "keys"},
}


class _Commands(TyperGroup):
    """The commands. Each is made when it is asked for: all of them take longer than most do.

    A wrong value is named: some versions of typer leave out what was typed.
    """

    def list_commands(self, _: typer.Context) -> list[str]:  # type: ignore[override]
        return list(_MODULES)

    def get_command(self, _: typer.Context, cmd_name: str) -> Any:  # type: ignore[override]
        if cmd_name not in _MODULES:
            for name in _MODULES:  # for what is said of names that are much like it
                self._make(name)
            return None
        return self._make(cmd_name)

    def _make(self, name: str) -> Any:
        if name not in self.commands:
            made = typer.Typer(rich_markup_mode=None, add_completion=False)
            import_module(f"commensal.cli.{_MODULES[name]}").register(made)
            groups = [group.typer_instance for group in made.registered_groups]
            for commands in (made, *filter(None, groups)):
                for command in commands.registered_commands:
                    command.cls = _Command
            self.commands.update(get_group(made).commands)
        return self.commands[name]

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            told = getattr(error.__cause__, "errors", None)  # pydantic's, of newer versions
            if told is None:
                raise
            wrong = told()[0]["input"]
            if str(wrong) not in error.message.split():
                error.message += f": {wrong!r}"
            raise


class _Command(TyperCommand):
    """A command that takes "-1" for an argument, and so can say what is wrong with it.

    Not where words of a script follow: there it is an option that does not exist.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        ours = args[: args.index("--")] if "--" in args else args
        if ctx.allow_interspersed_args and any(map(_NEGATIVE.fullmatch, ours)):
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)


_NEGATIVE = re.compile(r"-\.?\d.*")

app = typer.Typer(
    name="commensal",
    cls=_Commands,
    help="Training jobs that live in the gaps of others, for stock PyTorch.\n\n"
    "A guaranteed job is given a device; an opportunistic one takes the time and the memory that "
    "it leaves, and gives them back at once. Scripts do not change. One coordinator a machine "
    "divides the device; 'run' starts it.",
    epilog=_MANUAL,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    context: typer.Context,
    instance: Annotated[
        str | None,
        typer.Option(
            help="Which coordinator of this machine (default: COMMENSAL_INSTANCE, else 'default').",
            metavar="NAME",
        ),
    ] = None,
    runtime_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder of its sockets (default: COMMENSAL_RUNTIME_DIR, see docs/environment.md).",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    with blaming("--instance"):
        name = check_instance(instance) if instance is not None else default_instance(os.environ)
    context.obj = Coordinator(name, (runtime_dir or default_runtime_dir(os.environ)).absolute())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code (see the module's text)."""
    stand_in_for_closed_streams()
    try:
        app(args=list(sys.argv[1:] if argv is None else argv), prog_name="commensal")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BrokenPipeError:
        # `commensal status | head`: nobody reads on, and the interpreter shall not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return 0
