# SPDX-License-Identifier: Apache-2.0
"""`commensal set`, `pause` and `resume`: change a job while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from commensal._coordinator import Change, Coordinator, Refused, Unreachable
from commensal._quantities import (
    MemoryRange,
    ShareRange,
    parse_memory_range,
    parse_share_range,
)
from commensal._say import say
from commensal.cli._options import NO_COORDINATOR, REFUSED, Instance, blaming, coordinator_of

__all__ = ["pause", "register", "resume", "set_job"]

_Job = Annotated[str, typer.Argument(help="Id or unambiguous name of the job.", metavar="JOB")]


def register(app: typer.Typer) -> None:
    app.command("set")(set_job)
    app.command("pause")(pause)
    app.command("resume")(resume)


def set_job(
    context: typer.Context,
    job: _Job,
    memory: Annotated[
        str | None,
        typer.Option(help="Device memory; one value alone as in 'run'.", metavar="MIN[:MAX]"),
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="Share of the device's time, 0..1.", metavar="MIN[:MAX]")
    ] = None,
    instance: Instance = None,
) -> None:
    """Change memory or share of a running job."""
    if memory is None and share is None:
        raise typer.BadParameter("nothing to change", param_hint="'--memory' / '--share'")
    # Values are checked before anybody is asked; the class only decides what one value means.
    _parse(memory, share, guaranteed=False)
    coordinator = coordinator_of(context, instance)
    with _reporting():
        guaranteed = _is_guaranteed(coordinator, job)
        memory_range, share_range = _parse(memory, share, guaranteed=guaranteed)
        _tell(job, coordinator.set(job, memory=memory_range, share=share_range))


def pause(context: typer.Context, job: _Job, instance: Instance = None) -> None:
    """Close a job's gate: its next ops wait until 'resume'."""
    with _reporting():
        _tell(job, coordinator_of(context, instance).set(job, paused=True))


def resume(context: typer.Context, job: _Job, instance: Instance = None) -> None:
    """Open the gate of a paused job again."""
    with _reporting():
        _tell(job, coordinator_of(context, instance).set(job, paused=False))


def _parse(
    memory: str | None, share: str | None, *, guaranteed: bool
) -> tuple[MemoryRange | None, ShareRange | None]:
    memory_range, share_range = None, None
    with blaming("--memory"):
        if memory is not None:
            memory_range = parse_memory_range(memory, guaranteed=guaranteed)
    with blaming("--share"):
        if share is not None:
            share_range = parse_share_range(share, guaranteed=guaranteed)
    return memory_range, share_range


def _is_guaranteed(coordinator: Coordinator, job: str) -> bool:
    jobs = [one for one in coordinator.status(job)["jobs"] if not one.get("ended")]
    return bool(jobs) and jobs[0]["job"]["class"] == "guaranteed"


def _tell(job: str, change: Change) -> None:
    """Print what came of a change; a refusal ends with code 4."""
    reason = f": {change.reason}" if change.reason else ""
    line = f"{job}: {change.outcome} (revision {change.revision}){reason}"
    if change.outcome in ("refused", "stale"):
        say(line)
        raise typer.Exit(REFUSED)
    print(line)


@contextmanager
def _reporting() -> Iterator[None]:
    """Turn the coordinator's silence or refusal into a line and an exit code."""
    try:
        yield
    except Unreachable as error:
        say(str(error))
        raise typer.Exit(NO_COORDINATOR) from None
    except Refused as error:
        say(str(error))
        raise typer.Exit(REFUSED) from None
