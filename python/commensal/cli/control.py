# SPDX-License-Identifier: Apache-2.0
"""`commensal set`, `pause` and `resume`: change a job while it runs, or let it go on."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Annotated

import typer

from commensal._cluster import Cluster
from commensal._coordinator import Change, Coordinator
from commensal._environment import check_job_class
from commensal._say import say
from commensal._terms import JobTerms
from commensal.cli._manual import manual
from commensal.cli._options import (
    REFUSED,
    AsJson,
    Instance,
    LiveJob,
    RemoteAddress,
    blaming,
    brought_back,
    cluster_for,
    coordinator_of,
    not_submitted,
    reporting,
    was_submitted,
)
from commensal.cli._term_options import blaming_option, with_terms

__all__ = ["pause", "register", "resume", "set_job"]

_CODES = [0, 2, 3, 4]
_ORDER_SECONDS = 10  # a node hears of it with its next heartbeat, and answers with the one after


def register(app: typer.Typer) -> None:
    app.command(
        "set",
        epilog=manual(
            [
                ("commensal set sweep --memory 2GiB", "at most 2 GiB from its next step on"),
                ("commensal set sweep --memory 512MiB:4GiB", "never less, never more"),
                ("commensal set sweep --share 0.2", "at most a fifth of the device's time"),
                ("commensal set sweep --law duty_cycle", "paced by another law from now on"),
                ("commensal set prod --slo 3", "a guaranteed job that allows a slowdown of 3 %"),
                (
                    "commensal set sweep --class guaranteed --memory 2GiB",
                    "others yield to it from now on, and it has 2 GiB for sure",
                ),
                (
                    "commensal set train --class guaranteed --node n3",
                    "job 'train' on n3, which reports to the cluster's coordinator",
                ),
            ],
            _CODES,
        ),
    )(with_terms(set_job, defaults=False))
    app.command(
        "pause",
        epilog=manual(
            [("commensal pause sweep", "its next ops wait; its memory stays where it is")], _CODES
        ),
    )(pause)
    app.command(
        "resume",
        epilog=manual(
            [
                ("commensal resume sweep", "its ops go on"),
                ("commensal resume 7", "job 7, which its rule has parked, is queued again"),
            ],
            _CODES,
        ),
    )(resume)


def set_job(
    context: typer.Context,
    job: LiveJob,
    *,
    terms: dict[str, object],
    job_class: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="guaranteed or opportunistic: changes the class where the job runs. The other "
            "options then say what it has in it.",
            metavar="CLASS",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            help="The job runs on this node, which reports to the cluster's coordinator: its class "
            "is changed through that one. JOB is its id there.",
            metavar="NODE",
        ),
    ] = None,
    as_json: AsJson = False,
    instance: Instance = None,
    remote: RemoteAddress = None,
) -> None:
    """Change memory, share, pacing or class of a running job.

    A smaller limit takes effect at the job's next safe point (the end of a step): cached memory
    goes first, then live memory moves to the slower tier under its addresses. A larger one brings
    memory back. What cannot be done yet is deferred; 'commensal status JOB' tells the reason.

    One value alone is MAX (MIN 0) for an opportunistic job and both for a guaranteed one.

    A job is upgraded once it has its floor: what other jobs still hold of it they give back first.
    If that, or the answer of its processes, takes more than two seconds, the change is deferred
    and goes on; what it waits for stands in 'commensal status JOB'. If a process cannot change,
    all stay as they were.
    """
    asked = {name: given for name, given in terms.items() if given is not None}
    if not asked and job_class is None:
        raise typer.BadParameter("nothing to change", param_hint="'--memory' / '--share'")
    with blaming("--class"):
        wanted = None if job_class is None else check_job_class(job_class)
    if node is not None:
        if wanted is None or asked:
            raise typer.BadParameter("changes a class, nothing else", param_hint="'--node'")
        cluster = brought_back(cluster_for(coordinator_of(context, instance), remote))
        with reporting(cluster):
            change = _ordered(cluster, node, job, wanted)
        _tell(job, change, as_json)
        return
    # Values are checked before anybody is asked; the class only decides what one value means.
    _parse(asked, guaranteed=False)
    coordinator = coordinator_of(context, instance)
    with reporting(coordinator):
        guaranteed = (wanted or _class_of(coordinator, job)) == "guaranteed"
        change = coordinator.set(job, terms=_parse(asked, guaranteed=guaranteed), job_class=wanted)
        if wanted and change.outcome == "applied" and _class_of(coordinator, job) != wanted:
            reason = "the coordinator is of an older version, which does not change classes"
            change = replace(change, outcome="refused", reason=reason)
    _tell(job, change, as_json)


def pause(
    context: typer.Context, job: LiveJob, as_json: AsJson = False, instance: Instance = None
) -> None:
    """Close a job's gate: its next ops wait until 'resume'.

    Ops that run already end first. Ctrl-C still ends a paused script.
    """
    coordinator = coordinator_of(context, instance)
    with reporting(coordinator):
        change = coordinator.set(job, paused=True)
    _tell(job, change, as_json)


def resume(
    context: typer.Context,
    job: LiveJob,
    as_json: AsJson = False,
    instance: Instance = None,
    remote: RemoteAddress = None,
) -> None:
    """Open the gate of a paused job again; queue a parked one again.

    Paused: from then on its pacing law decides again when its ops wait.

    Parked by its own rule ('submit --park-when-flat'; JOB is its number): it waits in the queue
    again, and starts anew when there is room; its checkpoints are its own business.
    """
    coordinator = coordinator_of(context, instance)
    cluster = cluster_for(coordinator, remote)
    if was_submitted(cluster, job):
        with reporting(cluster):
            answer = cluster.ask("resume", id=job)
        told = {"job": answer["id"], "state": answer["state"]}
        print(json.dumps(told, indent=2) if as_json else f"job {job}: {answer['state']} again")
        return
    more = not_submitted(cluster, job)
    with reporting(coordinator, more):
        change = coordinator.set(job, paused=False)
    _tell(job, change, as_json, more)


def _ordered(cluster: Cluster, node: str, job: str, job_class: str) -> Change:
    """Change a class through the cluster's coordinator; return the end, or what it waits for."""
    until = time.monotonic() + _ORDER_SECONDS
    while True:
        said = cluster.ask("set_class", **{"node": node, "job": job, "class": job_class})
        change = Change(job, 0, said["outcome"], said["reason"])
        if change.outcome != "deferred" or time.monotonic() >= until:
            return change
        time.sleep(0.2)


