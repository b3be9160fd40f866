# SPDX-License-Identifier: Apache-2.0
"""The job as environment variables: written by `commensal run`, read at the end of `import torch`.

docs/environment.md lists the variables.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from commensal._quantities import parse_bytes, parse_duration_ms
from commensal._terms import JobTerms, parse_switch

__all__ = [
    "JobClass",
    "JobSettings",
    "Launch",
    "Member",
    "check_gpu_memory",
    "check_instance",
    "check_job_class",
    "check_memory_policy",
    "default_instance",
    "default_runtime_dir",
    "gpu_memory_of",
    "member_of",
    "naming",
    "new_job_id",
    "parse_ask_wait",
    "parse_background_rate",
    "parse_park_idle",
    "told_to_run",
]

JobClass = Literal["guaranteed", "opportunistic"]
GPU_MEMORY = ("native", "elastic")
MEMORY_POLICIES = ("elastic", "antman")
SHORTEST_PARK_IDLE_MS = 1000
LONGEST_ASK_WAIT_MS = 3_600_000

_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"}
)
# Processes of pools, and tools of PyTorch's compiler: they work for the process that started them.
# Loky's are started as a module, those of multiprocessing with `-c`, the compiler's as a file, and
# with `-c` to see whether what it has compiled can be loaded.
_POOL_MODULES = ("joblib.externals.loky.", "loky.")
_POOL_CODE = ("from multiprocessing.", "from joblib.externals.loky.", "from loky.")
_COMPILERS_CODE = "\nimport torch\nfrom ctypes import cdll\n"
_COMPILERS_FOLDER = "/torch/_inductor/"


@dataclass(frozen=True)
class Launch:
    """The process that `commensal run` became, and when (time.monotonic())."""

    pid: int
    at_seconds: float

    @classmethod
    def parse(cls, text: str) -> Launch:
        """Read PID:SECONDS. @raises ValueError naming the value."""
        pid, _, seconds = text.partition(":")
        try:
            return cls(int(pid), float(seconds))
        except ValueError:
            raise ValueError(f"not PID:SECONDS: {text!r}") from None


@dataclass(frozen=True)
class JobSettings:
    """What a job was started with."""

    job_id: str
    name: str
    job_class: JobClass
    tenant: str = "default"
    terms: JobTerms = field(default_factory=JobTerms)
    elastic_threads: bool = False
    instance: str = "default"
    runtime_dir: Path | None = None  # None: do not connect
    spill_dir: Path | None = None
    host_cap_bytes: int | None = None
    summary_file: Path | None = None
    launch: Launch | None = None  # None: nobody waits for a last line
    quiet: bool = False
    gpu_memory: str = "native"
    memory_policy: str = "elastic"
    ask_wait_ms: int = 2000
    park_idle_ms: int | None = None  # None: an idle job is not parked
    background_rate_bytes: int | None = 512 << 20  # a second; 0: no bound, None: off
    sample_ops: bool = True  # of a guaranteed job, in short windows

    def to_environ(self) -> dict[str, str]:
        """Return the variables of docs/environment.md; those that are unset are left out."""
        variables = self.terms.to_environ() | {
            "COMMENSAL_RUN": "1",
            "COMMENSAL_JOB_ID": self.job_id,
            "COMMENSAL_JOB_NAME": self.name,
            "COMMENSAL_TENANT": self.tenant,
            "COMMENSAL_CLASS": self.job_class,
            "COMMENSAL_ELASTIC_THREADS": "1" if self.elastic_threads else "0",
            "COMMENSAL_INSTANCE": self.instance,
            "COMMENSAL_QUIET": "1" if self.quiet else "0",
            "COMMENSAL_GPU_MEMORY": self.gpu_memory,
            "COMMENSAL_MEMORY_POLICY": self.memory_policy,
            "COMMENSAL_ASK_WAIT": f"{self.ask_wait_ms}ms",
            "COMMENSAL_BACKGROUND_RATE": _rate_text(self.background_rate_bytes),
            "COMMENSAL_SAMPLE_OPS": "1" if self.sample_ops else "0",
        }
        optional = {
            "COMMENSAL_RUNTIME_DIR": self.runtime_dir,
            "COMMENSAL_SPILL_DIR": self.spill_dir,
            "COMMENSAL_HOST_CAP": self.host_cap_bytes,
            "COMMENSAL_SUMMARY_FILE": self.summary_file,
            "COMMENSAL_PARK_IDLE": self.park_idle_ms and f"{self.park_idle_ms}ms",
            "COMMENSAL_LAUNCH": self.launch and f"{self.launch.pid}:{self.launch.at_seconds!r}",
        }
        variables.update({key: str(value) for key, value in optional.items() if value is not None})
        return variables

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> JobSettings:
        """Read the variables. @raises ValueError naming the variable and its value."""

        def path(variable: str) -> Path | None:
            return Path(environ[variable]) if environ.get(variable) else None

        with naming("COMMENSAL_CLASS"):
            job_class = check_job_class(environ.get("COMMENSAL_CLASS", "opportunistic"))
        guaranteed = job_class == "guaranteed"
        terms = JobTerms.from_environ(
            environ, guaranteed=guaranteed, naming=lambda row: naming(row.variable)
        )
        host_cap = None
        with naming("COMMENSAL_HOST_CAP"):
            if text := environ.get("COMMENSAL_HOST_CAP"):
                host_cap = parse_bytes(text)
        with naming("COMMENSAL_GPU_MEMORY"):
            gpu_memory = gpu_memory_of(environ, guaranteed=guaranteed)
        with naming("COMMENSAL_MEMORY_POLICY"):
            policy = check_memory_policy(environ.get("COMMENSAL_MEMORY_POLICY") or "elastic")
        with naming("COMMENSAL_ASK_WAIT"):
            text = environ.get("COMMENSAL_ASK_WAIT")
            ask_wait_ms = parse_ask_wait(text) if text else cls.ask_wait_ms
        with naming("COMMENSAL_PARK_IDLE"):
            text = environ.get("COMMENSAL_PARK_IDLE")
            park_idle_ms = parse_park_idle(text, policy) if text else None
        with naming("COMMENSAL_BACKGROUND_RATE"):
            text = environ.get("COMMENSAL_BACKGROUND_RATE")
            rate = parse_background_rate(text) if text else cls.background_rate_bytes
        with naming("COMMENSAL_SAMPLE_OPS"):
            sample_ops = parse_switch(environ.get("COMMENSAL_SAMPLE_OPS") or "1")
        with naming("COMMENSAL_INSTANCE"):
            instance = default_instance(environ)
        with naming("COMMENSAL_LAUNCH"):
            text = environ.get("COMMENSAL_LAUNCH")
            launch = Launch.parse(text) if text else None
        name = environ.get("COMMENSAL_JOB_NAME") or "job"
        return cls(
            job_id=environ.get("COMMENSAL_JOB_ID") or new_job_id(name),
            name=name,
            job_class=job_class,
            tenant=environ.get("COMMENSAL_TENANT") or "default",
            terms=terms,
            elastic_threads=environ.get("COMMENSAL_ELASTIC_THREADS", "0") == "1",
            instance=instance,
            runtime_dir=default_runtime_dir(environ),
            spill_dir=path("COMMENSAL_SPILL_DIR"),
            host_cap_bytes=host_cap,
            summary_file=path("COMMENSAL_SUMMARY_FILE"),
            launch=launch,
            quiet=environ.get("COMMENSAL_QUIET", "0") == "1",
            gpu_memory=gpu_memory,
            memory_policy=policy,
            ask_wait_ms=ask_wait_ms,
            park_idle_ms=park_idle_ms,
            background_rate_bytes=rate,
            sample_ops=sample_ops,
        )


@contextmanager
def naming(variable: str) -> Iterator[None]:
    """Put the name of a variable before the message of a ValueError raised inside."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def check_job_class(text: str) -> JobClass:
    """Return `text` as a class. @raises ValueError naming the value."""
    if text == "guaranteed":
        return "guaranteed"
    if text == "opportunistic":
        return "opportunistic"
    raise ValueError(f"neither guaranteed nor opportunistic: {text!r}")


