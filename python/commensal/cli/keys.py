# SPDX-License-Identifier: Apache-2.0
"""`commensal keys`: who may ask a coordinator from another machine, and as what."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from commensal._cluster import key_folder
from commensal._say import say
from commensal.cli._manual import manual
from commensal.cli._options import REFUSED, AsJson

__all__ = ["register"]

Folder = Annotated[
    Path | None,
    typer.Option(help="Folder of keys; default: COMMENSAL_KEYS_DIR.", metavar="DIR"),
]
_EXAMPLES = [
    ("commensal keys create", "your own key, 'client'; prints its public part"),
    ("commensal keys allow --help", "for the coordinator's operator: who may what"),
    ("commensal keys list", "who is allowed, as what, since when"),
    ("commensal keys revoke ann", "at once, also for connections that are open"),
]
_OF_ALLOW = [
    ("commensal keys allow ann KEY --role user --tenant vision", "where the coordinator runs"),
    ("commensal keys allow n3 n3.pub --role node", "for the commensald of machine n3"),
]


def register(app: typer.Typer) -> None:
    epilog = manual(_EXAMPLES, [0, 2, 4], ["COMMENSAL_KEYS_DIR"])
    keys = typer.Typer()
    keys.command(epilog=epilog)(create)
    keys.command(epilog=manual(_OF_ALLOW, [0, 2, 4], ["COMMENSAL_KEYS_DIR"]))(allow)
    keys.command(epilog=epilog)(revoke)
    keys.command("list", epilog=epilog)(list_keys)
    app.add_typer(
        keys,
        name="keys",
        help="Make keys, and say who may ask this coordinator from elsewhere.",
        epilog=epilog,
        no_args_is_help=True,
    )


@contextmanager
def _refusing() -> Iterator[None]:
    from commensal import _core

    try:
        yield
    except _core.KeyProblem as problem:
        say(str(problem))
        raise typer.Exit(REFUSED) from None


def _folder(given: Path | None) -> str:
    return str(given.absolute() if given is not None else key_folder())


def create(
    name: Annotated[
        str,
        typer.Argument(help="What commands and daemons call it here.", metavar="NAME"),
    ] = "client",
    keys_dir: Folder = None,
) -> None:
    """Make a pair of keys, and print the public one.

    The secret one stays in NAME.key. Commands use 'client', commensald 'node', and the
    cluster's coordinator 'coordinator', which it makes by itself.
    """
    from commensal import _core

    with _refusing():
        print(_core.keys_create(_folder(keys_dir), name))


def allow(
    name: Annotated[str, typer.Argument(help="Who holds it; of a node its name.", metavar="NAME")],
    key: Annotated[
        str, typer.Argument(help="The public key, or the file that it is in.", metavar="KEY")
    ],
    role: Annotated[str, typer.Option(help="What it may do.", metavar="user|operator|node")],
    tenant: Annotated[
        list[str] | None,
        typer.Option(help="Whom a user acts for; may be repeated.", metavar="NAME"),
    ] = None,
    keys_dir: Folder = None,
) -> None:
    """Allow a key to ask the coordinator that uses this folder.

    A user submits jobs of its tenants and sees them; an operator may everything; a node reports
    about itself. It holds at once.
    """
    from commensal import _core

    with _refusing():
        _core.keys_allow(_folder(keys_dir), name, _public_key(key), role, tenant or [])
    print(f"key {name}: allowed as {role}")


def _public_key(word: str) -> str:
    """Return a key that was given, or what stands in the file of that name."""
    try:
        path = Path(word)
        if path.is_file():
            return path.read_text(encoding="ascii", errors="replace")[:1000]
        if os.sep in word or path.suffix == ".pub":  # no key looks so
            say(f"cannot read {word}: no such file")
            raise typer.Exit(REFUSED)
    except OSError as error:
        say(f"cannot read {word}: {error.strerror}")
        raise typer.Exit(REFUSED) from None
    return word


def revoke(
    name: Annotated[str, typer.Argument(help="As 'list' shows it.", metavar="NAME")],
    keys_dir: Folder = None,
) -> None:
    """Revoke a key: what it sends from now on is refused."""
    from commensal import _core

    with _refusing():
        _core.keys_revoke(_folder(keys_dir), name)
    print(f"key {name}: revoked")


def list_keys(as_json: AsJson = False, keys_dir: Folder = None) -> None:
    """Show who is allowed, as what, since when."""
    from commensal import _core

    with _refusing():
        entries = _core.keys_list(_folder(keys_dir))
    if as_json:
        names = ("name", "key", "role", "tenants", "created_ms", "revoked_ms")
        print(json.dumps({"keys": [dict(zip(names, entry, strict=True)) for entry in entries]}))
        return
    if not entries:
        print("no keys")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("NAME", "ROLE", "TENANTS", "SINCE", "REVOKED", "KEY"):
        table.add_column(column, overflow="fold")
    for name, key, role, tenants, created_ms, revoked_ms in entries:
        revoked = "" if revoked_ms is None else _time(revoked_ms)
        table.add_row(name, role, ", ".join(tenants), _time(created_ms), revoked, key)
    Console(highlight=False, markup=False).print(table)


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000):%Y-%m-%d %H:%M}"
