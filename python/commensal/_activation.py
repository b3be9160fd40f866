# SPDX-License-Identifier: Apache-2.0
"""What turns commensal on inside a training process.

`autoload` is an entry point of the group `torch.backends`: PyTorch calls it in the last lines of
`import torch`, in every process of every program. Without COMMENSAL_RUN=1 it returns at once. It
never raises: an exception would make `import torch` itself fail.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from commensal._say import say

if TYPE_CHECKING:
    from commensal import _core
    from commensal._cuda import GpuMemory
    from commensal._environment import JobClass, JobSettings, Member

__all__ = [
    "ActivationError",
    "activate",
    "adaptor_versions",
    "autoload",
    "find_adaptor",
    "installed_adaptor",
]

LIBRARIES = Path(__file__).parent / "lib"
_ADAPTOR_NAME = re.compile(r"libcommensal_torch-(\d+\.\d+)\.so")
_TRAINS = "COMMENSAL_PRIMARY_TRAINS"  # for processes that this one starts: has it made a step?
_started = threading.Lock()
_adaptor: list[ctypes.CDLL] = []  # what manages this process, once it does
_hooks: list[object] = []  # on optimizers
_before_first_step: list[Callable[[], None]] = []  # of a helper that has not been seen to train


class ActivationError(RuntimeError):
    """Says in one sentence why commensal is not active; the script goes on without it."""


def autoload() -> None:
    """Activate what `commensal run` asked for. Never raises."""
    if os.environ.get("COMMENSAL_RUN") != "1":
        return
    try:
        _autoload()
    except KeyboardInterrupt:
        raise  # the user ends the program, as during any import
    except BaseException as error:  # SystemExit included: the script must train
        detail = str(error) if isinstance(error, (ActivationError, ValueError)) else repr(error)
        detail = " ".join(detail.split())
        say(f"not active, the script runs unmanaged: {detail}")
        _leave_mark("failed", detail)


def _autoload() -> None:
    from commensal._environment import JobSettings, member_of

    member = member_of(os.environ, os.getpid(), sys.orig_argv)
    settings = JobSettings.from_environ(os.environ)
    if settings.launch is not None and settings.launch.pid == os.getpid():
        # Before the session's own, so that it runs after it. Imported now: a dataclass that is made
        # while the interpreter ends makes it forget that it was interrupted (exit code 1, not 130).
        from commensal._end_line import tell_end

        atexit.register(_tell_end, settings, tell_end)
    session = activate(settings, member)
    if session is None:
        return
    if member.role != "helper":
        _announce(session, quiet=settings.quiet)
        return
    _watch_helper(session, settings, member)


def _announce(session: _core.Session, *, quiet: bool) -> None:
    line = session.active_line()
    _leave_mark("active", line)
    if quiet:
        return
    say(line)
    for note in json.loads(session.stats_json())["memory"]["notes"]:
        say(f"note: {note}")


def _watch_helper(session: _core.Session, settings: JobSettings, member: Member) -> None:
    """Make a helper a rank once it joins a process group or steps an optimizer."""
    from commensal._promotion import watch_groups

    def promote(rank: int, world_size: int) -> None:
        if _before_first_step:
            _before_first_step.clear()
            _promote(session, settings, rank, world_size)

    _before_first_step[:] = [lambda: promote(member.rank, member.world_size)]
    watch_groups(promote)


def _promote(session: _core.Session, settings: JobSettings, rank: int, world_size: int) -> None:
    """Manage a helper from now on: it has turned out to train. Never raises."""
    try:
        adaptor = _load_adaptor()
        session.become_rank(rank, world_size)
        gpu = _choose_gpu_memory(settings)
        _install(adaptor, gpu)
        _follow_gpu(adaptor, gpu, settings.job_class)
    except Exception as error:
        say(f"rank {rank} runs unmanaged: {' '.join(str(error).split())}")
        return
    _announce(session, quiet=settings.quiet)


def _tell_end(settings: JobSettings, tell_end: Callable[[JobSettings], None]) -> None:
    """Print the job's last line in its first process; else the launcher's watcher does."""
    if settings.launch is None or settings.launch.pid != os.getpid():
        return  # a forked child that runs exit handlers
    spawned = sys.modules.get("multiprocessing")
    if spawned is not None and any(not child.daemon for child in spawned.active_children()):
        return  # they are waited for after this, and belong to the job
    with contextlib.suppress(KeyboardInterrupt):
        tell_end(settings)


def activate(settings: JobSettings, member: Member) -> _core.Session | None:
    """Start the session and, unless this process only helps, hook it into PyTorch.

    Returns None where there is one already (the entry point was called twice).

    @raises ActivationError, ValueError naming a wrong value.
    """
    from commensal import _core
    from commensal._mps import held_share

    with _started:
        if _core.current() is not None:
            return None
        # Everything that can fail without a trace comes first.
        helper = member.role == "helper"
        adaptor = _load_adaptor()
        _leave_idle_class()
        summary = settings.summary_file
        gpu = _choose_gpu_memory(settings)
        session = _core.start(
            job_id=settings.job_id,
            name=settings.name,
            tenant=settings.tenant,
            job_class=settings.job_class,
            terms=settings.terms.to_core(),
            role=member.role,
            rank=member.rank,
            world_size=member.world_size,
            instance=settings.instance,
            runtime_dir=str(settings.runtime_dir or ""),
            device=gpu.device,
            later_device=gpu.later_device,
            spill_dir=str(settings.spill_dir or ""),
            host_cap_bytes=settings.host_cap_bytes,
            inherited_cpus=os.environ.get("COMMENSAL_CPUS", ""),
            elastic_threads=settings.elastic_threads,
            sm_held_by=held_share(os.environ) if settings.terms.sm_share is not None else "",
            summary_file="" if summary is None else _own_file(summary),
            memory_policy=settings.memory_policy,
            ask_wait_ms=settings.ask_wait_ms,
            park_idle_ms=settings.park_idle_ms,
            background_rate_bytes=settings.background_rate_bytes,
            sample_ops=settings.sample_ops,
            quiet=settings.quiet,
        )
        atexit.register(session.shutdown)
        if settings.job_class == "opportunistic":  # any other stays on all its CPUs
            _leave_cpus(session)
        try:
            if helper:
                _prepare(adaptor, gpu)
            else:
                _install(adaptor, gpu)
                _follow_gpu(adaptor, gpu, settings.job_class)
        except BaseException:
            session.shutdown()
            raise
        if not helper and os.environ.get("COMMENSAL_PRE_RUN"):
            from commensal._pre_run import watch_first_step

            watch_first_step(session)
        return session


def _follow_gpu(adaptor: ctypes.CDLL, gpu: GpuMemory, job_class: JobClass) -> None:
    if gpu.kind is not None and job_class == "opportunistic":
        _follow_launches(adaptor)
    elif gpu.kind is not None:
        _show_launches()


def _leave_cpus(session: _core.Session) -> None:
    """Tell the processes that this one starts which CPUs and threads it counts as its own.

    One that is started while the job keeps to fewer CPUs inherits these: it would take them for all
    that it may ever use, and OpenMP would choose a thread for each of them.
    """
    cores = json.loads(session.stats_json())["cores"]
    torch = sys.modules["torch"]
    began_with = os.environ.get("COMMENSAL_CPUS", "").rpartition(":")[2]
    chosen = "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    if cores["cpus"] != cores["own"] and began_with.isdecimal() and not chosen:
        torch.set_num_threads(int(began_with))
    os.environ["COMMENSAL_CPUS"] = f"{os.getpid()}:{cores['own']}:{torch.get_num_threads()}"


def _leave_idle_class() -> None:
    """Take this thread out of the kernel's idle class, where `commensal run` started it.

    The session's own threads inherit the class of the one that starts them, and must not wait
    behind the neighbour; the session then puts the others where they belong.
    """
    if os.environ.get("COMMENSAL_RUN") == "1" and os.sched_getscheduler(0) == os.SCHED_IDLE:
        with contextlib.suppress(OSError):  # an ordinary user's own choice: stays
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _call(install: Callable[[], bytes | None]) -> None:
    install.argtypes = []  # type: ignore[attr-defined]
    install.restype = ctypes.c_char_p  # type: ignore[attr-defined]
    if reason := install():
        raise ActivationError(reason.decode(errors="replace"))


def _prepare(adaptor: ctypes.CDLL, gpu: GpuMemory) -> None:
    """Serve a helper's tensors: should it turn out to train, they are then managed."""
    from commensal._cuda import prepare

    _call(adaptor.commensal_torch_install_memory)
    _follow_optimizers()
    prepare(gpu)


