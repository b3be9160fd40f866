# SPDX-License-Identifier: Apache-2.0
"""`commensal run`: a script as a job that shares this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from commensal._environment import JobSettings, check_instance, check_law, new_job_id
from commensal._quantities import (
    MemoryRange,
    ShareRange,
    parse_memory_range,
    parse_share_range,
)
from commensal.cli import _child
from commensal.cli._coordinator import Coordinator
from commensal.cli._options import blaming, say

__all__ = ["job_name", "register", "run"]


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        context_settings={"allow_interspersed_args": False},
        epilog="Ends with the script's exit code; 127: command not found, 126: not executable.",
    )(run)


def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(help="The script and its arguments, after --.", metavar="COMMAND")
    ],
    guaranteed: Annotated[
        bool,
        typer.Option(
            "--guaranteed/--opportunistic",
            help="Must run as if alone, or lives in the gaps of others (the default: it harms "
            "nobody).",
        ),
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Device memory, e.g. 4GiB or 1GiB:4GiB. One value alone is MAX (MIN 0), and both "
            "for a guaranteed job. Default: MIN 0, MAX the device.",
            metavar="MIN[:MAX]",
        ),
    ] = None,
    share: Annotated[
        str | None,
        typer.Option(
            help="Share of the device's time, 0..1, by the same rule. Default: 0:1.",
            metavar="MIN[:MAX]",
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(help="Who the job belongs to.")] = "default",
    name: Annotated[
        str | None, typer.Option(help="How 'status' calls it. Default: the script's name.")
    ] = None,
    law: Annotated[
        str,
        typer.Option(
            help="Pacing law: gap, duty_cycle or open. Default: gap for an opportunistic "
            "job, open for a guaranteed one."
        ),
    ] = "",
    idle_class: Annotated[
        bool,
        typer.Option(
            "--idle-class/--no-idle-class",
            help="Let an opportunistic job's threads enter the kernel's idle class.",
        ),
    ] = True,
    instance: Annotated[
        str | None, typer.Option(help="Which coordinator of this machine.", metavar="NAME")
    ] = None,
    spill_dir: Annotated[
        Path | None, typer.Option(help="Folder of the spill file (default: /var/tmp).")
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No line of ours unless something is wrong.")
    ] = False,
) -> None:
    """Run a script, unmodified, as a job that shares this machine.

    Starts the coordinator if none runs. Signals, exit code, stdin, stdout and stderr are the
    script's own; our lines go to stderr. Without a coordinator the script trains all the same.
    """
    coordinator: Coordinator = context.obj
    if name is not None and not name.strip():
        raise typer.BadParameter(f"empty name: {name!r}", param_hint="'--name'")
    job = name or job_name(command)
    memory_range, share_range = MemoryRange(), ShareRange()
    with blaming("--memory"):
        if memory is not None:
            memory_range = parse_memory_range(memory, guaranteed=guaranteed)
    with blaming("--share"):
        if share is not None:
            share_range = parse_share_range(share, guaranteed=guaranteed)
    with blaming("--law"):
        check_law(law)
    with blaming("--instance"):
        if instance is not None:
            coordinator = replace(coordinator, instance=check_instance(instance))
    settings = JobSettings(
        job_id=new_job_id(job),
        name=job,
        job_class="guaranteed" if guaranteed else "opportunistic",
        tenant=tenant,
        memory=memory_range,
        share=share_range,
        law=law,
        idle_class=idle_class,
        instance=coordinator.instance,
        runtime_dir=coordinator.runtime_dir,
        spill_dir=spill_dir.absolute() if spill_dir else None,
        quiet=quiet,
    )
    _child.end_like(_run_job(settings, coordinator, command))


def _run_job(settings: JobSettings, coordinator: Coordinator, command: Sequence[str]) -> int:
    """Run the job; return its exit code, or -n if signal n ended it."""
    if reason := coordinator.ensure_running():
        say(f"no coordinator, the job runs on its own limits: {reason}")
    folder = _make_folder()
    if folder is not None:
        settings = replace(settings, summary_file=folder / "summary")
    environ = {
        key: value for key, value in os.environ.items() if not key.startswith("COMMENSAL_PRIMARY_")
    }
    environ.update(settings.to_environ())
    idle = settings.idle_class and settings.job_class == "opportunistic" and _child.may_renice()
    started = time.monotonic()
    try:
        code = _child.run_child(command, environ, idle_class=idle)
        if not settings.quiet:
            _say_how_it_went(settings, coordinator, time.monotonic() - started)
    except _child.CannotStart as error:
        say(str(error))
        return error.code
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _say_how_it_went(settings: JobSettings, coordinator: Coordinator, seconds: float) -> None:
    from commensal.cli._end_line import collect, describe_end

    try:
        say(describe_end(collect(settings, coordinator, seconds)))
    except Exception as error:  # the script's end is not ours to spoil
        say(f"no summary: {error!r}")


def _make_folder() -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="commensal-run-"))
    except OSError:
        return None  # no room: the job runs, only its last line knows less


def job_name(command: Sequence[str]) -> str:
    """Name a job after its script: train.py -> train, -m pkg.train -> pkg.train."""
    for previous, argument in zip(("", *command), command, strict=False):
        if argument.endswith(".py"):
            return Path(argument).stem
        if previous == "-m" and argument not in ("torch.distributed.run",):
            return argument
    return Path(command[0]).name
