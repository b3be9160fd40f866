# SPDX-License-Identifier: Apache-2.0
"""The figures of allocating and giving back: M3, M4, M8, and AntMan's shrink."""

from __future__ import annotations

import statistics
from typing import Any

from figure_bench import NO_TIMES, Bench, Group, paired_ratio

TRACES = ("gpt", "resnet18", "loader", "char_transformer", "digits_cnn")
OURS = "opportunistic"
ALLOCATORS = ("expandable", "saver", "guaranteed")  # beside ours and PyTorch's
NO_KVCACHED = (
    "kvcached is published as source that needs a CUDA toolkit to build, and serves pages of a "
    "KV cache only"
)
NO_RAPIDS = "cuDF and RMM are too large to bring along"


def trace_figures() -> tuple[str, ...]:
    kinds = ("pair_ratio", "reserved_ratio")
    return tuple(f"allocator.{kind}.{trace}" for trace in TRACES for kind in kinds)


def allocator(bench: Bench) -> None:
    """Replay traces in turns: ours, PyTorch's, ours, PyTorch's."""
    names = TRACES[-2:] if bench.simulated else TRACES
    steps, passes, turns = (3, 1, 2) if bench.simulated else (20, 10, 7)
    with bench.cell("traces", OURS) as ours, bench.cell("traces", "native") as theirs:
        loop = statistics.median(theirs.order("loop")["nanoseconds"] for _ in range(3))
        for trace in TRACES:
            figure, reserved = f"allocator.pair_ratio.{trace}", f"allocator.reserved_ratio.{trace}"
            if trace not in names:
                bench.not_simulated(figure, "a dry run replays the two smallest")
                bench.not_simulated(reserved, "a dry run replays the two smallest")
                continue
            with bench.part(figure, reserved):
                order: dict[str, Any] = {"trace": trace, "steps": steps, "passes": passes}
                told = [(ours.order(**order), theirs.order(**order)) for _ in range(turns)]
                mine, other = [
                    [statistics.median(turn[side]["nanoseconds"]) for turn in told]
                    for side in (0, 1)
                ]
                ratio, ratios = paired_ratio(mine, other)
                nanoseconds = {"ours_ns": statistics.median(mine)}
                nanoseconds |= {"native_ns": statistics.median(other), "loop_ns": loop}
                net = (nanoseconds["ours_ns"] - loop) / max(1.0, nanoseconds["native_ns"] - loop)
                bench.figure(
                    figure, ratios, "x", most=1.0, median=ratio, without_loop=net, **nanoseconds
                )
                first, second = told[-1]
                peaks = first["reserved_peak_bytes"], second["reserved_peak_bytes"]
                bench.count(reserved, peaks[0] / peaks[1], "x", most=1.0, native_bytes=peaks[1])
                bench.check(
                    f"{trace}: as many blocks as PyTorch's allocator, and none left",
                    first["pairs"] == second["pairs"] > 0
                    and first["left_bytes"] == second["left_bytes"] == 0,
                    f"{first['pairs']} pairs",
                )


def other_allocators(bench: Bench) -> None:
    """M8: the same traces with what else there is, against PyTorch's as it comes."""
    bench.not_run("m8.pair_ratio.rmm", NO_RAPIDS)
    if bench.simulated:
        for variant in ALLOCATORS:
            bench.not_simulated(f"m8.pair_ratio.{variant}", NO_TIMES)
        return
    order: dict[str, Any] = {"trace": "gpt", "steps": 20, "passes": 10}
    with bench.cell("traces", "native") as theirs:
        for variant in ALLOCATORS:
            figure = f"m8.pair_ratio.{variant}"
            with bench.part(figure, ours=variant == "guaranteed"):
                with bench.cell("traces", variant) as cell:
                    told = [(cell.order(**order), theirs.order(**order)) for _ in range(4)]
                pairs = [[statistics.median(one["nanoseconds"]) for one in turn] for turn in told]
                ratio, ratios = paired_ratio(*zip(*pairs, strict=True))
                bench.figure(figure, ratios, "x", median=ratio, trace=order["trace"])


GIVEN_BACK = (
    "give_back.cached",
    "give_back.cached_visible",
    "give_back.grow",
    "give_back.live",
    "give_back.live_of_link",
    "give_back.ahead",
)


def samples(told: list[dict[str, Any]], name: str) -> list[float]:
    """Return what rounds told, without those that told nothing, in milliseconds."""
    return [one[name] * 1e3 for one in told if one.get(name) is not None]


def seen_by_others(
    bench: Bench, what: str, told: list[dict[str, Any]], *, ours: bool = True
) -> None:
    late = sum(one["visible_seconds"] is None for one in told)
    seen = f"{what}: another process sees the bytes as free"
    bench.verify(seen, late == 0, f"{late} of {len(told)} times not", ours=ours)


def unchanged(bench: Bench, what: str, told: list[dict[str, Any]], *, ours: bool = True) -> None:
    bench.verify(
        f"{what}: contents and addresses are what they were",
        bool(told) and all(one["same"] and one.get("addresses", True) for one in told),
        "; ".join(one["reason"] for one in told if one.get("reason")),
        ours=ours,
    )


