# SPDX-License-Identifier: Apache-2.0
"""Trying policies of the cluster on a trace: several runs of commensal-simulate, and a report."""

from __future__ import annotations

from commensal.simulation.program import (
    BadInput,
    Listed,
    SimulatorFailed,
    find_simulator,
    generate,
    listed,
)
from commensal.simulation.runs import Interrupted, Runs

__all__ = [
    "BadInput",
    "Interrupted",
    "Listed",
    "Runs",
    "SimulatorFailed",
    "find_simulator",
    "generate",
    "listed",
]
