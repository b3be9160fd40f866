# SPDX-License-Identifier: Apache-2.0
"""`commensal memory`: where a job's memory lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from commensal._memory_map import TIERS, ChunkRun, MemoryMap
from commensal._memory_summary import KIND_NAMES, describe_kinds
from commensal._quantities import format_bytes
from commensal._say import say
from commensal.cli._manual import EXIT_CODES, manual
from commensal.cli._options import (
    BROKEN,
    AsJson,
    Instance,
    LiveJob,
    coordinator_of,
    reporting,
)

__all__ = ["describe_map", "memory", "register"]

_LETTERS = dict(zip(TIERS, "DHPX", strict=True))
_CODES: dict[int | str, str] = {code: EXIT_CODES[code] for code in (0, 2, 3, 4)}
_CODES[1] = "the picture could not be drawn or written"
_CELLS = 60  # of a strip, at most
_CELL_BYTES = 2 << 20  # at least


def register(app: typer.Typer) -> None:
    app.command(
        "memory",
        epilog=manual(
            [
                ("commensal memory trainer", "a table by tier, lifetime and tag, and strips"),
                ("commensal memory trainer --png memory.png", "a picture of its address space"),
                ("commensal memory trainer --json", "every stretch of memory, for scripts"),
            ],
            _CODES,
        ),
    )(memory)


def memory(
    context: typer.Context,
    job: LiveJob,
    png: Annotated[
        Path | None,
        typer.Option("--png", help="Draw a picture there (needs matplotlib).", metavar="FILE"),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option(help="Which of its processes (default: the first rank).", metavar="PID"),
    ] = None,
    as_json: AsJson = False,
    instance: Instance = None,
) -> None:
    """Show where a job's memory lies, by tier, lifetime and tag.

    The process is asked itself, while it runs. One strip for each kind of memory, in the order of
    addresses: D is on the device, H on the slower tier, P parked and X dropped; a small letter
    holds mostly free memory. In the picture a full bar is memory that tensors use.
    """
    coordinator = coordinator_of(context, instance)
    with reporting(coordinator):
        reply = coordinator.memory_map(job, pid)
    where = MemoryMap.from_json(reply)
    if as_json:
        print(json.dumps(reply, indent=2))
    elif png is None:
        print(describe_map(where))
    if png is not None:
        _draw(where, png)


def _draw(where: MemoryMap, file: Path) -> None:
    try:
        from commensal._memory_picture import draw
    except ImportError as error:
        say(f"no picture: {error}; 'pip install matplotlib' brings what is missing")
        raise typer.Exit(BROKEN) from None
    try:
        draw(where, file)
    except (OSError, ValueError) as error:  # matplotlib: an ending that it cannot write
        say(f"cannot write {file}: {error}")
        raise typer.Exit(BROKEN) from None
    say(f"wrote {file}")


def describe_map(where: MemoryMap) -> str:
    """Lay a memory map out as a table and a strip of letters for each kind."""
    lines = [f"memory of {where.job}, process {where.pid}", *describe_kinds(where)]
    if where.segments:
        lines += ["", "  D device, H slower tier, P parked, X dropped; small: mostly free memory"]
    for kind, runs in where.runs_by_kind().items():
        total = sum(run.size_bytes for run in runs)
        cells = max(1, min(_CELLS, total // _CELL_BYTES))
        lines += ["", f"  {KIND_NAMES.get(kind, kind)}, {format_bytes(total // cells)} a letter:"]
        lines.append(f"  {_strip(runs, total, cells)}")
    return "\n".join(lines)


def _strip(runs: list[ChunkRun], total: int, cells: int) -> str:
    """Return one letter for each of `cells` equal parts: the tier that has most of it."""
    shares: list[dict[str, float]] = [{} for _ in range(cells)]
    live = [0.0] * cells
    begin = 0
    for run in runs:
        end = begin + run.size_bytes
        for cell in range(begin * cells // total, -(-end * cells // total)):
            low, high = max(begin, cell * total / cells), min(end, (cell + 1) * total / cells)
            shares[cell][run.tier] = shares[cell].get(run.tier, 0.0) + high - low
            live[cell] += (high - low) * run.live_bytes / run.size_bytes
        begin = end
    letters = (_LETTERS[max(share, key=share.__getitem__)] for share in shares)
    return "".join(
        letter if used * 2 >= total / cells else letter.lower()
        for letter, used in zip(letters, live, strict=True)
    )
