# SPDX-License-Identifier: Apache-2.0
"""The figures of training steps: what commensal adds (M8), the stop of an Adam job (M5), steps on
memory of the host (M9), and ResNet-50 with nine tenths of its memory.
"""

from __future__ import annotations

import statistics

from cell_runs import Cell
from figure_bench import Bench, Group, paired_ratio

CLASSES = ("guaranteed", "opportunistic")
KINDS = {"host_bound": 0.3, "device_bound": 0.1}  # and the most percent for a guaranteed job
WINDOW = 1.2
PARTS = (20, 50, 10, 5)


def overhead(bench: Bench) -> None:
    """Steps alone and as a job, in turns; each class by itself beside plain PyTorch."""
    order = {"seconds": 0.05, "most": 3} if bench.simulated else {"seconds": 0.25, "most": 10000}
    turns = 2 if bench.simulated else 10
    with bench.cell("steps", "native") as alone:
        for job_class in CLASSES:
            figures = {kind: f"step_overhead.{job_class}.{kind}" for kind in KINDS}
            with bench.part(*figures.values()), bench.cell("steps", job_class) as job:
                for kind, figure in figures.items():
                    compare_steps(bench, kind, figure, (job, alone), turns, order)


def compare_steps(
    bench: Bench,
    kind: str,
    figure: str,
    cells: tuple[Cell, Cell],
    turns: int,
    order: dict[str, float],
) -> None:
    told = [[cell.order(kind, **order)["seconds"] for cell in cells] for _ in range(turns)]
    bench.check(f"{figure}: both sides took steps", all(all(pair) for pair in told))
    times = [[statistics.median(pair[side]) for pair in told] for side in (0, 1)]
    ratio, ratios = paired_ratio(*times)
    percent = [(one - 1) * 100 for one in ratios]
    target = {"most": KINDS[kind]} if "guaranteed" in figure else {}
    bench.figure(
        figure, percent, "%", step_seconds=statistics.median(times[1]), ratio=ratio, **target
    )


STOP = ("stop_time.adam", "stop_time.adam_ahead", "m5.longest_step")


def stop_time(bench: Bench) -> None:
    """An Adam job on 45 % of the card gives back a quarter of the card while it trains."""
    moved = min(bench.sizes.kept, bench.sizes.adam // 2)
    window = 0.02 if bench.simulated else WINDOW
    slow = tuple(f"m9.host_mapped_{part}" for part in PARTS)
    with (
        bench.part(*STOP, *slow),
        bench.cell("adam", "opportunistic", bytes=bench.sizes.adam, window=window) as cell,
    ):
        with bench.part(*STOP):
            told = cell.order("stop", bytes=moved, steps=3)
            facts = {
                "job_bytes": bench.sizes.adam,
                "asked_bytes": moved,
                "moved_bytes": told["moved_bytes"],
                "step_seconds": statistics.median(told["usual"]),
            }
            bench.figure(STOP[0], told["stopped_seconds"], "s", most=0.3, **facts)
            bench.count(STOP[1], told["ahead_bytes"] / max(1, told["moved_bytes"]), "of moved")
            bench.figure(STOP[2], max(told["taken"]), "s", **facts)
            bench.check(
                "stop time: the limit is met and weights are what they were",
                told["above_limit_bytes"] == 0 and told["moved_bytes"] > 0 and told["same"],
                f"{told['moved_bytes']} bytes moved, {told['above_limit_bytes']} above the limit; "
                f"{told['reason']}",
            )
        host_mapped(bench, cell)


def host_mapped(bench: Bench, cell: Cell) -> None:
    """M9: steps while a part of the job's bytes is memory of the host."""
    parts = PARTS[:2] if bench.simulated else PARTS
    for part in PARTS:
        figure = f"m9.host_mapped_{part}"
        if part not in parts:
            bench.not_simulated(figure, "a dry run looks at two parts")
            continue
        with bench.part(figure):
            told = cell.order("slow", part=part / 100, steps=3, window=0.01)
            usual, limited = (statistics.median(told[name]) for name in ("usual", "limited"))
            facts = {"host_bytes": told["host_bytes"], "usual_seconds": usual}
            facts["host_part"] = told["host_bytes"] / bench.sizes.adam
            target = {"most": 5.0} if part == 20 else {}
            bench.figure(figure, (limited / usual - 1) * 100, "%", **facts, **target)
            bench.check(
                f"M9: weights are what they were with {part} % on the host",
                told["same"] and told["host_bytes"] > 0,
                f"{told['host_bytes'] >> 20} MiB on the host; {told['deferred']}",
            )


def resnet_90(bench: Bench) -> None:
    """ResNet-50 with 90 % of the memory that it had, against itself with all of it."""
    order = {"seconds": 0.1, "most": 5} if bench.simulated else {"seconds": 3.0, "most": 10000}
    with bench.cell("resnet", "opportunistic") as cell:
        full = cell.order(**order)
        less = cell.order(part=0.9, **order)
    usual, limited = (statistics.median(told["seconds"]) for told in (full, less))
    bench.figure("resnet_90.speed", usual / limited, "x", least=0.9, memory=less["memory"])
    bench.check(
        "ResNet-50: the limit holds and weights are what they were",
        full["same"]
        and less["same"]
        and less["memory"]["device_bytes"] <= less["memory"]["limit_bytes"],
        str(less["memory"]),
    )


GROUPS = (
    Group(
        "overhead",
        tuple(f"step_overhead.{one}.{kind}" for one in CLASSES for kind in KINDS),
        (("steps", "native"), *(("steps", one) for one in CLASSES)),
        overhead,
        quiet=True,
    ),
    Group(
        "stop_time",
        (*STOP, *(f"m9.host_mapped_{part}" for part in PARTS)),
        (("adam", "opportunistic"),),
        stop_time,
    ),
    Group("resnet_90", ("resnet_90.speed",), (("resnet", "opportunistic"),), resnet_90),
)
