# SPDX-License-Identifier: Apache-2.0
"""What memory costs on this card: commensal, PyTorch and its peers, each in a process of its own.

    figures_stage.py --out FOLDER [--only GROUP]...

Sizes are parts of what is free on the card at the start. Groups come best first: what the stage's
time does not reach says so. In a dry run everything is called with small sizes; times mean
nothing there, contents and counts do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import figures_allocation
import figures_parking
import figures_training
from cell_runs import Cell, CellFailed
from figure_bench import GIB, Bench, Group, Sizes
from figures_picture import draw
from free_memory import Watcher
from kept_parts import result_file
from scripts_stage import coordinator
from stage_report import StageReport

LINK = ("link.d2h", "link.h2d", "link.duplex", "link.pinned_allocation")
NO_CARD = "the card cannot be used or watched"
POLL_SECONDS = 0.0005
PICTURE = "figures.png"
ORDER = (
    *("allocator", "overhead", "give_back", "park", "stop_time", "antman_shrink", "resnet_90"),
    *("park_default", "neighbour", "graph", "exchange", "empty_cache", "park_others"),
    *("other_allocators", "checkpoint", "others"),
)


def groups() -> dict[str, Group]:
    """Return all groups, in the order in which they are measured."""
    modules = (figures_allocation, figures_parking, figures_training)
    found = {group.name: group for module in modules for group in module.GROUPS}
    return {name: found[name] for name in ORDER}


def about_the_card(bench: Bench, folder: Path) -> str:
    """Measure the link, say what the figures are made on, and return the card's name.

    Raises:
        CellFailed: there is no card that PyTorch can use.
    """
    with Cell("card", "native", folder) as cell:
        cell.make(time.monotonic() + 60.0)
        about = cell.order("about")
        bench.sizes = Sizes(about["free_bytes"], about["host_bytes"])
        link = cell.order("link", bytes=bench.sizes.kept // 4)
    bench.report.machine(
        **about,
        kept_bytes=bench.sizes.kept,
        parked_bytes=bench.sizes.parked,
        given_back_bytes=bench.sizes.given_back,
    )
    bench.link = {name: statistics.median(link[name]) for name in ("d2h", "h2d", "duplex")}
    for figure, name in zip(LINK[:3], ("d2h", "h2d", "duplex"), strict=True):
        bench.figure(figure, [one / GIB for one in link[name]], "GiB/s")
    bench.figure(LINK[3], link["pin"] / GIB, "GiB/s", by="torch.empty(pin_memory=True)")
    bench.check("what went to the card and back is the same", link["same"])
    return str(about["uuid"])


def measure(bench: Bench, chosen: list[Group], folder: Path) -> None:
    """Measure the groups; the processes of the next one start beside the present one."""
    chosen = [group for group in chosen if not bench.take(group)]
    if chosen:
        bench.prepare(chosen[0])
    try:
        uuid = about_the_card(bench, folder)
        watcher = Watcher(uuid, folder, POLL_SECONDS)
    except (CellFailed, OSError) as reason:
        bench.check("the card can be used and watched", False, str(reason))
        bench.without([*LINK, *(one for group in chosen for one in group.figures)], NO_CARD)
        return
    with watcher:
        bench.watch = watcher.path
        for index, group in enumerate(chosen):
            following = next(iter(chosen[index + 1 :]), None)
            bench.prepare(group)
            if following is not None and not group.quiet:
                bench.prepare(following, beside=True)
            begin = time.monotonic()
            bench.run(group)
            print(f"  -- {group.name}: {time.monotonic() - begin:.1f} s", flush=True)


def main(argv: list[str]) -> int:
    every = groups()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=every, metavar="GROUP")
    arguments = parser.parse_args(argv)
    chosen = [group for name, group in every.items() if name in (arguments.only or every)]
    # Where the stage ends soon, what was measured is told in time.
    deadline = time.monotonic() + float(os.environ.get("STAGE_SECONDS") or 540) - 15
    names = [*LINK, *(figure for group in chosen for figure in group.figures)]
    report = StageReport("figures", arguments.out, names)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "run").mkdir(mode=0o700)
        bench = Bench(report, folder, deadline)
        with coordinator(folder / "run"):
            try:
                measure(bench, chosen, folder)
            finally:
                bench.close()
    code = report.finish()
    told = json.loads(result_file(arguments.out, "figures.json").read_text())
    picture = result_file(arguments.out, PICTURE)
    why = "this is a dry run" if bench.simulated else draw(told, picture)
    if why:
        print(f"  no {PICTURE}: {why}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
