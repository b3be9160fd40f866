# SPDX-License-Identifier: Apache-2.0
"""The checks of `commensal doctor`: one thing each, by behaviour where that is harmless."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from commensal._activation import ActivationError, adaptor_versions, find_adaptor
from commensal._coordinator import Coordinator, Refused, Unreachable, find_daemon
from commensal._mps import find_daemon as find_mps
from commensal._quantities import format_bytes, format_seconds
from commensal.cli._launch import may_renice

__all__ = ["Check", "examine"]

State = Literal["ok", "note", "off", "broken"]


@dataclass(frozen=True)
class Check:
    """`ok`: works; `note`: works, with a limit; `off`: not available here; `broken`: must work."""

    name: str
    state: State
    detail: str


def examine(coordinator: Coordinator) -> list[Check]:
    """Run every check; one that itself fails is broken, with its error."""
    checks: list[tuple[str, Callable[[], tuple[State, str]]]] = [
        ("runtime", _runtime),
        ("pytorch", _pytorch),
        ("coordinator", lambda: _coordinator(coordinator)),
        ("jobs", lambda: _jobs(coordinator)),
        ("daemon", _daemon),
        ("spill folder", _spill_folder),
        ("threads", _threads),
        ("huge pages", _huge_pages),
        ("PAGEMAP_SCAN", _pagemap_scan),
        ("idle class", _idle_class),
        ("cgroup", _cgroup),
        ("memory limits", _memory_limits),
        ("gpu", _gpu),
        ("gpu host memory", _gpu_host_memory),
        ("green contexts", _green_contexts),
        ("mps", _mps),
    ]
    found = []
    for name, check in checks:
        try:
            state, detail = check()
        except Exception as error:
            state, detail = "broken", f"the check failed: {error!r}"
        found.append(Check(name, state, detail))
    return found


def _runtime() -> tuple[State, str]:
    try:
        from commensal import _core
    except ImportError as error:
        return "broken", f"commensal._core does not load: {error}"
    return "ok", f"commensal._core loads ({Path(_core.__file__ or '?').name})"


def _pytorch() -> tuple[State, str]:
    if util.find_spec("torch") is None:
        return "note", "this Python has no PyTorch; scripts under 'commensal run' need one"
    version = metadata.version("torch")
    try:
        adaptor = find_adaptor(version)
    except ActivationError as error:
        return "broken", f"PyTorch {version}: {error}"
    points = metadata.entry_points(group="torch.backends")
    if not any(point.name == "commensal" for point in points):
        return "broken", "the entry point of the group torch.backends is not installed"
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return "note", "TORCH_DEVICE_BACKEND_AUTOLOAD turns activation at 'import torch' off"
    return "ok", f"PyTorch {version} with {adaptor.name} (of {len(adaptor_versions())})"


def _coordinator(coordinator: Coordinator) -> tuple[State, str]:
    if not coordinator.listens():
        return "off", (
            f"none on {coordinator.socket_path}; 'commensal run' starts one, jobs train without"
        )
    try:
        status = coordinator.status(timeout=timedelta(seconds=2))
    except (Unreachable, Refused) as error:
        return "broken", str(error)
    daemon = status["coordinator"]
    return "ok", (
        f"instance {daemon['instance']}, pid {daemon['pid']}, up "
        f"{format_seconds(daemon['uptime_seconds'])}, {len(status['jobs'])} jobs"
    )


def _jobs(coordinator: Coordinator) -> tuple[State, str]:
    if not coordinator.listens():
        return "off", "no coordinator, so none is known"
    try:
        jobs = coordinator.status(timeout=timedelta(seconds=2))["jobs"]
    except (Unreachable, Refused):
        return "off", "the coordinator does not tell, see there"
    told = [
        f"{job['job']['name']}: {note}"
        for job in jobs
        if not job.get("ended")
        for note in job.get("memory", {}).get("notes", [])
    ]
    if told:
        return "note", "; ".join(told)
    return "ok", "none has anything to note"


def _daemon() -> tuple[State, str]:
    daemon = find_daemon()
    if daemon is None:
        return "broken", "commensald is not installed beside this command"
    return "ok", str(daemon)


def _spill_folder() -> tuple[State, str]:
    folder = os.environ.get("COMMENSAL_SPILL_DIR") or "/var/tmp"
    from commensal import _core

    if reason := _core.probe_spill_dir(folder):
        return "note", f"{folder}: {reason}; live memory cannot shrink (see COMMENSAL_SPILL_DIR)"
    if warning := _core.spill_dir_warning(folder):
        return "note", warning
    disk = os.statvfs(folder)
    return "ok", f"{folder}, {format_bytes(disk.f_bavail * disk.f_frsize)} free"


def _threads() -> tuple[State, str]:
    from commensal import _core

    if reason := _core.probe_thread_stops():
        return "note", (
            f"{reason}; beside a thread that blocks signals (of a library, of a script's own)"
            " the memory in use of a job stays where it is"
        )
    return "ok", "each can be stopped while memory moves, also one that blocks signals"


def _huge_pages() -> tuple[State, str]:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists():
        return "off", "the kernel has no transparent huge pages; 4 KiB pages serve, slower"
    chosen = next((word.strip("[]") for word in setting.read_text().split() if "[" in word), "?")
    if chosen == "never":
        return "off", "transparent huge pages are set to never; 4 KiB pages serve, slower"
    return "ok", f"transparent huge pages: {chosen}"


_PM_SCAN = struct.Struct("=12Q")
_PAGEMAP_SCAN = 0xC0606610  # _IOWR('f', 16, struct pm_scan_arg)


def _pagemap_scan() -> tuple[State, str]:
    with mmap.mmap(-1, mmap.PAGESIZE) as page, open("/proc/self/pagemap", "rb") as pagemap:
        page[0] = 1
        view = ctypes.c_char.from_buffer(page)
        start = ctypes.addressof(view)
        del view  # the mapping cannot be closed while it is exported
        end = start + mmap.PAGESIZE
        argument = bytearray(_PM_SCAN.pack(_PM_SCAN.size, 0, start, end, 0, 0, 0, 0, 0, 0, 0, 0))
        try:
            fcntl.ioctl(pagemap, _PAGEMAP_SCAN, argument)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error.errno))
            return "off", f"not in this kernel ({name}); plain pagemap serves (6.7 has it)"
    return "ok", "written pages are found by the kernel"


def _idle_class() -> tuple[State, str]:
    outcome = _in_child(_try_idle_class)
    if outcome == _REFUSED:
        return "off", "SCHED_IDLE is refused here; the gate alone paces opportunistic jobs"
    if outcome == _LEFT:
        how = "CAP_SYS_NICE" if may_renice() else "RLIMIT_NICE"
        return "ok", f"SCHED_IDLE can be entered and left again ({how})"
    return "note", (
        "SCHED_IDLE can be entered but not left again (an ordinary user): only jobs that stay "
        "opportunistic enter it"
    )


_REFUSED, _STAYED, _LEFT = 1, 2, 3


def _try_idle_class() -> int:
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return _REFUSED
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError:
        return _STAYED
    return _LEFT


def _in_child(action: Callable[[], int]) -> int:
    """Run something that changes a process where that harms nobody; return its result."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(action())
        except BaseException:
            os._exit(_REFUSED)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _cgroup() -> tuple[State, str]:
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controllers = {name for line in lines if line[0] != "0" for name in line[1].split(",")}
    unified = next((line[2] for line in lines if line[0] == "0"), None)
    if {"cpu", "memory"} & controllers:
        return "ok", f"version 1 ({', '.join(sorted(controllers & {'cpu', 'cpuset', 'memory'}))})"
    if unified is not None:
        return "ok", f"version 2 ({unified})"
    return "off", "none: the whole machine is the device"


