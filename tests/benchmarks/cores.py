# SPDX-License-Identifier: Apache-2.0
"""What it is worth that an opportunistic job keeps to the cores that a guaranteed one leaves.

The guaranteed job computes with one thread, its neighbour with one for each core.
"""

from __future__ import annotations

from harness import Bar, Bench, Result
from pairs import Pair, Way, alone_rate, figures, one, sharing, work

PAIR = Pair("mlp (one thread) + transformer", "mlp", 0.0, "char_transformer", guaranteed_threads=1)
SETTLE_S = 25.0  # longer than the guaranteed job is watched before cores are divided
WITHOUT, WITH = "no affinity", "affinity"
WAYS = (
    Way(WITHOUT, commensal=True, options=("--no-affinity",)),
    Way(WITH, commensal=True),
    Way("affinity, elastic threads", commensal=True, options=("--elastic-threads",)),
    Way(f"no idle class, {WITHOUT}", commensal=True, options=("--no-idle-class", "--no-affinity")),
    Way(f"no idle class, {WITH}", commensal=True, options=("--no-idle-class",)),
)


def run(*, quick: bool) -> Result:
    """Measure each way."""
    result = Result(
        "cores",
        "Cores that a guaranteed job leaves, kept to and not",
        ["way to share", "slowdown", "95 % interval", "p99", "harvest"],
    )
    bench = Bench(result, quick=quick)
    rounds, seconds = (1, 3.0) if quick else (5, 10.0)
    rate = bench.window(
        f"{PAIR.opportunistic} alone", lambda: alone_rate(PAIR.opportunistic, seconds)
    )
    for way in WAYS[:2] if quick else WAYS:
        with sharing(PAIR, way, 0.0) as (guaranteed, other):
            work(guaranteed, other, 3.0 if quick else SETTLE_S)
            windows = [
                bench.window(way.name, lambda: one(guaranteed, other, seconds))
                for _ in range(rounds)
            ]
        found = figures(windows, rate, tail=False)
        low, high = found["slowdown_interval"]
        result.figures[way.name] = found
        result.rows.append(
            (
                way.name,
                f"{found['slowdown']:+.1%}",
                f"{low:+.1%} to {high:+.1%}",
                f"{found['p99']:+.1%}",
                f"{found['harvest']:.1%}",
            )
        )
    without, with_it = result.figures[WITHOUT], result.figures[WITH]
    result.bars += [
        Bar("slowdown more", with_it["slowdown"] - without["slowdown"], most=0.0),
        Bar("harvest", with_it["harvest"] / max(1e-9, without["harvest"]), least=1.0),
    ]
    return result