def check_gpu_memory(text: str, *, guaranteed: bool) -> str:
    """Return whose memory serves a job on GPUs. @raises ValueError naming the value."""
    if text not in GPU_MEMORY:
        raise ValueError(f"neither native nor elastic: {text!r}")
    if guaranteed and text != "native":
        raise ValueError(
            f"a guaranteed job keeps PyTorch's own allocator: its memory does not move: {text!r}"
        )
    return text


def gpu_memory_of(environ: Mapping[str, str], *, guaranteed: bool) -> str:
    """Return what the environment asks for, which is for opportunistic jobs. @raises ValueError."""
    text = check_gpu_memory(environ.get("COMMENSAL_GPU_MEMORY") or "native", guaranteed=False)
    return "native" if guaranteed else text


def check_memory_policy(text: str) -> str:
    """Return the name of a memory policy. @raises ValueError naming the value."""
    if text not in MEMORY_POLICIES:
        raise ValueError(f"not a memory policy: {text!r} (elastic or antman)")
    return text


def parse_ask_wait(text: str | float) -> int:
    """Return how long an allocation waits for memory, in ms. @raises ValueError."""
    wait = parse_duration_ms(text)
    if wait > LONGEST_ASK_WAIT_MS:
        raise ValueError(f"a wait for memory is at most an hour: {text!r}")
    return wait


