# SPDX-License-Identifier: Apache-2.0
"""What the groups of the stage `figures` share: sizes, processes in time, and where figures go."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cell_runs import PEERS, Cell, CellFailed, MissingPeer
from stage_report import TIME_WAS_UP, StageReport, on_simulated_driver

__all__ = ["GIB", "Bench", "Group", "Sizes", "paired_ratio"]

MIB = 1 << 20
GIB = 1 << 30
NO_TIMES = "copies take no time on this driver, and kernels do nothing"
ON_A_CARD = "what others do is measured on a card"
MOST_CELL_SECONDS = 75.0
MOST_DRY_SECONDS = 300.0  # a busy machine without a card
# In a dry run others are started where their failure shows that a check can fail, and no more.
CARD_ONLY = (*PEERS, "expandable", "vllm")
CARD_ONLY_CELLS = (
    *(("give_back", "native"), ("antman_shrink", "native"), ("traces", "guaranteed")),
    ("checkpoint", "native"),
)


@dataclass(frozen=True)
class Sizes:
    """Bytes, as parts of what is free on the card at the start and of the host's memory."""

    free: int
    host: int

    @property
    def kept(self) -> int:
        """The most whose content is moved: a quarter of the card, a third of the host's memory."""
        return min(self.free // 4, self.host // 3, 64 * GIB) // (2 * MIB) * (2 * MIB)

    @property
    def parked(self) -> int:
        return min(32 * GIB, self.kept)

    @property
    def given_back(self) -> int:
        return min(GIB, self.free // 16) // (2 * MIB) * (2 * MIB)

    @property
    def antman(self) -> tuple[int, int]:
        """AntMan's ResNet-50 during a step and between two."""
        step = min(17_600_000_000, self.kept)
        return step, int(step * 1.3 / 17.6) // (2 * MIB) * (2 * MIB)

    @property
    def adam(self) -> int:
        return int(self.free * 0.45) // (2 * MIB) * (2 * MIB)


@dataclass(frozen=True)
class Group:
    """Figures that are measured together. `cells`: what it needs, as name and variant."""

    name: str
    figures: tuple[str, ...]
    cells: tuple[tuple[str, str], ...]
    measure: Callable[[Bench], None]
    quiet: bool = False  # the next group's processes may not start beside it


class Bench:
    """Starts cells ahead of their use, and records what comes of them."""

    def __init__(self, report: StageReport, folder: Path, deadline: float) -> None:
        self.report = report
        self.sizes = Sizes(0, 0)
        self.link: dict[str, float] = {}  # bytes a second, as this run's card cell measured
        self.ours: dict[str, tuple[float, float]] = {}  # what later groups are held to
        self.watch = ""
        self._folder = folder
        self._deadline = deadline
        self._early: dict[tuple[str, str], Cell] = {}
        self._recorded: set[str] = set()

    @property
    def simulated(self) -> bool:
        return on_simulated_driver()

    def skips(self, name: str, variant: str) -> bool:
        """Tell whether a dry run has no such cell."""
        return self.simulated and (variant in CARD_ONLY or (name, variant) in CARD_ONLY_CELLS)

    def out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def prepare(self, group: Group, *, beside: bool = False) -> None:
        """Start the processes of a group; `beside` another one not those that others heed."""
        for key in group.cells:
            heeded = beside and key[1] == "guaranteed"
            if key not in self._early and not heeded and not self.skips(*key):
                self._early[key] = Cell(*key, self._folder)

    @contextmanager
    def cell(self, name: str, variant: str, **settings: object) -> Iterator[Cell]:
        """Run a cell for as long as the block lasts.

        Raises:
            MissingPeer: it is not for this driver.
            CellFailed: it failed.
        """
        if self.skips(name, variant):
            raise MissingPeer(ON_A_CARD)
        cell = self._early.pop((name, variant), None) or Cell(name, variant, self._folder)
        with cell:
            most = MOST_DRY_SECONDS if self.simulated else MOST_CELL_SECONDS
            end = min(self._deadline, time.monotonic() + most)
            yield cell.make(end, watch=self.watch, **settings)

    def close(self) -> None:
        for cell in self._early.values():
            cell.close()
        self._early = {}

    @contextmanager
    def part(self, *figures: str, ours: bool = True) -> Iterator[None]:
        """Measure some figures: where a cell fails, those that have no value get its reason."""
        try:
            yield
        except MissingPeer as reason:
            for figure in self._left(figures):
                if self.simulated:
                    self.report.not_simulated(figure, str(reason))
                else:
                    self.report.not_run(figure, str(reason))
        except CellFailed as reason:
            late = self.out_of_time()
            self.without(figures, TIME_WAS_UP if late else str(reason))
            if ours and not late:
                self.report.check(f"{figures[0]}: was measured", False, str(reason))

        except (ArithmeticError, LookupError, TypeError, ValueError) as wrong:
            self.without(figures, f"what was told makes no sense: {wrong!r}")
            self.report.check(f"{figures[0]}: was measured", False, repr(wrong))

    def take(self, group: Group) -> bool:
        """Take what an earlier run measured of a group; tell whether it is there."""
        facts = self.report.take(group.name)
        if facts is None:
            return False
        self._recorded |= set(group.figures)
        self.ours |= {name: (out, back) for name, (out, back) in facts["ours"].items()}
        return True

    def run(self, group: Group) -> None:
        """Measure a group; see that none of its figures is left without a word."""
        if self.out_of_time():
            self.without(group.figures, TIME_WAS_UP)
            return
        with self.report.part(group.name) as facts:
            with self.part(*group.figures):
                group.measure(self)
            facts["ours"] = dict(self.ours)

    def figure(
        self, name: str, samples: float | Sequence[float], unit: str, **details: Any
    ) -> None:
        """Record what time has a part in; a dry run has no such figure."""
        self._recorded.add(name)
        if self.simulated:
            self.report.not_simulated(name, NO_TIMES)
        else:
            self.report.value(name, samples, unit, **details)

    def count(self, name: str, number: float, unit: str, **details: Any) -> None:
        """Record what means the same on any driver."""
        self._recorded.add(name)
        self.report.value(name, number, unit, **details)

    def not_run(self, name: str, reason: str) -> None:
        self._recorded.add(name)
        self.report.not_run(name, reason)

    def not_simulated(self, name: str, reason: str) -> None:
        self._recorded.add(name)
        self.report.not_simulated(name, reason)

    def check(self, name: str, held: bool, detail: object = "") -> bool:
        return self.report.check(name, held, detail)

    def verify(self, name: str, held: bool, detail: object, *, ours: bool) -> None:
        """Check something; where others do not keep to it that is a reason and no failure.

        Raises:
            CellFailed: it is not so, and not ours.
        """
        if not ours and not held:
            raise CellFailed(f"not so: {name} ({detail})")
        self.check(name, held, detail)

    def without(self, figures: Sequence[str], reason: str) -> None:
        """Give those of the figures a reason that have neither a value nor one."""
        for figure in self._left(figures):
            self.report.not_run(figure, reason)

    def _left(self, figures: Sequence[str]) -> list[str]:
        left = [figure for figure in figures if figure not in self._recorded]
        self._recorded |= set(left)
        return left


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, list[float]]:
    """Return the median of the ratios of turns that were taken one after the other, and all."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return statistics.median(ratios), ratios
