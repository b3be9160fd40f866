# SPDX-License-Identifier: Apache-2.0
"""Tells the node's coordinator of what class the `commensal run`s of a job of Slurm are now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from commensal._coordinator import Change, Coordinator, Refused, Unreachable
from commensal._environment import default_instance, default_runtime_dir

__all__ = ["coordinator_here", "is_of", "tell", "tell_here"]


class Node(Protocol):
    """The part of a coordinator that is asked."""

    def status(self) -> dict[str, Any]: ...
    def set(self, job: str, *, job_class: str) -> Change: ...


def coordinator_here(environ: Mapping[str, str]) -> Coordinator:
    return Coordinator(default_instance(environ), default_runtime_dir(environ))


def is_of(job: int, pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a process was started in a job of Slurm; not if it is gone."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"SLURM_JOB_ID={job}".encode() in variables


def tell(
    node: Node, slurm_job: int, wanted: str, of: Callable[[int, int], bool] = is_of
) -> Iterable[str]:
    """Change the class of what runs in a job of Slurm; yield a line for each that was asked.

    A node without a coordinator has nothing that could be told.
    """
    try:
        status = node.status()
    except (Unreachable, Refused):
        return
    for record in status["jobs"]:
        pids = [member["pid"] for member in record.get("members", [])]
        if record["job"]["class"] == wanted or not any(of(slurm_job, pid) for pid in pids):
            continue
        name = record["job"]["id"]
        try:
            change = node.set(name, job_class=wanted)
        except (Unreachable, Refused) as error:
            yield f"{name}: {error}"
            continue
        yield f"{name} is {wanted}: {change.outcome}" + (change.reason and f" ({change.reason})")


def tell_here(slurm_job: int, wanted: str) -> list[str]:
    return list(tell(coordinator_here(os.environ), slurm_job, wanted))
