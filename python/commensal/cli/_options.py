# SPDX-License-Identifier: Apache-2.0
"""What several commands share: options, exit codes, and errors that become a line and a code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from commensal._cluster import Cluster, cluster_of
from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal._environment import check_instance, default_instance, default_runtime_dir
from commensal._say import say

__all__ = [
    "BROKEN",
    "NO_COORDINATOR",
    "REFUSED",
    "AnyJob",
    "AsJson",
    "Instance",
    "LiveJob",
    "RemoteAddress",
    "blaming",
    "brought_back",
    "cluster_for",
    "coordinator_of",
    "not_submitted",
    "reporting",
    "was_submitted",
]

BROKEN = 1
NO_COORDINATOR = 3
REFUSED = 4

_COMPLETION = timedelta(milliseconds=100)  # who presses the tab key does not wait longer


def _complete_live(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, ended=False)


def _complete_any(context: typer.Context, incomplete: str) -> list[str]:
    return _complete(context, incomplete, ended=True)


def _complete(context: typer.Context, incomplete: str, *, ended: bool) -> list[str]:
    """Return names of jobs, or ids where a name is not one job's. Silent without an answer."""
    try:
        coordinator = _asked_for(context)
        if not coordinator.listens(_COMPLETION):
            return []
        jobs = coordinator.status(timeout=_COMPLETION)["jobs"]
    except Exception:  # nothing that goes wrong here may show on the command line
        return []
    return complete_jobs(
        [(job["job"]["id"], job["job"]["name"]) for job in jobs if ended or not job.get("ended")],
        incomplete,
    )


def complete_jobs(jobs: list[tuple[str, str]], incomplete: str) -> list[str]:
    """Return what can stand for one of the jobs (id, name) and begins with `incomplete`."""
    names = [name for _, name in jobs]
    words = [name if names.count(name) == 1 else job_id for job_id, name in jobs]
    if matching := [word for word in words if word.startswith(incomplete)]:
        return matching
    return [job_id for job_id, _ in jobs if job_id.startswith(incomplete)]


def _asked_for(context: typer.Context) -> Coordinator:
    """Return the coordinator of a command line that is still being typed."""
    given = (context.parent.params if context.parent else {}) | {
        key: value for key, value in context.params.items() if value is not None
    }
    folder = given.get("runtime_dir")
    return Coordinator(
        check_instance(given.get("instance") or default_instance(os.environ)),
        Path(folder or default_runtime_dir(os.environ)).absolute(),
    )


Instance = Annotated[
    str | None,
    typer.Option("--instance", help="Which coordinator of this machine.", metavar="NAME"),
]
RemoteAddress = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        help="One on another machine, with a key ('commensal keys').",
        metavar="tcp://HOST:PORT",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="For scripts: the object of docs/stats.md on stdout.")
]
LiveJob = Annotated[
    str,
    typer.Argument(
        help="Id or unambiguous name of the job.", metavar="JOB", autocompletion=_complete_live
    ),
]
AnyJob = Annotated[
    str,
    typer.Argument(
        help="Id or name of a job, also of one that ended.",
        metavar="JOB",
        autocompletion=_complete_any,
    ),
]


def coordinator_of(context: typer.Context, instance: str | None) -> Coordinator:
    """Return the coordinator that a command is for: --instance may stand before or after it."""
    coordinator: Coordinator = context.obj
    with blaming("--instance"):
        return (
            coordinator
            if instance is None
            else replace(coordinator, instance=check_instance(instance))
        )


def cluster_for(coordinator: Coordinator, address: str | None) -> Cluster:
    """Return the cluster's coordinator that a command is for: a remote one if it is named."""
    with blaming("--coordinator"):
        return cluster_of(coordinator, address)


def brought_back(cluster: Cluster) -> Cluster:
    """Return the cluster's coordinator, which was started again if it had been killed."""
    if reason := cluster.bring_back():
        say(f"no coordinator of the cluster: {reason}")
        raise typer.Exit(NO_COORDINATOR)
    return cluster


def was_submitted(cluster: Cluster, job: str) -> bool:
    """Return whether a job is one that 'submit' queued."""
    return job.isdecimal() and brought_back(cluster).knows(job)


def not_submitted(cluster: Cluster, job: str) -> str:
    """Return what to say too where no job is called so: a number is likely to be of 'submit'."""
    if not job.isdecimal() or cluster.remote is not None:
        return ""
    if cluster.has_ended():
        return f"whether job {job} was submitted is not known{_start_hint(cluster)}"
    if not cluster.listens():
        return ""
    return f"no job {job} was submitted ('commensal queue --all' shows those that were)"


def _start_hint(coordinator: Coordinator | Cluster) -> str:
    """Return what to add where nobody answers: which command starts a coordinator."""
    name = coordinator.instance
    if not isinstance(coordinator, Cluster):
        return f"; 'commensal run' starts a coordinator (instance {name})"
    if coordinator.remote is not None:
        return ""
    if coordinator.has_ended():
        return (
            "; the coordinator has ended, and 'commensal-coordinator' starts it again "
            f"(instance {name})"
        )
    return f"; 'commensal submit' starts a coordinator (instance {name})"


@contextmanager
def blaming(option: str) -> Iterator[None]:
    """Turn a ValueError raised inside into a usage error of an option (exit code 2)."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None


@contextmanager
def reporting(coordinator: Coordinator | Cluster, more: str = "") -> Iterator[None]:
    """Turn the coordinator's silence or refusal into a line and an exit code.

    `more` is added to a refusal, and said instead where nobody listens who could refuse.
    """
    try:
        yield
    except Unreachable as error:
        if more:
            say(more)
            raise typer.Exit(REFUSED) from None
        say(f"{error}{_start_hint(coordinator)}")
        raise typer.Exit(NO_COORDINATOR) from None
    except Refused as error:
        say(f"{error}; {more}" if more else str(error))
        raise typer.Exit(REFUSED) from None
