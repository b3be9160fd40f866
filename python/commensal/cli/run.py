# SPDX-License-Identifier: Apache-2.0
"""`commensal run`: a script as a job that shares this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from commensal._coordinator import Coordinator
from commensal._end_line import tell_end
from commensal._environment import (
    JobSettings,
    Launch,
    check_gpu_memory,
    check_memory_policy,
    gpu_memory_of,
    new_job_id,
    parse_ask_wait,
    parse_background_rate,
    parse_park_idle,
)
from commensal._inputs import check_name
from commensal._lifetime import leave_watcher
from commensal._mps import find_daemon, plan_use
from commensal._say import say
from commensal._terms import JobTerms, parse_switch, with_variables
from commensal.cli import _launch
from commensal.cli._command_check import why_unmanaged
from commensal.cli._manual import manual
from commensal.cli._options import Instance, blaming, coordinator_of
from commensal.cli._term_options import blaming_option, with_terms

__all__ = ["checked_name", "job_name", "register", "run"]

_LONGEST_NAME = 255  # bytes; the coordinator of the cluster takes no more


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        context_settings={"allow_interspersed_args": False},
        epilog=manual(
            [
                ("commensal run --guaranteed -- python train.py", "trains as if alone"),
                ("commensal run --name sweep -- python train.py --lr 0.1", "lives in the gaps"),
                (
                    "commensal run --memory 1GiB:4GiB --share 0:0.5 -- torchrun train.py",
                    "all its ranks are one job: never less, never more than that",
                ),
            ],
            {
                "N": "the script's own; death by a signal is passed on, too",
                2: "usage: an unknown option or a wrong value, named on stderr",
                126: "the command cannot be executed",
                127: "the command is not found",
            },
            [
                *("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR"),
                *("COMMENSAL_SPILL_DIR", "COMMENSAL_GPU_MEMORY"),
                *("COMMENSAL_ASK_WAIT", "COMMENSAL_PARK_IDLE"),
                *("COMMENSAL_SAMPLE_OPS", "COMMENSAL_SM_SHARE"),
                *("CUDA_MPS_PIPE_DIRECTORY", "TMPDIR"),
            ],
        ),
    )(with_terms(run, defaults=True))


def run(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(help="The script and its arguments, after --.", metavar="COMMAND")
    ],
    *,
    guaranteed: Annotated[
        bool,
        typer.Option(
            "--guaranteed/--opportunistic",
            help="Must run as if alone, or lives in the gaps of others (the default: it harms "
            "nobody).",
        ),
    ] = False,
    terms: dict[str, object],
    tenant: Annotated[
        str, typer.Option(help="Who the job belongs to.", metavar="NAME")
    ] = "default",
    name: Annotated[
        str | None,
        typer.Option(help="How 'status' calls it. Default: the script's name.", metavar="NAME"),
    ] = None,
    elastic_threads: Annotated[
        bool,
        typer.Option(
            "--elastic-threads",
            help="Let the number of PyTorch's threads follow these cores, at step borders. Sums "
            "are then taken in another order: results change.",
        ),
    ] = False,
    mps: Annotated[
        bool | None,
        typer.Option(
            "--mps/--no-mps",
            help="Use NVIDIA's MPS where its daemon runs. Default: opportunistic jobs do.",
        ),
    ] = None,
    instance: Instance = None,
    spill_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the spill file (default: /var/tmp).", metavar="DIR"),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option(
            help="Whose memory serves on GPUs. native: PyTorch's own, bound by the limit; what it "
            "caches is given back (the default). elastic: ours; memory in use moves, too.",
            metavar="KIND",
        ),
    ] = None,
    ask_wait: Annotated[
        str | None,
        typer.Option(
            help="How long an allocation above the limit waits for memory of other jobs, before "
            "the slower tier serves it, e.g. 500ms. Default: 2s.",
            metavar="TIME",
        ),
    ] = None,
    park_idle: Annotated[
        str | None,
        typer.Option(
            help="Save all memory of a job without ops for so long, e.g. 10m, until its next op. "
            "Default: never.",
            metavar="TIME",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No line of ours unless something is wrong.")
    ] = False,
    # Ranks that an engine starts one by one are one job.
    job_id: Annotated[str | None, typer.Option("--job-id", hidden=True)] = None,
) -> None:
    """Run a script, unmodified, as a job that shares this machine.

    Starts the coordinator if none runs. Signals, exit code, stdin, stdout and stderr are the
    script's own; our lines go to stderr. Without a coordinator the script trains all the same.

    A guaranteed job must run as if alone. An opportunistic one takes the time and the memory that
    it leaves, and may be slowed and shrunk. Results do not change, only times do (but see
    --elastic-threads). In MIN[:MAX] one value alone is MAX (MIN 0), and both for a guaranteed job.
    """
    coordinator = coordinator_of(context, instance)
    with blaming("--name"):
        job = job_name(command) if name is None else checked_name(name)
    asked = with_variables(terms, os.environ, guaranteed=guaranteed)
    job_terms = JobTerms.parse(asked, guaranteed=guaranteed, naming=blaming_option)
    with blaming("--elastic-threads"):
        if elastic_threads and guaranteed:
            raise ValueError("the threads of a guaranteed job stay as they are")
    with blaming("--gpu-memory"):
        serves = gpu_memory_of(os.environ, guaranteed=guaranteed)
        if gpu_memory is not None:
            serves = check_gpu_memory(gpu_memory, guaranteed=guaranteed)
    with blaming("COMMENSAL_MEMORY_POLICY"):
        policy = check_memory_policy(os.environ.get("COMMENSAL_MEMORY_POLICY") or "elastic")
    ask_wait_ms, park_idle_ms = JobSettings.ask_wait_ms, None
    rate = JobSettings.background_rate_bytes
    with blaming("COMMENSAL_BACKGROUND_RATE"):
        if text := os.environ.get("COMMENSAL_BACKGROUND_RATE"):
            rate = parse_background_rate(text)
    with blaming("COMMENSAL_SAMPLE_OPS"):
        sample_ops = parse_switch(os.environ.get("COMMENSAL_SAMPLE_OPS") or "1")
    with blaming("--ask-wait"):
        if (text := _given(ask_wait, "COMMENSAL_ASK_WAIT")) is not None:
            ask_wait_ms = parse_ask_wait(text)
    with blaming("--park-idle"):
        if (text := _given(park_idle, "COMMENSAL_PARK_IDLE")) is not None:
            park_idle_ms = parse_park_idle(text, policy)
    settings = JobSettings(
        job_id=job_id or new_job_id(job),
        name=job,
        job_class="guaranteed" if guaranteed else "opportunistic",
        tenant=tenant,
        terms=job_terms,
        elastic_threads=elastic_threads,
        instance=coordinator.instance,
        runtime_dir=coordinator.runtime_dir,
        spill_dir=spill_dir.absolute() if spill_dir else None,
        quiet=quiet,
        gpu_memory=serves,
        memory_policy=policy,
        ask_wait_ms=ask_wait_ms,
        park_idle_ms=park_idle_ms,
        background_rate_bytes=rate,
        sample_ops=sample_ops,
    )
    raise typer.Exit(_run_job(settings, coordinator, command, mps))


def _given(option: str | None, variable: str) -> str | None:
    """Return an option's text, or what the environment says instead of it."""
    return option if option is not None else os.environ.get(variable) or None