def _install(adaptor: ctypes.CDLL, gpu: GpuMemory) -> None:
    from commensal._cuda import manage
    from commensal._registered import follow_gds

    _call(adaptor.commensal_torch_install)
    adaptor.commensal_torch_enter_region.argtypes = [ctypes.c_uint32]
    adaptor.commensal_torch_enter_region.restype = ctypes.c_void_p
    adaptor.commensal_torch_leave_region.argtypes = [ctypes.c_void_p]
    adaptor.commensal_torch_leave_region.restype = None
    _adaptor[:] = [adaptor]
    _follow_optimizers()
    _follow_gaps()
    manage(gpu)
    follow_gds()
    # For processes that this one starts: `member_of` reads them.
    os.environ["COMMENSAL_PRIMARY_PID"] = str(os.getpid())
    os.environ["COMMENSAL_PRIMARY_RANK"] = os.environ.get("RANK", "")
    os.environ[_TRAINS] = "0"


def installed_adaptor() -> ctypes.CDLL | None:
    """Return what serves this process's tensors; None where that is PyTorch alone."""
    return _adaptor[0] if _adaptor else None


def _follow_gaps() -> None:
    from commensal._gaps import follow_batches, follow_checkpoints

    torch = sys.modules["torch"]
    follow_checkpoints(torch)
    follow_batches(sys.modules.get("torch.utils.data.dataloader"))