def _parse(asked: dict[str, object], *, guaranteed: bool) -> JobTerms:
    """Read terms; whether a job of its class can have them the coordinator says."""
    return JobTerms.parse(asked, guaranteed=guaranteed, refuse=False, naming=blaming_option)


def _class_of(coordinator: Coordinator, job: str) -> str:
    jobs = [one for one in coordinator.status(job)["jobs"] if not one.get("ended")]
    return str(jobs[0]["job"]["class"]) if jobs else ""


def _tell(job: str, change: Change, as_json: bool, more: str = "") -> None:
    """Print what came of a change; a refusal, with `more` behind it, ends with code 4."""
    refused = change.outcome in ("refused", "stale")
    reason = f": {change.reason}" if change.reason else ""
    # There is no new one; and of one on another machine nobody needs it.
    revision = "" if refused or not change.revision else f" (revision {change.revision})"
    line = f"{job}: {change.outcome}{revision}{reason}"
    if as_json:
        report = {
            "schema": 1,
            "job": change.job_id,
            "revision": change.revision,
            "outcome": change.outcome,
            "reason": change.reason,
        }
        print(json.dumps(report, indent=2))
    elif not refused:
        print(line)
    if refused:
        say(f"{line}; {more}" if more else line)
        raise typer.Exit(REFUSED)
