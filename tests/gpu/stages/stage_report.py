# SPDX-License-Identifier: Apache-2.0
"""What one stage of `run_all.sh` measured and checked, as JSON that is whole after every line.

A stage names at its start every figure that it is to have. At its end each one has a value, or a
reason why it has none; a figure without either, a check that did not hold, and a stage without a
check are failures, here and in a dry run.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kept_parts import KeptParts, result_file

__all__ = ["TIME_WAS_UP", "StageReport", "on_simulated_driver"]

NOT_SIMULATED, NOT_RUN = "not simulated: ", "not run: "
TIME_WAS_UP = "the stage's time was up"
LATE = NOT_RUN + TIME_WAS_UP


def on_simulated_driver() -> bool:
    """Tell whether this is a dry run; `run_all.sh` says so."""
    return os.environ.get("COMMENSAL_SIMULATED_RUN") == "1"


def spread(samples: Sequence[float]) -> dict[str, float | int]:
    """Return number, extremes and percentiles 10, 50, 90 of samples, of which there must be one."""
    ordered = sorted(samples)
    cuts = statistics.quantiles(ordered, n=10, method="inclusive") if len(ordered) > 1 else []
    return {
        "n": len(ordered),
        "min": ordered[0],
        "p10": cuts[0] if cuts else ordered[0],
        "p50": statistics.median(ordered),
        "p90": cuts[-1] if cuts else ordered[0],
        "max": ordered[-1],
    }


class StageReport:
    """One stage's JSON, rewritten after each figure and check: what is cut off keeps its results.

    Not for use by several threads. Names are unique within a stage. What is recorded in a `part`
    is kept for a later run, which takes it instead of measuring it.
    """

    def __init__(self, stage: str, out: Path, figures: Sequence[str]) -> None:
        """`figures`: the names of all that this stage is to measure."""
        self.kept = KeptParts(stage, out)
        self._path = result_file(out, f"{stage}.json")
        self._expected = list(figures)
        self._told: dict[str, Any] = {
            "schema": 1,
            "stage": stage,
            "simulated": on_simulated_driver(),
            "machine": {},
            "figures": {},
            "checks": {},
            "left": [],
            "whole": False,
        }
        self._write()

    def take(self, part: str) -> dict[str, Any] | None:
        """Record what an earlier run measured of a part, and return what else it kept of it; None:
        it is still to be measured.
        """
        found = self.kept.parts.get(part)
        if found is None:
            return None
        for name, told in found["figures"].items():
            self._figure(name, told)
        self._told["checks"].update(found["checks"])
        self._write()
        print(f"  {part}: kept from an earlier run", flush=True)
        facts: dict[str, Any] = found["facts"]
        return facts

    @contextmanager
    def part(self, name: str) -> Iterator[dict[str, Any]]:
        """Keep what is recorded within, unless a check failed or the time was up; what the block
        puts into the dictionary that it gets is kept, too.
        """
        before = {kind: set(self._told[kind]) for kind in ("figures", "checks")}
        facts: dict[str, Any] = {}
        yield facts
        new = {
            kind: {name: told for name, told in self._told[kind].items() if name not in known}
            for kind, known in before.items()
        }
        late = any(told.get("reason") == LATE for told in new["figures"].values())
        if any(new.values()) and not late and all(told["held"] for told in new["checks"].values()):
            self.kept.put(name, {**new, "facts": facts})

    def leave(self, what: str) -> None:
        """Say that there was no time to measure something whole: a later run goes on with it."""
        if what not in self._told["left"]:
            self._told["left"].append(what)
            self._write()

    def machine(self, **facts: object) -> None:
        """Say what the figures were measured on: card, driver, versions, sizes."""
        self._told["machine"].update(facts)
        self._write()

    def value(
        self,
        name: str,
        samples: float | Sequence[float],
        unit: str,
        *,
        most: float | None = None,
        least: float | None = None,
        of: str = "p50",
        **facts: object,
    ) -> None:
        """Record a figure. `most`/`least` is its target, which `of` its spread is held to; a target
        that is missed is reported and fails nothing. `facts` go into the JSON beside it.
        """
        one = isinstance(samples, (int, float))
        told: dict[str, Any] = {"unit": unit, **facts}
        told |= {"value": samples} if one else spread(samples)
        judged = told["value" if one else of]
        target = {"most": most, "least": least}
        if given := {key: bound for key, bound in target.items() if bound is not None}:
            met = (most is None or judged <= most) and (least is None or judged >= least)
            told["target"] = {**given, "of": "value" if one else of, "met": met}
        self._figure(name, told)
        verdict = "" if not given else ("  met" if told["target"]["met"] else "  MISSED")
        print(f"  {name}: {judged:.4g} {unit}{verdict}", flush=True)

    def not_simulated(self, name: str, reason: str) -> None:
        """Say why a dry run cannot have a figure."""
        if not on_simulated_driver():
            raise ValueError(f"{name}: 'not simulated' is for dry runs; say not_run")
        self._without(name, NOT_SIMULATED + reason)

    def not_run(self, name: str, reason: str) -> None:
        """Say why a figure cannot be had on this machine: a peer is missing, too little memory."""
        self._without(name, NOT_RUN + reason)
        if reason == TIME_WAS_UP:
            self.leave(name)

    def check(self, name: str, held: bool, detail: object = "") -> bool:
        """Record whether something that must be so is so; `detail` says what was seen."""
        if name in self._told["checks"]:
            raise ValueError(f"check {name!r} is made twice")
        self._told["checks"][name] = {"held": bool(held), "detail": detail}
        self._write()
        print(
            f"  {'ok' if held else 'FAILED'}: {name}{f' ({detail})' if detail else ''}", flush=True
        )
        return held

    def missing(self) -> list[str]:
        """Return the names of figures that have neither a value nor a reason yet."""
        return [name for name in self._expected if name not in self._told["figures"]]

    def finish(self) -> int:
        """Write the end; return 0, or 1 after saying on stderr what failed or is missing."""
        checks = self._told["checks"]
        complaints = [f"check failed: {name}" for name, told in checks.items() if not told["held"]]
        complaints += [f"figure missing, without a reason: {name}" for name in self.missing()]
        if not checks:
            complaints.append("a stage without a check")
        self._told["whole"] = not complaints
        self._told["complaints"] = complaints
        self._write()
        for complaint in complaints:
            print(f"{self._told['stage']}: {complaint}", file=sys.stderr)
        return 1 if complaints else 0

    def _without(self, name: str, reason: str) -> None:
        self._figure(name, {"reason": reason})
        print(f"  {name}: {reason}", flush=True)

    def _figure(self, name: str, told: dict[str, Any]) -> None:
        if name not in self._expected:
            raise ValueError(f"{name!r} is not among the figures that this stage announced")
        if name in self._told["figures"]:
            raise ValueError(f"figure {name!r} is recorded twice")
        self._told["figures"][name] = told
        self._write()

    def _write(self) -> None:
        beside = self._path.with_suffix(".part")
        beside.write_text(json.dumps(self._told, indent=1) + "\n")
        beside.replace(self._path)