def _run_job(
    settings: JobSettings, coordinator: Coordinator, command: Sequence[str], mps: bool | None
) -> int:
    """Become the script; return an exit code only if that was not possible."""
    if reason := coordinator.ensure_running():
        say(f"no coordinator, the job runs on its own limits: {reason}")
    settings = _arrange_last_line(settings, command)
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_OF_ANOTHER_JOB)}
    environ = _FOR_OTHERS | inherited | settings.to_environ()
    if settings.job_class == "opportunistic" and not any(name in inherited for name in _WAITING):
        environ |= _WAIT_BRIEFLY
    environ |= _mps_variables(settings, coordinator, mps)
    wants_idle = settings.job_class == "opportunistic" and settings.terms.idle_class is not False
    idle = wants_idle and _launch.may_renice()
    try:
        _launch.become(command, environ, idle_class=idle)
    except _launch.CannotStart as error:
        if settings.summary_file is not None:  # the watcher then has nothing to say
            shutil.rmtree(settings.summary_file.parent, ignore_errors=True)
        say(str(error))
        return error.code


def _mps_variables(
    settings: JobSettings, coordinator: Coordinator, wanted: bool | None
) -> dict[str, str]:
    """Return what makes a job a client of MPS, or keeps it out, where a daemon runs."""
    nowhere = coordinator.runtime_dir / "without-mps"
    plan = plan_use(
        settings.job_class,
        wanted,
        settings.terms.sm_share,
        find_daemon(os.environ),
        os.environ,
        nowhere,
    )
    if plan.unmet:
        say(f"MPS is not used: {plan.reason}")
    return plan.variables


