# SPDX-License-Identifier: Apache-2.0
"""The figures of memory that leaves the card and comes back: M1, M2, M6, M7, M10, M11, M12."""

from __future__ import annotations

import functools
import statistics
from typing import Any

from cell_runs import Cell, CellFailed
from figure_bench import GIB, MIB, Bench, Group
from figures_allocation import NO_KVCACHED, NO_RAPIDS, OURS

# In groups: what takes long, and what no target is for, comes later.
WAYS = {
    "park": (OURS, "saver_retained"),
    "park_default": ("saver",),
    "park_others": ("native", "vllm"),
}
NAMES = {
    OURS: "commensal",
    "saver": "torch_memory_saver",
    "saver_retained": "torch_memory_saver_retained",
    "native": "pytorch",
    "vllm": "vllm_emulated",
}
SPEEDS = ("pause", "resume", "pause_cold", "resume_cold")
OF_LINK = "m1.commensal.pause_of_link"
RATIOS = {
    "saver": ("pause_resume.against_default", 10.0),
    "saver_retained": ("pause_resume.against_retained", 1.2),
}
NO_VLLM = "vLLM is too large to bring along; its sequence of calls is measured in M1, M2 and M12"
LEAST_WARM, MOST_WARM = 1, 5


def figures_of(way: str) -> tuple[str, ...]:
    name = NAMES[way]
    more = (OF_LINK,) if way == OURS else RATIOS.get(way, ())[:1]
    return (
        *more,
        *(f"m1.{name}.{speed}" for speed in SPEEDS),
        f"m2.{name}.drop",
        f"m2.{name}.had_again",
        f"m12.{name}.left",
        f"m12.{name}.host_peak",
    )


