# SPDX-License-Identifier: Apache-2.0
"""Which jobs share a GPU in the stages of pairs, in which modes, and what is told of them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

EQUAL = "equal"  # two windows without the other job: A/A
OURS = "gap"
KERNELS_DO_NOTHING = "kernels do nothing on this driver, and its streams do not compete"


@dataclass(frozen=True)
class Mode:
    """A law. `settle`: seconds that it is given to learn; `knows_oracle`: its share is at most what
    the guaranteed job leaves: nobody could choose it better beforehand.
    """

    law: str
    settle: float
    knows_oracle: bool = False


MODES = {
    # Nobody waits: the driver's own time slices.
    "default": Mode("open", 0.5),
    OURS: Mode("gap", 6.0),
    # AntMan's executor: sleeps in proportion to its own run time.
    "duty_cycle": Mode("duty_cycle", 1.0, knows_oracle=True),
    # TGS with its published constants: 25 s to learn the reference, 5 s a change of the rate.
    "rate_aimd": Mode("rate_aimd", 35.0),
    # Gemini's (and HAMi's) tokens, with its published windows.
    "token_window": Mode("token_window", 3.0, knows_oracle=True),
    # AntMan's whole loop, which changes the share every 10 s.
    "antman": Mode("antman", 35.0),
}
RIVALS = ("duty_cycle", "rate_aimd", "token_window", "antman")
# Generous guesses of what the jobs need, in GiB.
MEMORY_GIB = {"G1": 16.0, "G3": 30.0, "O1": 9.0, "O2": 10.0, "O3": 2.0, "O4": 16.0}
PAIRS = {"e1": "G1:0.7+O1", "e2": "G3+O2", "e3": "G1:0.7+O3"}
FIRST = ("default", OURS, "duty_cycle", "rate_aimd")
OF_MODE = ("slowdown", "slowdown_p99", "harvest", "efficiency")
# Lengths of ops in the measurement of reaction, in ms; the target is for those up to 1 ms.
SHORT_OPS = (0.1, 0.8)
LONG_OP = 11.0  # the product of O3
APART = ("reaction.", "sm_clock", "power", "temperature")  # figures that are no ratios of windows


@dataclass(frozen=True)
class Jobs:
    """A pair of jobs; `busy`: the share of the time that the guaranteed one is to use, if given."""

    name: str
    guaranteed: str
    opportunistic: str
    busy: float | None

    @classmethod
    def parse(cls, text: str) -> Jobs:
        found = re.fullmatch(r"(G[13])(?::(0\.\d+))?\+(O[1-4])", PAIRS.get(text, text))
        if found is None:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no pair: {', '.join(PAIRS)}, or G1:0.7+O1 (G1, G3; O1 to O4)"
            )
        guaranteed, busy, other = found.groups()
        name = text if text in PAIRS else re.sub(r"[^\w.]+", "-", text)
        return cls(name, guaranteed, other, float(busy) if busy else None)

    @property
    def reaction_ops(self) -> tuple[float, ...]:
        return (*SHORT_OPS, LONG_OP) if self.opportunistic == "O3" else SHORT_OPS


def figures_of(jobs: Jobs, modes: Sequence[str]) -> list[str]:
    """Return the names of all figures of a stage."""
    names = [f"{mode}.{figure}" for mode in modes for figure in OF_MODE]
    names += ["equal.slowdown", "busy_share", "oracle", "sm_clock", "power", "temperature"]
    for rival in modes:
        if rival in RIVALS and OURS in modes:
            names += [f"{OURS}.slowdown_less.{rival}", f"{OURS}.harvest_over.{rival}"]
    for length in jobs.reaction_ops:
        names += [f"reaction.close_to_quiet.{length}ms", f"reaction.open_to_first.{length}ms"]
    return names
