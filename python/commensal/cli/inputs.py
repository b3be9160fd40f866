# SPDX-License-Identifier: Apache-2.0
"""`commensal inputs`: records of input that jobs found corrupt, and that others leave out."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from commensal._cluster import Cluster
from commensal._inputs import DATASET, check_name
from commensal._quantities import format_seconds
from commensal.cli._manual import manual
from commensal.cli._options import (
    AsJson,
    Instance,
    RemoteAddress,
    blaming,
    brought_back,
    cluster_for,
    coordinator_of,
    reporting,
)

__all__ = ["register"]

_VARIABLES = [
    *("COMMENSAL_INSTANCE", "COMMENSAL_RUNTIME_DIR"),
    *("COMMENSAL_COORDINATOR", "COMMENSAL_KEY", "COMMENSAL_KEYS_DIR"),
]

Tenant = Annotated[str, typer.Option(help="Whose jobs.", metavar="NAME")]
Records = Annotated[list[str], typer.Argument(help="As jobs name them.", metavar="RECORD")]
Dataset = Annotated[str, typer.Option(help="Of which data set.", metavar="NAME")]


def register(app: typer.Typer) -> None:
    inputs = typer.Typer()

    def of(*examples: tuple[str, str]) -> str:
        return manual(examples, [0, 2, 3, 4], _VARIABLES)

    listing = ("commensal inputs list --tenant vision --suspects", "also what one job failed at")
    adding = ("commensal inputs add shard-17:4711 --reason 'bad crc'", "jobs leave it out")
    removing = ("commensal inputs remove shard-17:4711", "it has been mended")
    inputs.command("list", epilog=of(listing))(list_inputs)
    inputs.command("add", epilog=of(adding))(add)
    inputs.command("remove", epilog=of(removing))(remove)
    app.add_typer(
        inputs,
        name="inputs",
        help="Show or change which records of input jobs leave out.",
        epilog=of(
            ("commensal inputs list", "what jobs of the tenant 'default' leave out"),
            ("commensal inputs add shard-17:4711", "jobs are to leave it out"),
            removing,
        ),
        no_args_is_help=True,
    )


def list_inputs(
    context: typer.Context,
    tenant: Tenant = "default",
    dataset: Annotated[
        str | None, typer.Option(help="Of one data set alone.", metavar="NAME")
    ] = None,
    suspects: Annotated[
        bool, typer.Option("--suspects", help="Also those that too few jobs failed at.")
    ] = False,
    as_json: AsJson = False,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Show records that jobs reported as corrupt."""
    cluster = brought_back(cluster_for(coordinator_of(context, instance), coordinator))
    with reporting(cluster):
        found = _all(cluster, tenant, dataset, suspects)
    if as_json:
        print(json.dumps({"inputs": found}))
        return
    if not found:
        print("no bad inputs")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("DATASET", "RECORD", "STATE", "SINCE", "JOBS", "REASON"):
        table.add_column(column, overflow="fold")
    now = time.time()
    for entry in found:
        jobs = ", ".join(dict.fromkeys(report["job"] for report in entry["reports"]))
        state = "listed" if entry["listed"] else "suspect"
        since = format_seconds(max(0.0, now - entry["since_ms"] / 1000))
        cells = (entry["dataset"], entry["record"], state, since, jobs, entry["reason"])
        table.add_row(*(Text(cell) for cell in cells))
    Console(highlight=False, markup=False).print(table)


def _all(
    cluster: Cluster, tenant: str, dataset: str | None, suspects: bool
) -> list[dict[str, Any]]:
    fields: dict[str, Any] = {"tenant": tenant, "suspects": suspects}
    if dataset is not None:
        fields["dataset"] = dataset
    found: list[dict[str, Any]] = []
    more = True
    while more:
        answer = cluster.ask("inputs", **fields)
        found += answer["inputs"]
        more = answer["more"]
        if more:
            fields["after"] = [found[-1]["dataset"], found[-1]["record"]]
    return found


def add(
    context: typer.Context,
    records: Records,
    tenant: Tenant = "default",
    dataset: Dataset = DATASET,
    reason: Annotated[
        str | None, typer.Option("--reason", help="For the others.", metavar="TEXT")
    ] = None,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """List records: jobs are told to leave them out."""
    fields = {} if reason is None else {"reason": reason}
    _change(context, instance, coordinator, "add_input", records, tenant, dataset, fields)


def remove(
    context: typer.Context,
    records: Records,
    tenant: Tenant = "default",
    dataset: Dataset = DATASET,
    instance: Instance = None,
    coordinator: RemoteAddress = None,
) -> None:
    """Forget records: jobs use them again, and may report them again."""
    _change(context, instance, coordinator, "remove_input", records, tenant, dataset, {})


def _change(
    context: typer.Context,
    instance: str | None,
    address: str | None,
    request: str,
    records: list[str],
    tenant: str,
    dataset: str,
    fields: dict[str, str],
) -> None:
    with blaming("RECORD"):
        for record in records:
            check_name("the name of a record", record)
    cluster = brought_back(cluster_for(coordinator_of(context, instance), address))
    done = "listed" if request == "add_input" else "forgotten"
    with reporting(cluster):
        for record in records:
            cluster.ask(request, tenant=tenant, dataset=dataset, record=record, **fields)
            print(f"{dataset}: {record}: {done}")