def _follow_launches(adaptor: ctypes.CDLL) -> None:
    from commensal._launches import follow_graphs, follow_kernels

    adaptor.commensal_torch_begin_launch.argtypes = [ctypes.c_uint]
    adaptor.commensal_torch_begin_launch.restype = ctypes.c_int
    adaptor.commensal_torch_end_launch.argtypes = []
    adaptor.commensal_torch_end_launch.restype = None
    follow_graphs(sys.modules["torch"].cuda, adaptor)
    follow_kernels(adaptor)


def _show_launches() -> None:
    from commensal._launches import (
        show_graphs,
        show_kernels,
        show_regions,
        show_synchronisations,
    )

    cuda = sys.modules["torch"].cuda
    show_graphs(cuda)
    show_kernels()
    show_regions()
    show_synchronisations(cuda)


def _choose_gpu_memory(settings: JobSettings) -> GpuMemory:
    from commensal._cuda import choose

    torch = sys.modules["torch"]
    version, elastic = str(torch.__version__), settings.gpu_memory == "elastic"
    return choose(LIBRARIES, version, torch.version.cuda, os.environ, elastic=elastic)


def _follow_optimizers() -> None:
    """Tell the session of optimizer steps, once a process."""
    if _hooks:
        return
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    from commensal import _core

    _hooks.append(register_optimizer_step_pre_hook(_optimizer_hook(_begin_optimizer_step)))
    _hooks.append(register_optimizer_step_post_hook(_optimizer_hook(_core.optimizer_step_end)))


def say_that_it_trains() -> None:
    """Tell processes that this one starts from now on that it is no launcher.

    The variable is there since the installation: changing its value moves nothing that a thread of
    C code, which reads the environment at the same time, may hold.
    """
    if os.environ.get(_TRAINS) == "0":
        os.environ[_TRAINS] = "1"


def _begin_optimizer_step() -> None:
    from commensal import _core

    if _before_first_step:
        _before_first_step[0]()
    say_that_it_trains()
    _core.optimizer_step_begin()


def _optimizer_hook(tell: Callable[[], None]) -> Callable[..., None]:
    """Return a hook that calls `tell`. A compiled region must call it, not trace it."""

    def hook(*_: object) -> None:
        tell()

    hook._torchdynamo_disable = True  # type: ignore[attr-defined]
    return hook


def adaptor_versions(libraries: Path = LIBRARIES) -> dict[str, Path]:
    """Return the adaptors that are installed, by PyTorch version ("2.11")."""
    if not libraries.is_dir():
        return {}
    found = ((_ADAPTOR_NAME.fullmatch(file.name), file) for file in sorted(libraries.iterdir()))
    return {match[1]: file for match, file in found if match}


def find_adaptor(torch_version: str, libraries: Path = LIBRARIES) -> Path:
    """Return the adaptor for a PyTorch version such as "2.11.0+cpu".

    @raises ActivationError if there is none for its minor version.
    """
    minor = ".".join(torch_version.split("+", maxsplit=1)[0].split(".")[:2])
    adaptors = adaptor_versions(libraries)
    if minor in adaptors:
        return adaptors[minor]
    built = f"for PyTorch {', '.join(adaptors)}" if adaptors else "without PyTorch"
    raise ActivationError(
        f"commensal was built {built}, this is {minor}; rebuild it with "
        "'pip install --no-build-isolation .' in its sources"
    )


def _load_adaptor() -> ctypes.CDLL:
    torch = sys.modules["torch"]
    version = str(getattr(torch, "__version__", "")) or metadata.version("torch")
    path = find_adaptor(version)
    try:
        adaptor = ctypes.CDLL(str(path))
    except OSError as error:
        raise ActivationError(f"cannot load {path.name}: {error}") from error
    adaptor.commensal_torch_check.argtypes = [ctypes.c_char_p]
    adaptor.commensal_torch_check.restype = ctypes.c_char_p
    if reason := adaptor.commensal_torch_check(version.encode()):
        raise ActivationError(reason.decode(errors="replace"))
    return adaptor


def _own_file(summary: Path) -> str:
    """Return this process's file beside the launcher's: several may belong to one job."""
    return f"{summary}.{os.getpid()}"


def _leave_mark(kind: str, text: str) -> None:
    """Tell `commensal run`, which prints the last line, what became of the activation."""
    if summary := os.environ.get("COMMENSAL_SUMMARY_FILE"):
        try:
            Path(f"{summary}.{os.getpid()}.{kind}").write_text(text, encoding="utf-8")
        except OSError:
            return  # the launcher then only knows less