def parse_park_idle(text: str | float, memory_policy: str) -> int:
    """Return after how long an idle job is parked, in ms. @raises ValueError."""
    after = parse_duration_ms(text)
    if after < SHORTEST_PARK_IDLE_MS:
        raise ValueError(f"a job is idle after a second at the earliest: {text!r}")
    if memory_policy == "antman":
        raise ValueError(
            f"parking moves live memory, which the memory policy antman does not: {text!r}"
        )
    return after


def parse_background_rate(text: str) -> int | None:
    """Return bytes a second, 0 for no bound, None for off. @raises ValueError."""
    return None if text == "off" else parse_bytes(text)


def _rate_text(rate: int | None) -> str:
    return "off" if rate is None else str(rate)


def check_instance(text: str) -> str:
    """Return the name of a coordinator, which becomes a file name. @raises ValueError."""
    if not re.fullmatch(r"(?!\.)[A-Za-z0-9._-]{1,64}", text):
        raise ValueError(
            f"not an instance name (1 to 64 of letters, digits, '.', '_', '-'): {text!r}"
        )
    return text


def default_instance(environ: Mapping[str, str]) -> str:
    """Return the coordinator's name that this environment asks for. @raises ValueError."""
    return check_instance(environ.get("COMMENSAL_INSTANCE") or "default")


def default_runtime_dir(environ: Mapping[str, str]) -> Path:
    """Return the folder of the coordinator's sockets; does not create it."""
    if chosen := environ.get("COMMENSAL_RUNTIME_DIR"):
        return Path(chosen)
    if session := environ.get("XDG_RUNTIME_DIR"):
        return Path(session) / "commensal"
    return Path(f"/tmp/commensal-{os.geteuid()}")


def new_job_id(name: str) -> str:
    """Make an id that no other job has: at most 32 characters, readable."""
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:23] or "job"
    return f"{word}-{secrets.token_hex(4)}"


@dataclass(frozen=True)
class Member:
    """How a process belongs to its job."""

    role: Literal["main", "rank", "helper"]
    rank: int = 0
    world_size: int = 1


def member_of(environ: Mapping[str, str], pid: int, command_line: Sequence[str]) -> Member:
    """Tell what a process is to its job.

    COMMENSAL_PRIMARY_PID, _RANK and _TRAINS are left by the nearest ancestor that activated. A
    process of another rank than that ancestor was started by a launcher. One of the same rank is
    its helper (compile worker, spawned data loader), unless it is a program that was started before
    the ancestor made a step: then the ancestor is a launcher, and the program is what trains.
    torchrun's agent only waits for its ranks, so it is a helper too and leaves nothing behind.

    @raises ValueError if RANK or WORLD_SIZE is not a number.
    """
    rank_text = environ.get("RANK", "")
    how, what = told_to_run(command_line)
    primary = environ.get("COMMENSAL_PRIMARY_PID", "")
    if primary and primary != str(pid) and rank_text == environ.get("COMMENSAL_PRIMARY_RANK", ""):
        idle = environ.get("COMMENSAL_PRIMARY_TRAINS", "1") == "0"
        if rank_text or not idle or _is_of_a_pool(how, what):
            return Member("helper", *_rank_and_size(environ))
    if rank_text:
        return Member("rank", *_rank_and_size(environ))
    return Member("helper" if _is_launcher(how, what) else "main")


def _rank_and_size(environ: Mapping[str, str]) -> tuple[int, int]:
    try:
        rank, size = int(environ.get("RANK") or 0), int(environ.get("WORLD_SIZE") or 1)
    except ValueError:
        raise ValueError(
            f"RANK and WORLD_SIZE are not numbers: {environ.get('RANK')!r}, "
            f"{environ.get('WORLD_SIZE')!r}"
        ) from None
    return rank, max(size, 1)


def told_to_run(command_line: Sequence[str]) -> tuple[str, str]:
    """Return what Python was told to run (sys.orig_argv), and how: "-m", "-c" or "" for a file."""
    rest = iter(command_line[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            return "", argument
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(rest, "")
            continue
        for place, letter in enumerate(argument[1:], start=2):
            value = argument[place:]
            if letter in "mc":
                return f"-{letter}", value or next(rest, "")
            if letter in "WX":
                if not value:
                    next(rest, "")
                break
    return "", ""


def _is_launcher(how: str, what: str) -> bool:
    """Tell torchrun's agent."""
    return what in _LAUNCHER_MODULES if how == "-m" else not how and Path(what).name == "torchrun"


def _is_of_a_pool(how: str, what: str) -> bool:
    """Tell a process of a pool, which works for the process that started it."""
    if how == "-m":
        return what.startswith(_POOL_MODULES)
    if how == "-c":
        return what.startswith((*_POOL_CODE, _COMPILERS_CODE))
    return _COMPILERS_FOLDER in what