# NCCL registers the buffers of captured graphs by address and does not notice that other memory is
# mapped there later: a replay then hangs. The jemalloc inside of pyarrow, and so of pandas, has a
# thread that blocks all signals: where it cannot be traced either, no memory in use could move.
# Who sets such a variable decides.
_FOR_OTHERS = {
    "NCCL_GRAPH_REGISTER": "0",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

# OpenMP's threads spin after each parallel region, by default 300,000 times (5 ms with GCC):
# after a gate has closed that is on cores that it has just left to others (pitfall C16). A fifth of
# a millisecond bridges the time to the next op (docs/results/gate.md). Who sets one of the
# variables decides.
_WAIT_BRIEFLY = {"GOMP_SPINCOUNT": "10000", "KMP_BLOCKTIME": "0"}
_WAITING = ("OMP_WAIT_POLICY", *_WAIT_BRIEFLY)

# A job that is started inside of another one is a job of its own.
_OF_ANOTHER_JOB = ("COMMENSAL_PRIMARY_", "COMMENSAL_LAUNCH", "COMMENSAL_SUMMARY_FILE")


def _arrange_last_line(settings: JobSettings, command: Sequence[str]) -> JobSettings:
    """Make the place where a job's processes report to, and leave a watcher beside it.

    A quiet job has no last line, so nothing needs to outlive it. Where there is no room or no
    right for all this, the job runs without its last line.
    """
    if settings.quiet:
        return settings
    try:
        folder = Path(tempfile.mkdtemp(prefix="commensal-run-"))
    except OSError as error:
        say(f"no last line for this job: {error}")
        return settings
    launched = replace(
        settings,
        summary_file=folder / "summary",
        launch=Launch(os.getpid(), time.monotonic()),
    )
    try:
        began_in = _working_folder()  # the watcher is elsewhere
        leave_watcher(lambda: _finish(launched, folder, lambda: _unmanaged(command, began_in)))
    except OSError as error:
        say(f"no last line for this job: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        return settings
    return launched


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError:
        return Path()  # it was removed


def _unmanaged(command: Sequence[str], directory: Path) -> str:
    return why_unmanaged(command, directory, os.environ)


def _finish(settings: JobSettings, folder: Path, why_unmanaged: Callable[[], str]) -> None:
    """Do what is left after a job's end: its last line, unless its own process said it."""
    if not folder.is_dir():
        return
    tell_end(settings, why_unmanaged)
    shutil.rmtree(folder, ignore_errors=True)


def checked_name(name: str) -> str:
    """Return a job's name that others may read. @raises ValueError naming what is wrong with it."""
    return check_name("the name of a job", name, _LONGEST_NAME)


def job_name(command: Sequence[str]) -> str:
    """Name a job after its script: train.py -> train, -m pkg.train -> pkg.train."""
    for previous, argument in zip(("", *command), command, strict=False):
        if argument.endswith(".py"):
            return Path(argument).stem
        if previous == "-m" and argument not in ("torch.distributed.run",):
            return argument
    return Path(command[0]).name
