# SPDX-License-Identifier: Apache-2.0
"""What a policy of the cluster would decide about a state that was written down."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from commensal._quantities import format_seconds
from commensal.simulation.program import BadInput, failure, find_simulator, listed

__all__ = ["plan_of", "show"]

WIDTH = 140  # of a table that goes to a file


def plan_of(state: Path, policy: str, options: Sequence[str]) -> dict[str, Any]:
    """Return what the policy decides (docs/policies.md, "Replay").

    Raises BadInput for a state, policy or option that cannot be used.
    """
    program = find_simulator()
    listed(program).check("policy", [policy])
    if not state.is_file():
        what = "not a regular file: write the state to one" if state.exists() else "no such file"
        raise BadInput(f"{state}: {what}")
    done = subprocess.run(
        [
            *(program, "--state", state, "--policy", policy),
            *(word for option in options for word in ("--option", option)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise failure(done.returncode, done.stderr)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def show(plan: dict[str, Any]) -> None:
    """Print a plan for people."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    state = plan["state"]
    console.print(
        f"{plan['policy']} on {state['file']}: {state['running']} jobs run, {state['queued']} "
        f"wait, {state['gpus']} devices on {state['nodes']} nodes",
        soft_wrap=True,
    )
    for sentence in plan["assumed"]:
        console.print(f"  assumed: {sentence}", soft_wrap=True)
    if decisions := plan["plan"]["decisions"]:
        console.print(_table(decisions))
    else:
        console.print("  it changes nothing")
    for what, names in (("go on", plan["goes_on"]), ("wait on", plan["waits"])):
        if names:
            console.print(f"  {what}: {', '.join(names)}", soft_wrap=True)
    for entry in plan["never_fits"]:
        console.print(f"  {entry['job']} never fits: {entry['reason']}", soft_wrap=True)
    if (wake := plan["plan"]["wake_seconds"]) is not None:
        console.print(f"  asks to be asked again in {format_seconds(wake)}")


def _table(decisions: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold")
    for name in ("job", "action", "as", "where", "reason"):
        table.add_column(name, overflow="fold")
    for decision in decisions:
        table.add_row(
            decision["job"],
            decision["action"],
            decision.get("class", ""),
            _where(decision["placement"]),
            decision["reason"],
        )
    return table


def _where(placement: Sequence[dict[str, Any]]) -> str:
    """Return nodes with their devices: n0: a, b (50 %); n1: a."""
    nodes: dict[str, list[str]] = {}
    for part in placement:
        share = part.get("share", 1)
        text = part.get("device", "") + (f" ({100 * share:g} %)" if share < 1 else "")
        nodes.setdefault(part["node"], []).append(text)
    return "; ".join(f"{node}: {', '.join(devices)}" for node, devices in nodes.items())