def give_back(bench: Bench) -> None:
    """Give back a GiB: cached, live, live with time to copy ahead."""
    size = bench.sizes.given_back
    rounds = 2 if bench.simulated else 7
    facts = {"bytes": size}
    with bench.cell("give_back", OURS) as cell:
        with bench.part(*GIVEN_BACK[:3]):
            told = [cell.order("cached", bytes=size) for _ in range(rounds)]
            bench.figure(GIVEN_BACK[0], samples(told, "seconds"), "ms", most=1.0, **facts)
            visible = samples(told, "visible_seconds")
            seen_by_others(bench, "give back cached memory", told)
            if visible:
                bench.figure(GIVEN_BACK[1], visible, "ms", **facts)
            else:
                bench.not_run(GIVEN_BACK[1], "another process never saw it as free")
            bench.figure(
                GIVEN_BACK[2], samples(told, "grow_seconds"), "ms", after_the_limit=True, **facts
            )
        with bench.part(*GIVEN_BACK[3:5]):
            told = [cell.order("live", bytes=size) for _ in range(rounds)]
            seen_by_others(bench, "give back live memory", told)
            unchanged(bench, "give back live memory", told)
            bench.figure(GIVEN_BACK[3], samples(told, "seconds"), "ms", **facts)
            speeds = [size / one["seconds"] / bench.link["d2h"] for one in told]
            bench.figure(GIVEN_BACK[4], speeds, "x", least=0.95, link=bench.link["d2h"])
        with bench.part(GIVEN_BACK[5]):
            told = [cell.order("ahead", bytes=size) for _ in range(rounds)]
            unchanged(bench, "give back memory that may be copied ahead", told)
            ahead = min(one["ahead_bytes"] for one in told)
            if ahead < 0.9 * size:
                why = f"{ahead} of {size} bytes were copied ahead of the safe point"
                bench.not_run(GIVEN_BACK[5], why)
            else:
                bench.figure(GIVEN_BACK[5], samples(told, "seconds"), "ms", most=2.0, **facts)


EMPTY_CACHE = ("m3.empty_cache.native", "m3.empty_cache.expandable")


def empty_cache(bench: Bench) -> None:
    """M3 with PyTorch's own means."""
    size = bench.sizes.given_back
    for figure in EMPTY_CACHE:
        variant = figure.rpartition(".")[2]
        with bench.part(figure, ours=False), bench.cell("give_back", variant) as cell:
            told = [cell.order("cached", bytes=size) for _ in range(2 if bench.simulated else 7)]
            seen_by_others(bench, f"empty_cache ({variant})", told, ours=False)
            bench.figure(figure, samples(told, "seconds"), "ms", bytes=size)
    bench.not_run("m3.kvcached", NO_KVCACHED)
    bench.not_run("m3.rmm", NO_RAPIDS)
    bench.not_run("m4.kvcached", NO_KVCACHED)
    bench.not_run("m4.cudf", NO_RAPIDS)


SHRINKS = ("opportunistic", "antman", "native")


def antman_shrink(bench: Bench) -> None:
    """AntMan's figure 11a: between two steps from 17.6 GB to 1.3 GB, and back for the next."""
    step, kept = bench.sizes.antman
    for variant in SHRINKS:
        figures = [f"antman_shrink.{what}.{variant}" for what in ("shrink", "grow")]
        with bench.part(*figures, ours=variant != "native"):
            with bench.cell("antman_shrink", variant, kept=kept) as cell:
                told = [cell.order(bytes=step) for _ in range(2 if bench.simulated else 6)]
            ours = variant != "native"
            seen_by_others(bench, f"AntMan's shrink ({variant})", told, ours=ours)
            unchanged(bench, f"AntMan's shrink ({variant})", told, ours=ours)
            for figure, name, most in zip(
                figures, ("seconds", "grow_seconds"), (10.0, 50.0), strict=True
            ):
                target = {"most": most} if variant == OURS else {}
                bench.figure(figure, samples(told, name), "ms", bytes=step, kept=kept, **target)


GROUPS = (
    Group(
        "allocator",
        trace_figures(),
        (("traces", OURS), ("traces", "native")),
        allocator,
        quiet=True,
    ),
    Group("give_back", GIVEN_BACK, (("give_back", OURS),), give_back),
    Group(
        "antman_shrink",
        tuple(f"antman_shrink.{what}.{one}" for one in SHRINKS for what in ("shrink", "grow")),
        tuple(("antman_shrink", one) for one in SHRINKS),
        antman_shrink,
    ),
    Group(
        "empty_cache",
        (*EMPTY_CACHE, "m3.kvcached", "m3.rmm", "m4.kvcached", "m4.cudf"),
        (("give_back", "native"), ("give_back", "expandable")),
        empty_cache,
    ),
    Group(
        "other_allocators",
        (*(f"m8.pair_ratio.{one}" for one in ALLOCATORS), "m8.pair_ratio.rmm"),
        tuple(("traces", one) for one in ("native", *ALLOCATORS)),
        other_allocators,
        quiet=True,
    ),
)
