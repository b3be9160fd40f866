# SPDX-License-Identifier: Apache-2.0
"""`commensal logs`: what the coordinator decided about a job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal._say import say
from commensal.cli._job_output import print_output
from commensal.cli._log_lines import (
    LogReader,
    Selection,
    find_job,
    registered_jobs,
)
from commensal.cli._manual import manual
from commensal.cli._options import (
    BROKEN,
    NO_COORDINATOR,
    REFUSED,
    AnyJob,
    AsJson,
    Instance,
    RemoteAddress,
    cluster_for,
    coordinator_of,
    not_submitted,
    reporting,
    was_submitted,
)

__all__ = ["logs", "register"]

_LOOK_SECONDS = 0.2
_ASK_SECONDS = 1.0
_ANSWER = timedelta(seconds=2)


def register(app: typer.Typer) -> None:
    app.command(
        "logs",
        epilog=manual(
            [
                ("commensal logs sweep", "the job of that name that runs, else the last one"),
                ("commensal logs sweep-1a2b3c4d -f", "and what comes, until the job ends"),
                ("commensal logs 7 -f", "what job 7 prints, which 'submit' queued"),
                ("commensal logs sweep --json | jq -r .text", "one object a line"),
            ],
            {
                0: "done",
                1: "the log cannot be read",
                2: "usage",
                3: "there is no log: no coordinator has run here",
                4: "no such job, or more than one; the jobs there are stand on stderr",
            },
        ),
    )(logs)


def logs(
    context: typer.Context,
    job: AnyJob,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends (or Ctrl-C).")
    ] = False,
    as_json: AsJson = False,
    log_file: Annotated[
        Path | None,
        typer.Option(
            help="The log, where commensald was started with that option. Default: INSTANCE.log "
            "in the runtime folder.",
            metavar="FILE",
        ),
    ] = None,
    instance: Instance = None,
    remote: RemoteAddress = None,
) -> None:
    """Show what was decided about a job, or what it prints.

    Of a job that 'submit' queued (JOB is its number) these are the lines of its ranks. Of any
    other job they are those of the coordinator's log that name it: its registration, each change
    of its limit or share with the reason, and its end. What the script itself prints goes to its
    own stdout and stderr. The log is kept when a coordinator ends, so ended jobs are found, too.
    """
    coordinator = coordinator_of(context, instance)
    cluster = cluster_for(coordinator, remote)
    if log_file is None and was_submitted(cluster, job):
        with reporting(cluster):
            raise typer.Exit(print_output(cluster, job, follow, as_json))
    path = log_file or coordinator.log_path
    try:
        with closing(LogReader(path)) as log:
            lines = [*log.older(), *log.read()]
            try:
                job_id = _resolve(job, coordinator, lines)
            except LookupError as problem:
                more = not_submitted(cluster, job)
                say(f"{problem.args[0]}; {more}" if more else str(problem.args[0]))
                raise typer.Exit(REFUSED) from None
            selection = Selection(job_id)
            _print(lines, selection, job_id, as_json)
            if follow:
                with suppress(KeyboardInterrupt):
                    for lines in _news(log, job_id, coordinator):
                        _print(lines, selection, job_id, as_json)
    except FileNotFoundError:
        if more := not_submitted(cluster, job):
            say(more)
            raise typer.Exit(REFUSED) from None
        raise typer.Exit(_say_no_log(coordinator, path)) from None
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"cannot read {path}: {error.strerror}")
        raise typer.Exit(BROKEN) from None


def _resolve(job: str, coordinator: Coordinator, lines: list[str]) -> str:
    """Return a job's id. @raises LookupError naming the jobs there are."""
    live: dict[str, str] = {}
    gone = registered_jobs(lines)
    for record in _ask(coordinator) or []:
        job_id, name = record["job"]["id"], record["job"]["name"]
        if record.get("ended"):
            gone[job_id] = name
        else:
            live[job_id] = name
            gone.pop(job_id, None)
    return find_job(job, live, gone)


def _ask(coordinator: Coordinator, job: str = "") -> list[dict[str, Any]] | None:
    """Return the jobs that the coordinator knows; None without an answer."""
    if not coordinator.listens():
        return None
    try:
        return list(coordinator.status(job, _ANSWER)["jobs"])
    except (Unreachable, Refused):
        return None


def _print(lines: Iterable[str], selection: Selection, job_id: str, as_json: bool) -> None:
    for entry in map(selection.feed, lines):
        if entry is not None:
            print(json.dumps(entry.to_json(job_id)) if as_json else entry, flush=True)


def _news(log: LogReader, job_id: str, coordinator: Coordinator) -> Iterator[list[str]]:
    """Yield what comes, until the job has ended and its last lines were read."""
    pids: list[int] = []
    next_question = 0.0
    while True:
        ended = False
        if time.monotonic() >= next_question:
            next_question = time.monotonic() + _ASK_SECONDS
            records = _ask(coordinator, job_id)
            if records is None:  # it may come back, and the job with it
                ended = not any(map(_is_alive, pids))
            else:
                living = [record for record in records if not record.get("ended")]
                pids = [member["pid"] for record in living for member in record["members"]]
                ended = not living and not any(map(_is_alive, pids))
        yield log.read()
        if ended:
            return
        time.sleep(_LOOK_SECONDS)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _say_no_log(coordinator: Coordinator, path: Path) -> int:
    """Say where a log was sought; return the exit code."""
    if not coordinator.listens():
        say(f"no coordinator {coordinator.instance!r} has written a log: sought {path}")
        return NO_COORDINATOR
    say(
        f"coordinator {coordinator.instance!r} writes its log elsewhere (it was started with "
        f"--foreground or --log-file): sought {path}; name the file with --log-file"
    )
    return BROKEN