def _memory_limits() -> tuple[State, str]:
    notes = []
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if space != resource.RLIM_INFINITY:
        notes.append(f"RLIMIT_AS {format_bytes(space)}: reservations are smaller")
    overcommit = Path("/proc/sys/vm/overcommit_memory")
    if overcommit.exists() and overcommit.read_text().strip() == "2":
        notes.append("overcommit is strict (2): reservations are smaller")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    lockable = "unlimited" if locked == resource.RLIM_INFINITY else format_bytes(locked)
    if notes:
        return "note", "; ".join(notes)
    return "ok", f"address space unlimited, overcommit not strict, lockable memory {lockable}"


def _gpu() -> tuple[State, str]:
    if not Path("/dev/nvidiactl").exists():
        return "off", "none: jobs share this machine's cores and memory"
    if not list((Path(__file__).parents[1] / "lib").glob("libcommensal_torch_cuda-*.so")):
        return "note", "there is one, and commensal was installed for a PyTorch without CUDA"
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return "note", f"there is one, and no coordinator can know it: {error}"
    return "note", (
        "jobs share it: opportunistic ones are paced by its time, and limits bound PyTorch's own"
        " allocator (native) or, by --gpu-memory elastic, memory that moves at the ends of steps;"
        " experimental: it ran on one card, where results were right and the default law used none"
        " of the idle time; what was mended since is tested on a simulated driver only"
    )


