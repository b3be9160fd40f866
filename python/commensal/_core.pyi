# SPDX-License-Identifier: Apache-2.0
# The runtime's session and the coordinator's control client, as Python sees them.
"""Bindings over libcommensal_runtime: they convert and forward. Users import `commensal`."""

from typing import Any, Literal

class SessionError(RuntimeError):
    """A misuse of the session (started twice, not started), in one sentence."""

class CoordinatorUnreachable(ConnectionError):
    """No coordinator answers; the message names the socket."""

class KeyProblem(ValueError):
    """Raised for a key, a key folder or a list of keys that cannot be used."""

class KeyRefused(PermissionError):
    """Raised when a coordinator does not allow this side's key."""

class CoordinatorError(RuntimeError):
    """The coordinator answered with an error, or with something that cannot be used."""

class LimitTicket:
    """What came of a change of the memory limit; sizes in bytes."""

    @property
    def revision(self) -> int: ...
    @property
    def limit_bytes(self) -> int: ...
    @property
    def done_bytes(self) -> int: ...
    @property
    def deferred_bytes(self) -> int: ...
    @property
    def reason(self) -> str: ...

class TagTicket:
    """What came of moving a tag; sizes in bytes."""

    @property
    def done_bytes(self) -> int: ...
    @property
    def deferred_bytes(self) -> int: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def reason(self) -> str: ...

class Session:
    """The one session of this process; lives until the process ends."""

    def become_rank(self, rank: int, world_size: int) -> None: ...
    def step(self) -> None: ...
    def set_memory_limit(self, limit_bytes: int) -> LimitTicket: ...
    def set_compute_share(self, share: float) -> None: ...
    def open_tag(self, name: str, *, keep: bool) -> int: ...
    def park_tag(self, name: str) -> TagTicket: ...
    def drop_tag(self, name: str) -> TagTicket: ...
    def wake_tag(self, name: str) -> TagTicket: ...
    def keep_in_place(self, address: int, size_bytes: int, why: str) -> int: ...
    def may_move(self, address: int, size_bytes: int, why: str) -> None: ...
    def memory_map_json(self, *, with_blocks: bool) -> str: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def stats_json(self) -> str: ...
    def active_line(self) -> str: ...
    def shutdown(self) -> None: ...

def start(
    *,
    job_id: str,
    name: str,
    tenant: str,
    job_class: Literal["guaranteed", "opportunistic"],
    terms: dict[str, Any],
    role: Literal["main", "rank", "helper"],
    rank: int,
    world_size: int,
    instance: str,
    runtime_dir: str,
    device: str,
    later_device: str,
    spill_dir: str,
    host_cap_bytes: int | None,
    sm_held_by: str,
    inherited_cpus: str,
    elastic_threads: bool,
    summary_file: str,
    memory_policy: str,
    ask_wait_ms: int,
    park_idle_ms: int | None,
    background_rate_bytes: int | None,
    sample_ops: bool,
    quiet: bool,
) -> Session:
    """Start the session. Raises SessionError if there is one, ValueError naming a wrong value."""

def current() -> Session | None:
    """Return the session; None before `start` and in a forked child."""

def optimizer_step_begin() -> None:
    """Tell the step tracker; does nothing without a session."""

def optimizer_step_end() -> None:
    """Tell the step tracker; may wait at the safe point. Does nothing without a session."""

def batch_awaited() -> None:
    """Tell that a fetch looks for a batch of another process; does nothing without a session."""

def batch_arrived() -> None:
    """Tell that the batch has come and is still to be unpacked. Does nothing without a session."""

def batch_handed_over() -> None:
    """Tell that a thread of the loader has a batch for the one that fetches."""

def work_begins() -> None:
    """Tell that the device gets work that no allocation shows; nothing without a session."""

def synchronised() -> None:
    """Tell that this thread has waited for its GPU; does nothing without a session."""

def checkpoint_begin() -> bool:
    """Tell that a checkpoint is written; return whether `checkpoint_end` must follow."""

def checkpoint_end() -> None:
    """Tell that it has been written."""

LAWS: tuple[str, ...]

def terms() -> list[tuple[str, str, str, str, str, str, float]]:
    """Return the rows of coordinator/wire/terms.h (`commensal._terms.Row`)."""

def control_frame(socket_path: str, frame: str, timeout_ms: int) -> str:
    """Ask a coordinator by one frame, a JSON object; return its answer's."""

def remote_frame(address: str, folder: str, key: str, frame: str, timeout_ms: int) -> str:
    """Ask a coordinator on another machine with keys of a folder; return its answer's frame.

    @raises KeyProblem, KeyRefused, CoordinatorUnreachable.
    """

def check_address(address: str) -> None:
    """Check an address of the form tcp://HOST:PORT. @raises KeyProblem."""

def default_key_folder() -> str:
    """Return the key folder of the environment; @raises KeyProblem without a home."""

def keys_create(folder: str, name: str) -> str:
    """Make a pair of keys; return the public one. @raises KeyProblem."""

def keys_allow(folder: str, name: str, key: str, role: str, tenants: list[str]) -> None:
    """Allow a key. @raises KeyProblem."""

def keys_revoke(folder: str, name: str) -> None:
    """Revoke the key of a name. @raises KeyProblem."""

def keys_list(
    folder: str,
) -> list[tuple[str, str, str, list[str], int, int | None]]:
    """Return (name, key, role, tenants, created_ms, revoked_ms) of each key; @raises KeyProblem."""

def control_status(socket_path: str, job: str, timeout_ms: int) -> str:
    """Ask a coordinator; return the JSON of `commensal status --json` (docs/stats.md)."""

def control_map(socket_path: str, job: str, pid: int | None, timeout_ms: int) -> str:
    """Ask a coordinator where a process's memory lies; return JSON (docs/stats.md)."""

def control_explain(
    socket_path: str, job: str, seconds: float, series: bool, timeout_ms: int
) -> str:
    """Ask a coordinator what happened to a job; return JSON (docs/stats.md, "explain")."""

def control_set(
    socket_path: str,
    job: str,
    timeout_ms: int,
    *,
    terms: dict[str, Any],
    paused: bool | None,
    job_class: str | None,
) -> tuple[str, int, str, str]:
    """Ask for a change; return job id, revision, outcome and reason."""

class JobPage:
    """The page on which a process publishes what its job does, read-only (wire/pages.h).

    Each word is valid alone; two may not belong together. Raises ValueError: the file is none.
    """

    def __init__(self, path: str) -> None: ...
    @property
    def activity(self) -> int: ...
    @property
    def wait_phase(self) -> int: ...
    @property
    def device_works(self) -> bool:
        """Whether a GPU still works on what it got before the present wait."""
    @property
    def step_number(self) -> int: ...
    @property
    def device_bytes(self) -> int: ...

ACTIVITIES: tuple[int, int, int, int]
"""What `JobPage.activity` is for: unknown, busy, waiting, paused."""

GAP_PHASES: tuple[str, ...]
"""What `JobPage.wait_phase` is for; phases of gaps (docs/stats.md)."""
JOB_PAGE_NAME: str
"""The name of a page's memfd."""

def probe_spill_dir(path: str) -> str:
    """Return why the folder cannot take a spill file; empty: it can."""

def spill_dir_warning(path: str) -> str:
    """Return what to expect of a spill file there (memory, the network); empty: nothing special."""

def probe_thread_stops() -> str:
    """Return why a thread that blocks signals would keep memory in place; empty: it would not."""
