# SPDX-License-Identifier: Apache-2.0
"""`commensal simulate`: policies of the cluster on a trace of one's own."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commensal._say import say
from commensal.cli._manual import manual
from commensal.cli._options import BROKEN

if TYPE_CHECKING:
    from commensal.simulation import Runs

__all__ = ["register", "simulate"]

USAGE = 2
WIDTH = 140  # of a table that goes to a file
POINTS = 400  # of a curve of the report


def register(app: typer.Typer) -> None:
    app.command(
        "simulate",
        epilog=manual(
            [
                (
                    "commensal simulate --trace t.csv --cluster c.json --policy fifo",
                    "a table on stdout",
                ),
                (
                    "commensal simulate --trace t.csv --cluster c.json --policy las,srtf",
                    "two at a time, compared",
                ),
                ("commensal simulate --list-policies", "what there is to try"),
                (
                    "commensal simulate --generate recurrent --out jobs.csv",
                    "jobs that recur, for --predict",
                ),
            ],
            {
                0: "done",
                1: "a policy failed, or a file cannot be written",
                2: "usage: a wrong option, trace or cluster, named on stderr",
                "N": "128 + n if signal n ended it; nothing was written then",
            },
            ["NO_COLOR", "TMPDIR"],
        ),
    )(simulate)


def simulate(
    trace: Annotated[
        Path | None, typer.Option(help="Its jobs (docs/policies.md).", metavar="FILE")
    ] = None,
    trace_format: Annotated[
        str | None,
        typer.Option("--format", help="Told by the columns if not given.", metavar="NAME"),
    ] = None,
    semantics: Annotated[
        str | None,
        typer.Option(help="Whose simulator's rules to go by, not our own.", metavar="NAME"),
    ] = None,
    sharing: Annotated[
        str | None,
        typer.Option(help="Of GPUs: gate, slices, mps or pairs (our semantics).", metavar="NAME"),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="So many equal nodes.", metavar="N")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each of them.", metavar="N")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(help="Instead: the nodes as JSON (docs/policies.md).", metavar="FILE"),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="One, or several with commas.", metavar="NAMES")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Of these policies, or of --sharing; may be repeated.", metavar="NAME=VALUE"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="For what is drawn.", metavar="N")] = None,
    failures: Annotated[
        str | None,
        typer.Option(
            help="Let jobs fail: on, or NAME=VALUE,... (docs/policies.md).", metavar="WORDS"
        ),
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Count rows that cannot be read.")
    ] = False,
    predict: Annotated[
        str | None,
        typer.Option(
            help="Policies see predicted durations; truth: recorded ones.", metavar="NAME"
        ),
    ] = None,
    profiles: Annotated[
        Path | None,
        typer.Option(help="Folder of measured jobs, if not beside the trace.", metavar="DIR"),
    ] = None,
    jobs_out: Annotated[
        Path | None, typer.Option(help="Write each job's times there, as CSV.", metavar="FILE")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the metrics there; - is stdout.", metavar="FILE"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write report.html and a picture there.", metavar="DIR")
    ] = None,
    generate: Annotated[
        str | None,
        typer.Option(help="Instead: make up jobs (recurrent) for --out.", metavar="NAME"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file for these, as CSV.", metavar="FILE")
    ] = None,
    list_policies: Annotated[
        bool, typer.Option("--list-policies", help="Say what policies there are, and end.")
    ] = False,
) -> None:
    """Try policies of the cluster on a trace, and compare.

    Each policy runs in a process of its own, with the code that a coordinator runs. Under the
    semantics of somebody's published simulator the figures are that one's, to the last digit.
    """
    from commensal.simulation import BadInput, Runs, find_simulator, listed

    with _explaining():
        program = find_simulator()
        known = listed(program)
        if list_policies:
            for name, summary in known.policies.items():
                print(f"{name:<16} {summary}")
            return
        if generate is not None or out is not None:
            print(_generate(program, generate, out, seed, option or []))
            return
        policies = list(dict.fromkeys(filter(None, (policy or "").split(","))))
        if not policies:
            raise BadInput("--policy is missing (commensal simulate --list-policies)")
        for kind, names in (
            ("policy", policies),
            ("format", [trace_format]),
            ("semantics", [semantics]),
            ("predictor", [predict]),
        ):
            known.check(kind, [name for name in names if name is not None])
        given: dict[str, Any] = {
            "--trace": trace,
            "--format": trace_format,
            "--semantics": semantics,
            "--sharing": sharing,
            "--nodes": nodes,
            "--gpus-per-node": gpus_per_node,
            "--cluster": cluster,
            "--seed": seed,
            "--failures": failures,
            "--predict": predict,
            "--profiles": profiles,
            "--series": POINTS if report else None,
        }
        arguments = [w for k, v in given.items() if v is not None for w in (k, str(v))]
        arguments += [word for value in option or [] for word in ("--option", value)]
        arguments += ["--skip-bad-rows"] if skip_bad_rows else []
        if report:
            import_module("commensal.simulation.report")  # better now than when all has run
        answer = _run(Runs(program, policies, arguments, jobs_out))
        _write(answer, json_file, report)


@contextmanager
def _explaining() -> Iterator[None]:
    """Turn what goes wrong into a line and an exit code."""
    from commensal.simulation import BadInput, Interrupted, SimulatorFailed

    try:
        yield
    except SimulatorFailed as error:
        say(str(error))
        raise typer.Exit(USAGE if isinstance(error, BadInput) else BROKEN) from None
    except (Interrupted, KeyboardInterrupt) as error:  # the latter while nothing runs
        signum = error.signum if isinstance(error, Interrupted) else signal.SIGINT
        say(f"ended by {signal.Signals(signum).name}; nothing was written")
        raise typer.Exit(128 + signum) from None
    except ImportError as error:
        say(f"the report needs a package that is missing: {error} (pip install 'commensal[demo]')")
        raise typer.Exit(BROKEN) from None
    except OSError as error:
        say(f"cannot write {error.filename}: {error.strerror}")
        raise typer.Exit(BROKEN) from None


def _generate(
    program: Path, what: str | None, out: Path | None, seed: int | None, options: list[str]
) -> str:
    """Make up jobs; return what was written."""
    from commensal.simulation import generate

    given = {"--generate": what, "--out": out, "--seed": seed}
    arguments = [w for k, v in given.items() if v is not None for w in (k, str(v))]
    arguments += [word for value in options for word in ("--option", value)]
    return f"{out}: {generate(program, arguments):,} jobs"


def _run(runs: Runs) -> dict[str, Any]:
    """Run all policies behind a progress bar, where stderr is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task(", ".join(runs.policies), total=None)
        return runs.run(lambda ended, jobs: bar.update(task, completed=ended, total=jobs or None))


def _write(answer: dict[str, Any], json_file: Path | None, report: Path | None) -> None:
    from commensal.simulation.runs import write_whole

    if report is not None:
        from commensal.simulation.report import write

        say(f"report: {write(report, answer)}")
    text = json.dumps(answer, indent=2) + "\n"
    if json_file == Path("-"):
        print(text, end="")
        return
    if json_file is not None:
        write_whole(json_file, text)
    from rich.console import Console

    from commensal.simulation.tables import compare, drawn, failures, predictions

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(drawn(compare(answer["results"])))
    if failed := failures(answer["results"]):
        console.print("\nFailures, and what they cost")
        console.print(drawn(failed))
    if predicted := predictions(answer["results"]):
        console.print("\nErrors of predictions, in percent of the truth")
        console.print(drawn(predicted))