_DRIVER = "libcuda.so.1"
_GREEN_CALLS = (
    "cuDeviceGetDevResource",
    "cuDevSmResourceSplitByCount",
    "cuDevResourceGenerateDesc",
    "cuGreenCtxCreate",
    "cuGreenCtxGetDevResource",
    "cuGreenCtxStreamCreate",
)
_SM_RESOURCE = 1  # CU_DEV_RESOURCE_TYPE_SM
_SM_NUMBERS = struct.Struct("=96x3I")  # CUdevResource: count, smallest part, step
_ANSWER = struct.Struct("=4I")  # these behind the driver's error


def _green_contexts() -> tuple[State, str]:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return "off", f"no CUDA driver ({_DRIVER}): --sm-share has no effect"
    for name in _GREEN_CALLS:
        if not hasattr(driver, name):
            return "off", f"this driver has no {name} (CUDA 12.5 has it): --sm-share has no effect"
    answer = _ask_in_child(lambda: _multiprocessors_of(driver))
    if len(answer) != _ANSWER.size:
        return "off", "the driver gave no answer: see 'gpu'"
    failed, count, least, step = _ANSWER.unpack(answer)
    if failed:
        return "off", f"the driver tells no multiprocessors (error {failed}): see 'gpu'"
    return "ok", f"--sm-share works on {count} SMs, in parts of at least {least}, by {step}"


def _ask_in_child(ask: Callable[[], bytes]) -> bytes:
    """Return what a child's question to the driver came to: CUDA would stay in this process."""
    read, write = os.pipe()
    with open(read, "rb") as answers:
        try:
            _in_child(lambda: os.write(write, ask()))
        finally:
            os.close(write)
        return answers.read()


# CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, and the one of any host memory
_HOST_MEMORY = (141, 145)


def _gpu_host_memory() -> tuple[State, str]:
    try:
        driver = ctypes.CDLL(_DRIVER)
    except OSError:
        return "off", f"no CUDA driver ({_DRIVER})"
    answer = _ask_in_child(lambda: _maps_host_memory(driver))
    if answer not in (b"y", b"n"):
        return "off", "the driver gave no answer: see 'gpu'"
    if answer == b"y":
        return "ok", "the driver says that it maps host memory: live memory can move there"
    return "note", (
        "the driver says that it maps no host memory: parked regions and idle jobs are kept in"
        " pinned memory, live memory stays on the GPU"
    )


def _maps_host_memory(driver: ctypes.CDLL) -> bytes:
    """Ask about the first GPU, in a child."""
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return b""
    value = ctypes.c_int()
    for attribute in _HOST_MEMORY:
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        if not failed and value.value:
            return b"y"
    return b"n"


def _multiprocessors_of(driver: ctypes.CDLL) -> bytes:
    """Ask about the first GPU, in a child."""
    resource = ctypes.create_string_buffer(1024)  # it may be larger with a newer driver
    device = ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetDevResource(device, resource, _SM_RESOURCE)
    )
    return _ANSWER.pack(failed, *_SM_NUMBERS.unpack_from(resource.raw))


def _mps() -> tuple[State, str]:
    daemon = find_mps(os.environ)
    if daemon.pid is None:
        return "off", daemon.reason
    return "ok", (
        f"control daemon {daemon.pid} in {daemon.folder}: opportunistic jobs use it with a "
        "priority below normal, guaranteed ones stay out (--mps, --no-mps)"
    )