def cycle(cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    return cell.order("park"), cell.order("wake")


def measure_way(bench: Bench, way: str) -> tuple[float, float]:
    """Park and wake what one way holds; return its warm times, summed, and of the pause alone."""
    name, ours = NAMES[way], way == OURS
    size = bench.sizes.parked // (4 if bench.simulated else 1)
    with bench.cell("job", way) as cell:
        held = cell.order("hold", bytes=size)
        facts = {"bytes": held["bytes"], "way": held["way"]}
        before = cell.order("held")
        cold_park = cell.order("park")
        parked = cell.order("held")
        cold_wake = cell.order("wake")
        told = [(cold_park, cold_wake)]
        one = cold_park["seconds"] + cold_wake["seconds"]
        wanted = 2 if bench.simulated else MOST_WARM
        while len(told) <= wanted and (len(told) <= LEAST_WARM or bench.seconds_left() / 8 > one):
            told.append(cycle(cell))
        after = cell.order("check")
        bench.verify(
            f"M1 {name}: the content is what it was after {len(told)} cycles",
            after["same"] and (after["addresses"] or way == "native"),
            f"{after}, {held['way']}",
            ours=ours,
        )
        late = sum(park["visible_seconds"] is None for park, _ in told)
        seen = f"M1 {name}: another process sees the bytes as free"
        bench.verify(seen, late == 0, f"{late} late", ours=ours)
        reasons = {reason for turn in told for reason in (turn[0]["reason"], turn[1]["reason"])}
        if ours:
            bench.check("M1 commensal: nothing is deferred", reasons == {""}, str(reasons))
        pauses = [max(park["seconds"], park["visible_seconds"] or 0.0) for park, _ in told]
        resumes = [wake["seconds"] for _, wake in told]
        figures = [pauses[1:], resumes[1:], pauses[:1], resumes[:1]]
        for speed, seconds in zip(SPEEDS, figures, strict=True):
            found = [held["bytes"] / GIB / one for one in seconds]
            bench.figure(f"m1.{name}.{speed}", found, "GiB/s", **facts)
        what_is_left(bench, name, size, before, parked)
        dropped(bench, name, cell, size)
    return statistics.median(pauses[1:]), statistics.median(resumes[1:])


def what_is_left(
    bench: Bench, name: str, size: int, before: dict[str, Any], parked: dict[str, Any]
) -> None:
    """M12: bytes of the card that a parked job holds, as NVML shows."""
    if parked["device_bytes"] is None:
        bench.not_run(f"m12.{name}.left", "NVML does not show this process (another PID namespace)")
    else:
        left = parked["device_bytes"]
        freed = parked["free_bytes"] - before["free_bytes"]
        facts = {"before": before["device_bytes"] / MIB, "freed_for_others": freed / MIB}
        bench.count(f"m12.{name}.left", left / MIB, "MiB", **facts)
        # NVML counts for a process what it has on the host by the driver, too, on some: what others
        # can have is what counts.
        bench.verify(
            f"M12 {name}: NVML shows the card without the job's bytes",
            freed >= 0.9 * size,
            f"{freed >> 20} MiB became free; the job: "
            f"{before['device_bytes'] >> 20} -> {left >> 20} MiB",
            ours=name == "commensal",
        )
    bench.count(f"m12.{name}.host_peak", parked["host_bytes"] / MIB, "MiB", moved=size / MIB)


def dropped(bench: Bench, name: str, cell: Cell, size: int) -> None:
    """M2: the content is given up."""
    figures = f"m2.{name}.drop", f"m2.{name}.had_again"
    ours = name == "commensal"
    with bench.part(*figures, ours=ours):
        held = cell.order("hold_dropped", bytes=size)
        if held["reason"]:
            for figure in figures:
                bench.not_run(figure, held["reason"])
            return
        told = [(cell.order("drop"), cell.order("undrop")) for _ in range(3)]
        late = sum(drop["visible_seconds"] is None for drop, _ in told)
        seen = f"M2 {name}: another process sees the bytes as free"
        bench.verify(seen, late == 0, f"{late} late", ours=ours)
        for side, figure in enumerate(figures):
            times = [turn[side]["seconds"] * 1e3 for turn in told]
            bench.figure(figure, times, "ms", bytes=held["bytes"])


def park_ways(bench: Bench, ways: tuple[str, ...]) -> None:
    """M1, M2 and M12 of some ways, each with the same bytes in the same blocks."""
    for way in ways:
        figures = figures_of(way)
        with bench.part(*figures, ours=way == OURS):
            seconds = measure_way(bench, way)
            if way == OURS:
                bench.ours["park"] = seconds
                speed = bench.sizes.parked / seconds[0] / bench.link["d2h"]
                bench.figure(OF_LINK, speed, "x", least=0.95)
            elif way in RATIOS:
                ratio(bench, way, seconds)


def ratio(bench: Bench, way: str, seconds: tuple[float, float]) -> None:
    """Hold what another way takes for a pause and a resume to what commensal took."""
    figure, least = RATIOS[way]
    if ours := bench.ours.get("park"):
        bench.figure(figure, sum(seconds) / sum(ours), "x", least=least)
    else:
        bench.not_run(figure, "commensal's own side was not measured")


def others(bench: Bench) -> None:
    """What section 5.3 names and one machine without a network cannot have."""
    for row in ("m5", "m6", "m7", "m8"):
        bench.not_run(f"{row}.vllm", NO_VLLM)
    for row in ("m5", "m6", "m7"):
        bench.not_run(f"{row}.cucheckpoint", "it stops the whole process: M1 has its speed")
    bench.not_run("m1.cudf", NO_RAPIDS)
    bench.not_run("m10.rmm", NO_RAPIDS)
    for row in ("m2", "m6", "m11"):
        bench.not_run(f"{row}.kvcached", NO_KVCACHED)
    bench.not_run(
        "m4.torch_memory_saver", "it pauses a whole tag, whatever is asked for: M1 has its speed"
    )
    bench.not_run("m5.torch_memory_saver", "it stops the job and pauses: M1 has its speed")
    bench.not_run(
        "m7.torch_memory_saver", "graphs want its preloaded hook: another process than the others'"
    )
    bench.not_run("m9.managed", "managed memory is not used on this machine")


OTHERS = (
    *(f"{row}.vllm" for row in ("m5", "m6", "m7", "m8")),
    *(f"{row}.cucheckpoint" for row in ("m5", "m6", "m7")),
    *("m1.cudf", "m10.rmm", "m2.kvcached", "m6.kvcached", "m11.kvcached"),
    *("m4.torch_memory_saver", "m5.torch_memory_saver", "m7.torch_memory_saver", "m9.managed"),
)


NEIGHBOURS = (OURS, "native", "saver")


def neighbour(bench: Bench) -> None:
    """M10, M11: another process takes the card's memory, of a running job and of a parked one."""
    size = bench.sizes.kept // 4
    every = [f"{row}.{NAMES[way]}.survives" for way in NEIGHBOURS for row in ("m10", "m11")]
    with bench.part(*every), bench.cell("job", "native") as other:
        for way in NEIGHBOURS:
            name = NAMES[way]
            ours = name == "commensal"
            figures = f"m10.{name}.survives", f"m11.{name}.survives"
            with bench.part(*figures, ours=ours), bench.cell("job", way) as cell:
                cell.order("hold", bytes=size)
                other.order("take_all_but", bytes=size // 4)
                told = survived(bench, cell, figures[0], size, ours=ours)
                if told:
                    restore(bench, cell, other, figures[1], ours=ours)
                else:
                    bench.not_run(figures[1], "the job died when it allocated")
            other.order("leave")  # also where the job has failed


def survived(bench: Bench, cell: Cell, figure: str, size: int, *, ours: bool) -> bool:
    """M10: a job allocates where a neighbour has the memory. Return whether it still runs."""
    try:
        told = cell.order("allocate", bytes=size)
        after = cell.order("check")
    except CellFailed as end:
        if ours or bench.out_of_time():
            raise
        bench.count(figure, 0.0, "jobs", error=str(end))
        return False
    bench.count(figure, float(told["survived"]), "jobs", error=told["error"])
    if ours:
        bench.check(
            "M10 commensal: allocates although a neighbour has the card's memory",
            told["survived"] and after["same"] and after["addresses"],
            f"{told['error']} {after}",
        )
    return True


def restore(bench: Bench, cell: Cell, other: Cell, figure: str, *, ours: bool) -> None:
    """M11: the job comes back where there is no memory, and then where there is."""
    cell.order("leave")
    other.order("leave")
    cell.order("park")
    other.order("take_all_but", bytes=0)
    try:
        first = cell.order("wake", patience=2.0)
        other.order("leave")
        again = cell.order("wake")
        after = cell.order("check")
    except CellFailed as end:
        if ours or bench.out_of_time():
            raise
        bench.count(figure, 0.0, "jobs", error=str(end))
        return
    bench.count(figure, float(after["same"]), "jobs", first=first["reason"], again=again["reason"])
    if ours:
        bench.check(
            "M11 commensal: a restore that found no memory is told, and done when asked again",
            bool(first["reason"]) and not again["reason"] and after["same"] and after["addresses"],
            f"first: {first['reason']}; again: {again['reason']}; {after}",
        )


def exchange(bench: Bench) -> None:
    """M6: the bytes of one process leave the card while another's come back, in turns."""
    size = bench.sizes.kept // (8 if bench.simulated else 2)
    for way in (OURS, "saver_retained"):
        figure = f"m6.{NAMES[way]}.exchange"
        with (
            bench.part(figure, ours=way == OURS),
            bench.cell("job", way) as first,
            bench.cell("job", way) as second,
        ):
            for cell in (first, second):
                cell.order("hold", bytes=size)
            second.order("park")
            found = []
            for turn in range(2 if bench.simulated else 6):
                out, back = (first, second) if turn % 2 == 0 else (second, first)
                out.send("park", seen=False)
                back.send("wake")
                told = out.answer(), back.answer()
                found.append(max(one["seconds"] for one in told))
            whole = [cell.order("wake")["reason"] for cell in (first, second)]
            checks = [cell.order("check")["same"] for cell in (first, second)]
            same = f"{figure}: both contents are what they were"
            bench.verify(same, all(checks), str(whole), ours=way == OURS)
            bench.figure(figure, found[1:] or found, "s", bytes_each=size)


CHECKPOINT = ("m1.cucheckpoint.pause", "m1.cucheckpoint.resume", "m12.cucheckpoint.left")


def checkpoint(bench: Bench) -> None:
    """M1 and M12 by the driver itself: a second process takes all that a job has on the card."""
    size = bench.sizes.parked // 2  # it is slow
    with (
        bench.part(*CHECKPOINT, ours=False),
        bench.cell("checkpoint", "native") as other,
        bench.cell("job", "native") as cell,
    ):
        held = cell.order("hold", bytes=size)
        order = {"pid": cell.pid, "bytes": held["bytes"]}
        parked = other.order("park", **order)
        woken = other.order("wake", **order) if not parked["reason"] else parked
        if woken["reason"]:
            bench.without(CHECKPOINT, woken["reason"])
            return
        after = cell.order("check")
        same = "M1 cuCheckpoint: the content is what it was"
        bench.verify(same, after["same"], str(after), ours=False)
        for figure, told in zip(CHECKPOINT[:2], (parked, woken), strict=True):
            bench.figure(figure, held["bytes"] / GIB / told["seconds"], "GiB/s", **held)
        bench.count(CHECKPOINT[2], parked["left_bytes"] / MIB, "MiB", visible=parked["visible"])


REPLAY = ("m7.commensal.replay_ratio", "m7.pytorch.replay_ratio")


def graph(bench: Bench) -> None:
    """M7: a captured graph reads tensors that left and came back."""
    bench.not_run(REPLAY[1], "tensors come back at other addresses: no graph holds")
    settings = {"bytes": bench.sizes.kept // 8, "collective": not bench.simulated}
    with bench.cell("graph", OURS, **settings) as cell:
        told = cell.order()
    bench.check("M7: replays are right before the cycle", told["same_before"])
    bench.check(
        "M7: a replay after the cycle reads what it read before",
        told["same"] and told["source"],
        "; ".join(told["reasons"]),
    )
    ratio = statistics.median(told["after"]) / statistics.median(told["before"])
    bench.figure(REPLAY[0], ratio, "x", **settings)


GROUPS = (
    *(
        Group(
            name,
            tuple(figure for way in ways for figure in figures_of(way)),
            tuple(("job", way) for way in ways),
            functools.partial(park_ways, ways=ways),
        )
        for name, ways in WAYS.items()
    ),
    Group(
        "neighbour",
        tuple(f"{row}.{NAMES[way]}.survives" for way in NEIGHBOURS for row in ("m10", "m11")),
        (("job", "native"), ("job", OURS)),
        neighbour,
    ),
    Group(
        "exchange",
        tuple(f"m6.{NAMES[way]}.exchange" for way in (OURS, "saver_retained")),
        (("job", OURS),),
        exchange,
    ),
    Group("checkpoint", CHECKPOINT, (("checkpoint", "native"), ("job", "native")), checkpoint),
    Group("graph", REPLAY, (("graph", OURS),), graph),
    Group("others", OTHERS, (), others),
)
