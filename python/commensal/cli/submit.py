# SPDX-License-Identifier: Apache-2.0
"""`commensal submit`: a job that the cluster's coordinator starts when there is room for it."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from commensal._cluster import Cluster
from commensal._quantities import parse_bytes, parse_duration_ms
from commensal._say import say
from commensal._terms import JobTerms
from commensal.cli._command_check import problem_with
from commensal.cli._manual import manual
from commensal.cli._options import (
    NO_COORDINATOR,
    Instance,
    RemoteAddress,
    blaming,
    cluster_for,
    coordinator_of,
    reporting,
)
from commensal.cli._term_options import blaming_option, with_terms
from commensal.cli.run import checked_name, job_name

__all__ = ["parse_flat_rule", "register", "submit"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MIB = 1 << 20
_MOST_GPUS = 1 << 20
_SHORTEST_WINDOW_MS = 10_000


def register(app: typer.Typer) -> None:
    app.command(
        "submit",
        context_settings={"allow_interspersed_args": False},
        epilog=manual(
            [
                ("commensal submit -- python train.py", "one device, as soon as it may"),
                (
                    "commensal submit --tenant vision --gpus 4 --guaranteed -- python train.py",
                    "four ranks, within the tenant's quota, as if alone",
                ),
                ("commensal submit --after 7 -- python evaluate.py", "once job 7 has finished"),
            ],
            [0, 2, 3, 4],
            [
                *("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR", "COMMENSAL_STATE_DIR"),
                *("COMMENSAL_COORDINATOR", "COMMENSAL_KEY", "COMMENSAL_KEYS_DIR"),
            ],
        ),
    )(with_terms(submit, defaults=True))


def submit(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(help="The script and its arguments, after --.", metavar="COMMAND")
    ],
    *,
    tenant: Annotated[
        str, typer.Option(help="Whose quota it is charged to.", metavar="NAME")
    ] = "default",
    gpus: Annotated[
        int,
        typer.Option(
            help="Devices, one rank each. Without a GPU a machine's cores are one device.",
            min=1,
            max=_MOST_GPUS,
        ),
    ] = 1,
    cpus: Annotated[
        float | None, typer.Option(help="Cores on each node.", min=0.001, max=100_000)
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(help="Host memory on each node, e.g. 8GiB.", metavar="SIZE")
    ] = None,
    guaranteed: Annotated[
        bool, typer.Option("--guaranteed", help="Within the quota, as if alone; waits for it.")
    ] = False,
    opportunistic: Annotated[
        bool, typer.Option("--opportunistic", help="For free, in the gaps of others.")
    ] = False,
    auto: Annotated[
        bool,
        typer.Option(
            "--auto",
            help="Opportunistic until its quota has room, then guaranteed, without a restart "
            "(the default).",
        ),
    ] = False,
    terms: dict[str, object],
    name: Annotated[
        str | None,
        typer.Option(help="How 'queue' calls it. Default: the script's name.", metavar="NAME"),
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="It is ended after so long, e.g. 2h.", metavar="TIME")
    ] = None,
    end_when_flat: Annotated[
        str | None,
        typer.Option(
            help="End it once its loss has not moved by CHANGE (1%) for so long, e.g. 30m:0.5%; "
            "it tells it by commensal.step(loss=...).",
            metavar="TIME[:CHANGE]",
        ),
    ] = None,
    park_when_flat: Annotated[
        str | None,
        typer.Option(
            help="The same, but park it: it is stopped, and 'commensal resume JOB' queues it "
            "again.",
            metavar="TIME[:CHANGE]",
        ),
    ] = None,
    prerun: Annotated[
        str | None,
        typer.Option(
            help="First try it on one device, in the gaps of others: a gang is placed once its "
            "first step is done there, or nothing has failed for so long, e.g. 5m.",
            metavar="TIME",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="Variable of its environment; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Start once that job has finished.", metavar="JOB")
    ] = None,
    chdir: Annotated[
        Path | None, typer.Option(help="Where it starts. Default: here.", metavar="DIR")
    ] = None,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Queue a job, and print its id.

    The cluster's coordinator starts it when the tenant's quota and the devices allow, here or on
    another node; it is started if none runs here. What the job prints: 'commensal logs JOB'. Why it
    waits: 'commensal queue'.
    """
    cluster = cluster_for(coordinator_of(context, instance), coordinator)
    asked = [
        word
        for word, given in (
            ("guaranteed", guaranteed),
            ("opportunistic", opportunistic),
            ("auto", auto),
        )
        if given
    ]
    if len(asked) > 1:
        raise typer.BadParameter(f"--{asked[0]} and --{asked[1]} exclude each other")
    if end_when_flat is not None and park_when_flat is not None:
        raise typer.BadParameter("--end-when-flat and --park-when-flat exclude each other")
    with blaming("--name"):
        called = job_name(command) if name is None else checked_name(name)
    job: dict[str, Any] = {
        "name": called,
        "tenant": tenant,
        "class": asked[0] if asked else "auto",
        "gpus": gpus,
        "cpu_milli": round((cpus or 0) * 1000),
        "host_memory_mib": _mib(host_memory),
        "environment": _environment(env or []),
        "command": command,
        "directory": str((chdir or Path.cwd()).absolute()),
    }
    asked_terms = JobTerms.parse(
        terms,
        guaranteed=job["class"] == "guaranteed",
        refuse=job["class"] != "auto",  # which may become the one and the other
        naming=blaming_option,
    )
    job |= asked_terms.to_json()
    with blaming("--time"):
        if time is not None:
            job["time_limit_ms"] = max(1, -(-parse_duration_ms(time) // 1000)) * 1000
    with blaming("--end-when-flat"):
        if end_when_flat is not None:
            job["end_when_flat"] = parse_flat_rule(end_when_flat)
    with blaming("--park-when-flat"):
        if park_when_flat is not None:
            job["park_when_flat"] = parse_flat_rule(park_when_flat)
    tried: dict[str, Any] = {}
    with blaming("--prerun"):
        if prerun is not None:
            if gpus < 2:
                raise ValueError(f"a pre-run is for a gang, and the job asks for {gpus} device")
            tried["pre_run_ms"] = max(1, -(-parse_duration_ms(prerun) // 1000)) * 1000
    if after is not None:
        job["after"] = after
    if chdir is not None and cluster.remote is None and not chdir.is_dir():
        raise typer.BadParameter(f"not a folder: {chdir}", param_hint="'--chdir'")
    # What another job is to write first, or what another machine has, is not there to look at.
    if after is None and cluster.remote is None:
        problem = problem_with(command, Path(job["directory"]), job["environment"])
        if problem and _starts_here(cluster):
            raise typer.BadParameter(problem, param_hint="'COMMAND'")
    if reason := cluster.ensure_running():
        say(f"no coordinator of the cluster: {reason}")
        raise typer.Exit(NO_COORDINATOR)
    with reporting(cluster):
        request = secrets.token_hex(16)
        print(cluster.ask("submit", job=job, request=request, **tried)["id"])


def _starts_here(cluster: Cluster) -> bool:
    """Return whether jobs are started on this machine, and not by Slurm on its nodes."""
    if not cluster.listens():
        return True  # the one that is started would
    with reporting(cluster):
        return bool(cluster.ask("nodes")["coordinator"]["engine"] == "local")


def parse_flat_rule(text: str) -> dict[str, Any]:
    """Return the rule of TIME[:CHANGE]; CHANGE is in percent. @raises ValueError naming it."""
    time, colon, change = text.partition(":")
    window_ms = -(-parse_duration_ms(time) // 1000) * 1000
    if window_ms < _SHORTEST_WINDOW_MS:
        raise ValueError(f"shorter than 10 s: {time!r}")
    percent = 1.0
    if colon:
        try:
            percent = float(change.removesuffix("%"))
        except ValueError:
            raise ValueError(f"not a change in percent: {change!r}") from None
        if not 0.0 < percent <= 50.0:  # also false for nan
            raise ValueError(f"not a change above 0 % and at most 50 %: {change!r}")
    return {"window_ms": window_ms, "change": percent / 100}


def _mib(text: str | None) -> int:
    with blaming("--host-memory"):
        return -(-parse_bytes(text) // _MIB) if text is not None else 0


def _environment(given: list[str]) -> dict[str, str]:
    """Return the job's environment: that of this shell, as far as it is text, and what is given."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("COMMENSAL_") and _is_text(key) and _is_text(value)
    }
    for word in given:
        key, equals, value = word.partition("=")
        if not equals or not _VARIABLE.fullmatch(key):
            raise typer.BadParameter(f"not NAME=VALUE: {word!r}", param_hint="'--env'")
        environment[key] = value
    return environment


def _is_text(word: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in word)
