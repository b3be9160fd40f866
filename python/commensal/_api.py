# SPDX-License-Identifier: Apache-2.0
"""The functions of the package `commensal`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsFloat, cast

from commensal._session import CommensalError, active_session, current_session, is_active

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from commensal._terms import GivenTerms

__all__ = [
    "LimitTicket",
    "init",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "pause",
    "resume",
    "set_compute_share",
    "set_memory_limit",
    "stats",
    "step",
]


@dataclass(frozen=True)
class LimitTicket:
    """What came of a change of the memory limit. All sizes in bytes."""

    revision: int  #: number of the change; the newest one wins
    limit_bytes: int  #: the limit that holds now
    done_bytes: int  #: given back (or, growing, brought back) so far
    deferred_bytes: int  #: still above the limit, tried again at each safe point
    reason: str  #: why bytes are deferred; empty: everything is done


def init(
    *,
    job_class: Literal["guaranteed", "opportunistic"] = "opportunistic",
    name: str | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
    gpu_memory: Literal["native", "elastic"] | None = None,
    ask_wait: float | str | None = None,
    park_idle: float | str | None = None,
    **terms: Unpack[GivenTerms],
) -> None:
    """Activate commensal in this process by hand; needs no launcher and no daemon.

    Call it after `import torch`, before the tensors that shall be managed; tensors that exist
    already stay where they are. If a node coordinator runs, the job joins it.

    Args:
        job_class: "guaranteed" (must run as if alone) or "opportunistic" (lives in the gaps).
        name: how `commensal status` calls the job. None: the script's name.
        spill_dir: folder of the spill file. None: COMMENSAL_SPILL_DIR or /var/tmp.
        gpu_memory: whose memory serves on GPUs: "native" (PyTorch's own, bound by the limit) or
            "elastic" (ours; memory in use moves, too). None: COMMENSAL_GPU_MEMORY or "native"; a
            guaranteed job's is native.
        ask_wait: how long an allocation above the limit waits for the coordinator's memory, in
            seconds or as text such as "500ms". None: COMMENSAL_ASK_WAIT or 2 s.
        park_idle: after how long without an op all memory is saved until the next one, in seconds
            or as text such as "10m". None: COMMENSAL_PARK_IDLE or never.
        terms: under which it runs, as the options of `commensal run`: memory="8GiB" or a count of
            bytes, share=0.3, law="gap", slo=1, idle_class=False, affinity=False, sm_share=0.5. One
            value of a range is its maximum, and both for a guaranteed job. None: the variable
            (docs/environment.md), else what an option that is not given stands for.

    Raises:
        CommensalError: before `import torch`, twice, or without an adaptor for this PyTorch.
        ValueError: a wrong value, named in the message.
    """
    from dataclasses import replace

    from commensal import _activation, _environment
    from commensal._terms import JobTerms, with_variables

    def path(value: str | os.PathLike[str] | None) -> Path | None:
        return None if value is None else Path(value)

    if "torch" not in sys.modules:
        raise CommensalError("commensal.init() came before 'import torch': import torch first")
    if is_active():
        line = active_session().active_line()
        raise CommensalError(
            f"commensal is active already ({line}): init() may be called once, "
            "and not under 'commensal run'"
        )
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "python"
    job_name = name or script
    base = _environment.JobSettings.from_environ(
        {k: v for k, v in os.environ.items() if k in _ENVIRONMENT_OF_INIT}
    )
    guaranteed = job_class == "guaranteed"
    serves = _environment.gpu_memory_of(os.environ, guaranteed=guaranteed)
    if gpu_memory is not None:
        serves = _environment.check_gpu_memory(gpu_memory, guaranteed=guaranteed)
    wait_ms = base.ask_wait_ms if ask_wait is None else _environment.parse_ask_wait(ask_wait)
    park_idle_ms = base.park_idle_ms
    if park_idle is not None:
        park_idle_ms = _environment.parse_park_idle(park_idle, base.memory_policy)
    asked = with_variables(terms, os.environ, guaranteed=guaranteed)
    settings = replace(
        base,
        job_id=_environment.new_job_id(job_name),
        name=job_name,
        job_class=_environment.check_job_class(job_class),
        terms=JobTerms.parse(asked, guaranteed=guaranteed),
        spill_dir=path(spill_dir) or base.spill_dir,
        gpu_memory=serves,
        ask_wait_ms=wait_ms,
        park_idle_ms=park_idle_ms,
    )
    try:
        _activation.activate(settings, _environment.Member("main"))
    except _activation.ActivationError as error:
        raise CommensalError(str(error)) from error


_ENVIRONMENT_OF_INIT = frozenset(
    {
        "COMMENSAL_BACKGROUND_RATE",
        "COMMENSAL_INSTANCE",
        "COMMENSAL_RUNTIME_DIR",
        "COMMENSAL_SAMPLE_OPS",
        "XDG_RUNTIME_DIR",
        "COMMENSAL_SPILL_DIR",
        "COMMENSAL_HOST_CAP",
        "COMMENSAL_MEMORY_POLICY",
        "COMMENSAL_ASK_WAIT",
        "COMMENSAL_PARK_IDLE",
    }
)


def set_memory_limit(limit: int | str) -> LimitTicket:
    """Set the most bytes on the device (MAX; MIN stays) while the job runs.

    Called between two ops of the training thread, it is itself a safe point: live tensors move
    under their addresses, and it returns when that is done, at the latest after 2 s with the rest
    deferred. From another thread it is applied at the next safe point. Releases the GIL.

    Args:
        limit: bytes, or text such as "4GiB".

    Raises:
        CommensalError: commensal is not active.
        ValueError: not a size, or zero.
    """
    ticket = active_session().set_memory_limit(_positive_limit(limit))
    return LimitTicket(
        revision=ticket.revision,
        limit_bytes=ticket.limit_bytes,
        done_bytes=ticket.done_bytes,
        deferred_bytes=ticket.deferred_bytes,
        reason=ticket.reason,
    )


def set_compute_share(share: float) -> None:
    """Set the most of the device's time that this job uses, 0..1 (MAX; MIN stays). 0 pauses it.

    Raises:
        CommensalError: commensal is not active.
        ValueError: not between 0 and 1.
    """
    from commensal._quantities import parse_share

    active_session().set_compute_share(parse_share(share))


def pause() -> None:
    """Close the gate until `resume`: the next op of each thread waits. Does not wait itself.

    Raises:
        CommensalError: commensal is not active.
    """
    active_session().pause()


def resume() -> None:
    """Open the gate again after `pause`.

    Raises:
        CommensalError: commensal is not active.
    """
    active_session().resume()


def step(*, loss: SupportsFloat | None = None) -> None:
    """Mark the end of a training step; from then on only these calls count steps.

    A safe point: may wait, at most 2 s, while memory moves. Does nothing where commensal is not
    active, so that a script can keep the call. Releases the GIL.

    Args:
        loss: of this step, a number or a tensor of one element, for the rule of a submitted job
            (`submit --end-when-flat`, `--park-when-flat`). It is read once in a while, by the
            first rank; without a rule not at all.
    """
    if loss is not None and os.environ.get("COMMENSAL_REPORT_LOSS"):
        from commensal._losses import note_loss

        note_loss(loss)
    session = current_session()
    if session is not None:
        from commensal import _activation

        _activation.say_that_it_trains()
        session.step()


def stats() -> dict[str, Any]:
    """Return this job's numbers as nested dicts, e.g. `stats()["memory"]["moved_bytes_total"]`.

    docs/stats.md explains each of them: bytes are ints, times seconds, shares 0..1.

    Raises:
        CommensalError: commensal is not active.
    """
    return cast("dict[str, Any]", json.loads(active_session().stats_json()))


def memory_summary() -> str:
    """Return a table of this job's memory for people: sizes, tiers, lifetimes and tags.

    Raises:
        CommensalError: commensal is not active.
    """
    from commensal._memory_map import MemoryMap
    from commensal._memory_summary import describe_memory

    where = MemoryMap.from_json(active_session().memory_map_json(with_blocks=False))
    return describe_memory(stats(), where)


def memory_stats() -> dict[str, Any]:
    """Return this job's memory as `torch.cuda.memory_stats` does, with the same names of keys.

    What PyTorch's names say of a device is said here of all tiers: `allocated_bytes` are those of
    tensors, wherever they are, `reserved_bytes` those on the device. Keys without a meaning here
    are left out. Ours stand beside them as `commensal.NAME` (docs/stats.md, `memory.NAME`) and
    `commensal.tag.TAG.NAME`.

    Raises:
        CommensalError: commensal is not active.
    """
    from commensal._memory_stats import torch_memory_stats

    return torch_memory_stats(stats()["memory"])


def memory_snapshot() -> dict[str, Any]:
    """Return where every block lies, in the format of `torch.cuda.memory._snapshot`.

    PyTorch's memory visualiser reads it (pickle it, or hand it to `torch.cuda._memory_viz`). Beside
    PyTorch's keys, segments tell `commensal_tiers`, `commensal_lifetime` and `commensal_tag`, and
    blocks `commensal_tier`.

    Raises:
        CommensalError: commensal is not active.
    """
    from commensal._memory_map import MemoryMap
    from commensal._memory_stats import torch_snapshot

    return torch_snapshot(MemoryMap.from_json(active_session().memory_map_json(with_blocks=True)))


def _positive_limit(limit: int | str) -> int:
    from commensal._quantities import parse_bytes

    count = parse_bytes(limit)
    if count == 0:
        raise ValueError(f"a memory limit of zero leaves no device memory: {limit!r}")
    return count
