# SPDX-License-Identifier: Apache-2.0
"""`commensal explain`: who was throttled, why, at what cost; what a policy would decide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from commensal._quantities import format_seconds, parse_duration_ms
from commensal._say import say
from commensal._timeline import to_trace
from commensal.cli._gaps import LEAST_SHARE, describe_gap, describe_rules
from commensal.cli._job_life import describe_life
from commensal.cli._manual import EXIT_CODES, manual
from commensal.cli._options import (
    BROKEN,
    AnyJob,
    AsJson,
    Instance,
    RemoteAddress,
    blaming,
    cluster_for,
    coordinator_of,
    not_submitted,
    reporting,
    was_submitted,
)
from commensal.cli.status import describe_gang

__all__ = ["describe", "explain", "register"]

_CODES: dict[int | str, str] = {code: EXIT_CODES[code] for code in (0, 2, 3, 4)}
_CODES[1] = "the timeline could not be written"
USAGE = 2
_LONGEST_S = 600
_LEAST_EVIDENCE_S = 5.0
_LEAST_SAMPLES = 100
_OP_NAMES = 3
_DECISIONS = 12  # that are shown; the others are in --json
_PARTS = {
    "memory": "the same work took longer on a core (caches, bandwidth, SMT, clocks)",
    "scheduling": "ready, and waiting for a core",
    "io": "waiting while the machine stalled on I/O",
    "unknown": "other waiting (its other threads, locks, its data)",
}


def register(app: typer.Typer) -> None:
    app.command(
        "explain",
        epilog=manual(
            [
                ("commensal explain sweep", "the last minute"),
                ("commensal explain prod --last 10m", "what its neighbours cost it"),
                ("commensal explain sweep --timeline t.json", "open it in ui.perfetto.dev"),
                ("commensal explain 7", "the life of job 7, which 'submit' queued"),
                ("commensal explain --state s.json --policy srtf", "a policy's plan"),
            ],
            _CODES,
        ),
    )(explain)


def explain(
    context: typer.Context,
    job: AnyJob = "",
    last: Annotated[
        str,
        typer.Option(
            help="How far back, at most 10m: from now, or from the end of a job that has ended.",
            metavar="TIME",
        ),
    ] = "60s",
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write a trace there that Perfetto opens.", metavar="FILE"),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Instead of JOB: what 'commensal status --json' wrote, or a cluster's state.",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Of the cluster (docs/policies.md), for --state.", metavar="NAME"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="Option of the policy; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    as_json: AsJson = False,
    instance: Instance = None,
    remote: RemoteAddress = None,
) -> None:
    """Tell who was throttled of late, why, and at what cost.

    For an opportunistic job: how long its ops waited at the gate, by reason. For the guaranteed
    jobs beside it: their slowdown, split by cause, against what they allow. For the device: who
    used it, and how much of what was to be had was taken. Then the decisions, newest last.

    Of a job that 'submit' queued (JOB is its number): its life so far, each change with the reason.

    A job that ended within the last ten minutes is explained as of its end (the newest 64 are).

    With --state and --policy no coordinator is asked: the plan that the policy would make of the
    state is printed, with its reasons, by the code that a coordinator runs.
    """
    if state is not None or policy is not None or option:
        _replay(context, job, state, policy, option or [], as_json)
        return
    if not job:
        raise typer.BadParameter("missing: a job, or --state FILE", param_hint="JOB")
    with blaming("--last"):
        milliseconds = parse_duration_ms(last)
        if not 0 < milliseconds <= _LONGEST_S * 1000:
            raise ValueError(f"the last ten minutes are remembered, not {last!r}")
    coordinator = coordinator_of(context, instance)
    cluster = cluster_for(coordinator, remote)
    if timeline is None and was_submitted(cluster, job):
        with reporting(cluster):
            life = cluster.ask("explain", id=job)
        print(json.dumps(life, indent=2) if as_json else "\n".join(describe_life(life)))
        return
    with reporting(coordinator, not_submitted(cluster, job)):
        told = coordinator.explain(job, milliseconds / 1000, series=timeline is not None)
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        print("\n".join(describe(told, datetime.now())))
    if timeline is None:
        return
    try:
        timeline.write_text(json.dumps(to_trace(told)), encoding="utf-8")
    except OSError as error:
        say(f"cannot write {timeline}: {error.strerror}")
        raise typer.Exit(BROKEN) from None
    say(f"timeline: {timeline} (open it at https://ui.perfetto.dev)")


def _replay(
    context: typer.Context,
    job: str,
    state: Path | None,
    policy: str | None,
    options: list[str],
    as_json: bool,
) -> None:
    """Print the plan that a policy makes of a state."""
    from commensal.simulation import BadInput, SimulatorFailed
    from commensal.simulation.replay import plan_of, show

    for missing, name in ((state, "--state FILE"), (policy, "--policy NAME")):
        if missing is None:
            raise typer.BadParameter(f"missing: {name}", param_hint="'--state'")
    if job and not (as_json and job == "-"):  # --json - as of other commands
        raise typer.BadParameter(f"a job of a live coordinator: {job}", param_hint="'--state'")
    for name in ("last", "timeline", "instance"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter("of a live coordinator only", param_hint=f"'--{name}'")
    assert state is not None
    assert policy is not None
    try:
        plan = plan_of(state, policy, options)
    except SimulatorFailed as error:
        say(str(error))
        raise typer.Exit(USAGE if isinstance(error, BadInput) else BROKEN) from None
    if as_json:
        print(json.dumps(plan, indent=2))
    else:
        show(plan)


def describe(told: dict[str, Any], now: datetime) -> Iterator[str]:
    """Write an explanation for people."""
    job, length = told["job"], told["seconds"]
    state = ", paused" if job["paused"] else ""
    of_its_life = ""
    if job.get("ended_seconds_ago") is not None:
        state, of_its_life = f", {_ended(job)}", " of its life"
    yield (
        f"{job['name']} ({job['class']}, law {job['law']}{state}): "
        f"the last {_time(length)}{of_its_life}"
    )
    if job["class"] == "opportunistic":
        yield from _throttled(job, length)
    if not told["guaranteed"]:
        yield "no guaranteed job on the device: nobody to yield to"
    for guaranteed in told["guaranteed"]:
        yield from _slowdown(guaranteed, length)
        yield from _gaps(guaranteed)
    yield from _device(told)
    yield from _decisions(told, now)


def _throttled(job: dict[str, Any], length: float) -> Iterator[str]:
    if "closed_seconds" not in job:
        yield "  nothing is known yet: it has just begun"
        return
    closed = job["closed_seconds"]
    share = f" ({100 * closed / length:.0f} % of the time)" if length > 0 else ""
    yield (
        f"  its ops waited at the gate for {_time(closed)}{share}, summed over threads; it used "
        f"{_time(job['core_seconds'])} of core time and took {job['steps']} steps"
    )
    if gang := job.get("gang"):
        yield f"  gang: {describe_gang(gang)}"
    for entry in job["closed_by"]:
        yield f"    {_time(entry['seconds']):>8}  {entry['reason']}"
    if job["law"] == "gap":
        may, could = job["share"], "might" if job.get("ended_seconds_ago") is not None else "may"
        yield (
            f"  beside a busy guaranteed job it {could} use {100 * may['now']:.0f} %: "
            f"{may['reason']}"
        )
        for rules in describe_rules(job):
            yield f"  in its gaps: {rules}"


def _ended(job: dict[str, Any]) -> str:
    how = job.get("exit_reason") or "ended"
    return f"{how} {_time(job['ended_seconds_ago'])} ago"


def _slowdown(job: dict[str, Any], length: float) -> Iterator[str]:
    over = f", {_ended(job)}" if job.get("ended_seconds_ago") is not None else ""
    if job["slowdown"] is None:
        yield (
            f"{job['name']} (guaranteed{over}, SLO {100 * job['slo']:g} %): slowdown "
            f"{job.get('slowdown_reason') or 'not known'}; "
            f"{job['baseline_steps']} steps alone were seen"
        )
        yield from _ops(job)
        return
    verdict = "within" if job["slowdown"] <= job["slo"] else "above"
    yield (
        f"{job['name']} (guaranteed{over}): {100 * job['slowdown']:+.1f} % "
        f"(+-{100 * job['slowdown_error']:.1f}), {verdict} its SLO of {100 * job['slo']:g} %; "
        f"about {_time(job['lost_seconds'])} of {_time(length)} lost"
    )
    yield from _parts(job)
    yield from _ops(job)


def _parts(job: dict[str, Any]) -> Iterator[str]:
    if job["parts"] is None:
        yield "    of what it is made is not known yet"
        return
    for name, text in _PARTS.items():
        yield f"    {100 * job['parts'][name]:+6.1f} %  {text}"
    quiet, shared = job["evidence"]["quiet"], job["evidence"]["shared"]
    yield (
        f"    evidence: in {_time(quiet['seconds'])} alone and {_time(shared['seconds'])} beside "
        f"others its training thread was on a core for {100 * quiet['running']:.0f} and "
        f"{100 * shared['running']:.0f} %, and waited for one for "
        f"{100 * quiet['waiting_for_a_core']:.1f} and {100 * shared['waiting_for_a_core']:.1f} %"
        + ("; too short to go by" if quiet["seconds"] < _LEAST_EVIDENCE_S else "")
    )


def _ops(job: dict[str, Any]) -> Iterator[str]:
    ops = job["ops"]
    if ops is None:
        return
    names = ", ".join(
        f"{op['name'].removeprefix('aten::')} {100 * op['seconds'] / ops['op_seconds']:.0f} %"
        for op in ops["top"][:_OP_NAMES]
    )
    yield (
        f"    its ops, from {ops['samples']:.0f} samples in {_time(ops['window_seconds'])}: they "
        f"ran for at least {100 * ops['busy']:.0f} % of the time, {100 * ops['on_core']:.0f} % of "
        f"that on a core; products and convolutions took {100 * ops['compute']:.0f} %, ops that "
        f"memory bounds {100 * ops['memory']:.0f} % ({names})"
        + ("; too few to go by" if ops["samples"] < _LEAST_SAMPLES else "")
    )


def _gaps(job: dict[str, Any]) -> Iterator[str]:
    gaps = [gap for gap in job.get("gaps") or [] if gap["share"] >= LEAST_SHARE]
    if gaps:
        yield f"    the gaps that {job['name']} leaves, of the last minute"
    for gap in gaps:
        yield f"      {describe_gap(gap)}"


def _device(told: dict[str, Any]) -> Iterator[str]:
    use = told["device"]
    if use["guaranteed_share"] is None:
        return
    of = "GPU's time" if use.get("kind") == "gpu" else "core time"
    line = (
        f"device, the last {_time(use['seconds'])}: guaranteed jobs used "
        f"{100 * use['guaranteed_share']:.0f} % of the {of}, opportunistic ones "
        f"{100 * use['opportunistic_share']:.0f} %"
    )
    if use["oracle_share"] is not None:
        line += f"; {100 * use['oracle_share']:.0f} % were to be had"
    if use["efficiency"] is not None:
        line += f" ({100 * use['efficiency']:.0f} % of that was taken)"
    yield line


def _decisions(told: dict[str, Any], now: datetime) -> Iterator[str]:
    decisions = told["decisions"]
    if not decisions:
        yield "no decision was taken"
        return
    left_out = len(decisions) - _DECISIONS
    yield "decisions" + (f" (the newest {_DECISIONS} of {len(decisions)})" if left_out > 0 else "")
    for decision in decisions[-_DECISIONS:]:
        at = now - timedelta(seconds=decision["seconds_ago"])
        yield f"  {at:%H:%M:%S}  {decision['job']}  {decision['kind']}: {decision['text']}"


def _time(seconds: float) -> str:
    return format_seconds(seconds)
