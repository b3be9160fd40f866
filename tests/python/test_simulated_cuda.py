# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own CUDA path on the simulated driver (``tests/simulated_cuda``).

Each scenario is a function that runs in a fresh interpreter on a simulated machine and returns
facts (plain JSON) for the tests to judge.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

SIMULATED_CUDA = Path(__file__).resolve().parents[1] / "simulated_cuda"
sys.path.insert(0, str(SIMULATED_CUDA))

import run as simulated_cuda  # noqa: E402

Facts = dict[str, Any]
MIB = 1 << 20
DEADLINE_S = 240.0
CONTEXT = 32 * MIB  # bytes that a process's context takes

pytestmark = pytest.mark.skipif(
    simulated_cuda.library_dir() is None,
    reason="the simulated driver is not built (target simulated_cudart)",
)


def start(
    scenario: Callable[[], Facts], answer: Path, settings: dict[str, object], **variables: str
) -> subprocess.Popen[str]:
    """Start a scenario in a process of its own."""
    environment = simulated_cuda.environment({**os.environ, **variables}, settings)
    return forked.start(
        [sys.executable, __file__, scenario.__name__, str(answer)],
        fresh="LOG" in settings,  # the driver writes it when the process ends
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def facts_of(
    scenario: Callable[[], Facts], settings: dict[str, object] | None = None, **variables: str
) -> Facts:
    """Run a scenario and return its facts; fail the test if it does not come to its end."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "facts.json")
        process = start(scenario, answer, settings or {}, **variables)
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints where every thread is
            output, _ = process.communicate()
            pytest.fail(f"{scenario.__name__} not done after {DEADLINE_S:.0f} s:\n{output}")
        assert process.returncode == 0, output
        facts: Facts = json.loads(answer.read_text())
        return facts


# ----- in the process of a scenario


def driver() -> ctypes.CDLL:
    """Return the simulated driver with the functions of control.h."""
    library = ctypes.CDLL("libcuda.so.1")
    library.simulated_cuda_calls.restype = ctypes.c_uint64
    library.simulated_cuda_used.restype = ctypes.c_uint64
    library.simulated_cuda_launches.restype = ctypes.c_uint64
    return library


def tensors() -> Facts:
    import torch

    properties = torch.cuda.get_device_properties(0)
    sent = torch.arange(1 << 20, dtype=torch.int32)
    on_device = sent.cuda()
    pinned = torch.empty_like(sent, pin_memory=True)
    pinned.copy_(on_device, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    cloned = on_device.clone()
    moved = torch.empty_like(on_device)
    moved.copy_(cloned)
    weight = torch.zeros(16, device="cuda", requires_grad=True)
    (weight * 2).sum().backward()  # on the device's autograd thread
    allocated = torch.cuda.memory_allocated()
    del on_device, cloned, moved
    return {
        "name": properties.name,
        "count": torch.cuda.device_count(),
        "total": properties.total_memory,
        "there_and_back": torch.equal(sent.cuda().cpu(), sent),
        "pinned": pinned.is_pinned() and torch.equal(pinned, sent),
        "zeros": float(torch.zeros(1000, device="cuda").cpu().abs().sum()),
        "cloned": torch.equal(sent.cuda().clone().cpu(), sent),
        "gradient_on": str(weight.grad.device) if weight.grad is not None else None,
        "allocated": allocated,
        "freed": allocated - torch.cuda.memory_allocated(),
        "launches": driver().simulated_cuda_calls(b"cudaLaunchKernel"),
        "after": len(torch.cuda.memory_snapshot()),
    }


def streams() -> Facts:
    import torch

    library = driver()
    side = torch.cuda.Stream()
    facts: Facts = {}
    block = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    block.record_stream(side)
    address = block.data_ptr()
    torch.cuda.synchronize()
    library.simulated_cuda_hold()
    with torch.cuda.stream(side):
        torch.zeros(16, device="cuda")  # something that the side stream has still to do
    del block
    # The block waits for the side stream: the next one of its size is another.
    other = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    facts["while_pending"] = other.data_ptr() == address
    facts["active"] = torch.cuda.memory_stats()["active_bytes.all.current"]
    event = torch.cuda.Event()
    event.record(side)
    facts["event_pends"] = not event.query()
    library.simulated_cuda_let_go()
    event.synchronize()
    facts["event_done"] = event.query()
    again = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    facts["when_done"] = again.data_ptr() == address
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    library.simulated_cuda_set_kernel_time(ctypes.c_uint64(20_000_000))
    begin.record()
    torch.empty(16, device="cuda").fill_(1)
    end.record()
    end.synchronize()
    facts["kernel_ms"] = begin.elapsed_time(end)
    return facts


def out_of_memory() -> Facts:
    import torch

    facts: Facts = {}
    held = torch.full((16 * MIB,), 7, dtype=torch.uint8).cuda()
    try:
        torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        facts["error"] = str(error)
    facts["survives"] = bool((held.cpu() == 7).all())
    facts["ooms"] = torch.cuda.memory_stats()["num_ooms"]
    calls = driver().simulated_cuda_calls(b"cudaMalloc")
    driver().simulated_cuda_fail(b"cudaMalloc", ctypes.c_uint64(1), 2, ctypes.c_uint64(1))
    retried = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")  # after a cache flush
    facts["retried"] = retried.numel()
    facts["calls"] = driver().simulated_cuda_calls(b"cudaMalloc") - calls
    return facts


def injected() -> Facts:
    import torch

    errors = []
    for _ in range(3):
        try:
            torch.cuda.mem_get_info()
            errors.append("")
        except RuntimeError as error:
            errors.append(str(error).splitlines()[0])
    return {"errors": errors}


def expandable() -> Facts:
    import torch

    library = driver()
    sent = torch.arange(8 * MIB, dtype=torch.int32)  # 32 MiB over several chunks
    first = sent.cuda()
    address = first.data_ptr()
    facts: Facts = {
        "right": torch.equal(first.cpu(), sent),
        "chunks": library.simulated_cuda_calls(b"cuMemCreate"),
        "mallocs": library.simulated_cuda_calls(b"cudaMalloc"),
        "used": library.simulated_cuda_used(0),
        "expandable": all(s["is_expandable"] for s in torch.cuda.memory_snapshot()),
    }
    second = torch.full((4 * MIB,), 3, dtype=torch.int32).cuda()  # the segment grows in place
    facts["beside"] = second.data_ptr() - address
    facts["used_by_both"] = library.simulated_cuda_used(0)
    del first
    torch.cuda.empty_cache()
    facts["unmaps"] = library.simulated_cuda_calls(b"cuMemUnmap")
    facts["unmaps_while_busy"] = library.simulated_cuda_calls(b"cuMemUnmap while busy")
    facts["used_after"] = library.simulated_cuda_used(0)
    facts["other_right"] = bool((second.cpu() == 3).all())
    return facts


def graphs() -> Facts:
    import torch

    facts: Facts = {}
    static_in = torch.zeros(1024, dtype=torch.int32, device="cuda")
    static_out = torch.zeros(1024, dtype=torch.int32, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        inner = torch.empty_like(static_in)
        inner.copy_(static_in)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            static_out.copy_(inner)
        torch.cuda.current_stream().wait_stream(side)
    facts["not_run"] = int(static_out.cpu().sum())
    results = []
    for value in (2, 5):
        static_in.copy_(torch.full((1024,), value, dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        results.append(static_out.cpu().unique().tolist())
    facts["replayed"] = results

    broken = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(broken):
            torch.cuda.synchronize()
    except RuntimeError as error:
        # The end of the capture fails too, while the first error is on its way.
        facts["errors"] = [str(error.__context__), str(error)]
    torch.cuda.synchronize()
    facts["usable_after"] = int(torch.ones(8, dtype=torch.int32).cuda().cpu().sum())

    compiled = torch.compile(lambda a: (a.relu() + 1).sin().sum(0), backend="cudagraphs")
    given = torch.zeros(64, 64, device="cuda")
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        out = compiled(given)
    facts["tree"] = list(out.shape)
    facts["launches"] = driver().simulated_cuda_calls(b"cudaGraphLaunch")
    return facts


def compiled() -> Facts:
    import torch

    library = driver()

    @torch.compile(mode="reduce-overhead")
    def function(given: torch.Tensor) -> torch.Tensor:
        return (given.relu() + 1).sin().sum(0)

    given = torch.zeros(64, 64, device="cuda")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        out = function(given)
    names = ("cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch", "cuPointerGetAttribute")
    return {
        "shape": list(out.shape),
        "calls": {name: library.simulated_cuda_calls(name.encode()) for name in names},
    }


def two_devices() -> Facts:
    import torch

    values = torch.arange(100_000)
    first = values.to("cuda:0")
    second = first.to("cuda:1")
    before = torch.cuda.mem_get_info(0)[0]
    more = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:1")
    return {
        "count": torch.cuda.device_count(),
        "right": torch.equal(second.cpu(), values) and more.is_cuda,
        "other_untouched": torch.cuda.mem_get_info(0)[0] == before,
    }


def hold_memory() -> Facts:
    import torch

    held = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    sys.stdin.read()
    return {"held": held.numel()}


def look_at_memory() -> Facts:
    import torch

    free, total = torch.cuda.mem_get_info()
    try:
        torch.empty(total - 99 * MIB - 2 * CONTEXT, dtype=torch.uint8, device="cuda")
        fits = True
    except torch.OutOfMemoryError:
        fits = False
    return {"free": free, "total": total, "fits": fits}


def look_with_nvml() -> Facts:
    """Look from a process that does not use CUDA, as a coordinator does."""

    class Memory(ctypes.Structure):
        _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))

    class Process(ctypes.Structure):
        _fields_ = (
            ("pid", ctypes.c_uint),
            ("used", ctypes.c_ulonglong),
            ("gpu_instance", ctypes.c_uint),
            ("compute_instance", ctypes.c_uint),
        )

    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    assert nvml.nvmlInit_v2() == 0
    device = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
    uuid = ctypes.create_string_buffer(96)
    assert nvml.nvmlDeviceGetUUID(device, uuid, 96) == 0
    again = ctypes.c_void_p()
    assert nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(again)) == 0
    memory = Memory()
    assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
    count = ctypes.c_uint(16)
    processes = (Process * 16)()
    running = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    assert running(device, ctypes.byref(count), processes) == 0
    return {
        "same": device.value == again.value,
        "uuid": uuid.value.decode(),
        "used": memory.used,
        "free": memory.free,
        "processes": {str(one.pid): one.used for one in processes[: count.value]},
    }


def touch_device_memory() -> Facts:
    import torch

    tensor = torch.zeros(16, device="cuda")
    ctypes.memset(tensor.data_ptr(), 1, 16)
    return {}


# ----- the tests


def test_tensors_go_there_and_back() -> None:
    facts = facts_of(tensors)
    assert facts["name"] == "Simulated GPU"
    assert (facts["count"], facts["total"]) == (1, 1 << 30)
    assert facts["there_and_back"]
    assert facts["pinned"]
    assert facts["cloned"]
    assert facts["zeros"] == 0
    assert facts["gradient_on"] == "cuda:0"
    assert facts["freed"] == 3 * 4 * MIB
    assert facts["launches"] > 0  # kernels were launched, though they do nothing


def test_a_recorded_stream_keeps_a_block() -> None:
    facts = facts_of(streams)
    assert not facts["while_pending"]
    assert facts["active"] >= 8 * MIB
    assert facts["event_pends"]
    assert facts["event_done"]
    assert facts["when_done"]
    assert facts["kernel_ms"] >= 19


def test_out_of_memory_is_pytorchs_own_error() -> None:
    facts = facts_of(out_of_memory, {"MEMORY": 256 * MIB})
    assert "CUDA out of memory" in facts["error"]
    assert "256.00 MiB" in facts["error"]
    assert facts["ooms"] == 1
    assert facts["survives"]
    assert facts["retried"] == 32 * MIB
    assert facts["calls"] == 2  # the one that failed on demand and the one after the flush


def test_calls_fail_on_demand_from_the_environment() -> None:
    facts = facts_of(injected, {"FAIL": "cudaMemGetInfo:2:CUDA_ERROR_UNKNOWN"})
    assert facts["errors"][0] == facts["errors"][2] == ""
    assert "unknown error" in facts["errors"][1]


def test_expandable_segments_live_on_virtual_memory() -> None:
    facts = facts_of(expandable, PYTORCH_ALLOC_CONF="expandable_segments:True")
    assert facts["right"]
    assert facts["expandable"]
    assert facts["chunks"] >= 2
    assert facts["mallocs"] == 0
    assert facts["beside"] == 32 * MIB
    assert facts["used"] >= CONTEXT + 32 * MIB
    assert facts["used_after"] <= facts["used_by_both"] - 20 * MIB
    assert facts["unmaps"] > 0
    assert facts["unmaps_while_busy"] == 0  # PyTorch drains its streams before it unmaps
    assert facts["other_right"]


def test_graphs_capture_replay_and_refuse() -> None:
    facts = facts_of(graphs)
    assert facts["not_run"] == 0
    assert facts["replayed"] == [[2], [5]]
    assert "operation not permitted when stream is capturing" in facts["errors"][0]
    assert "operation failed due to a previous error during capture" in facts["errors"][1]
    assert facts["usable_after"] == 8
    assert facts["tree"] == [64]
    assert facts["launches"] >= 4


@pytest.mark.soak  # and in ./scripts/test with the allocator: test_cuda_allocator.py
@pytest.mark.skipif(shutil.which("cc") is None, reason="Triton needs a C compiler")
def test_compiled_functions_launch_triton_kernels_in_cudagraph_trees(tmp_path: Path) -> None:
    facts = facts_of(
        compiled, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path)
    )
    assert facts["shape"] == [64]
    assert facts["calls"]["cuLaunchKernel"] + facts["calls"]["cuLaunchKernelEx"] > 0
    assert facts["calls"]["cudaGraphLaunch"] > 0
    assert facts["calls"]["cuPointerGetAttribute"] > 0


def test_devices_are_apart() -> None:
    facts = facts_of(two_devices, {"DEVICES": 2})
    assert facts["count"] == 2
    assert facts["right"]
    assert facts["other_untouched"]


def test_processes_share_a_device(tmp_path: Path) -> None:
    machine: dict[str, object] = {"LEDGER": tmp_path / "ledger", "MEMORY": 512 * MIB}
    holder = start(hold_memory, tmp_path / "facts.json", machine)
    try:
        assert holder.stdout is not None
        lines = iter(holder.stdout.readline, "")
        assert any(line == "ready\n" for line in lines)
        beside = facts_of(look_at_memory, machine)
        assert beside["free"] == beside["total"] - 100 * MIB - 2 * CONTEXT
        assert not beside["fits"]
        outside = facts_of(look_with_nvml, machine)
        assert outside["same"]
        assert outside["uuid"].startswith("GPU-")
        assert outside["used"] == 100 * MIB + CONTEXT
        assert outside["used"] + outside["free"] == 512 * MIB
        assert outside["processes"] == {str(holder.pid): 100 * MIB + CONTEXT}
    finally:
        holder.kill()
        holder.communicate()
    after = facts_of(look_at_memory, machine)
    assert after["free"] == after["total"] - CONTEXT
    assert after["fits"]


def test_the_cpu_cannot_touch_device_memory(tmp_path: Path) -> None:
    process = start(touch_device_memory, tmp_path / "facts.json", {})
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == -signal.SIGSEGV


def test_the_log_is_written_at_exit(tmp_path: Path) -> None:
    facts_of(injected, {"LOG": tmp_path / "log.json"})
    log = json.loads((tmp_path / "log.json").read_text())
    assert log["cudaMemGetInfo"]["calls"] == 3


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm, to list symbols")
def test_all_that_pytorch_imports_of_the_runtime_is_there() -> None:
    import torch

    def symbols(library: Path, which: str) -> set[str]:
        listed = subprocess.run(
            ["nm", "-D", which, str(library)], check=True, capture_output=True, text=True
        ).stdout
        names = (line.split()[-1].partition("@")[0] for line in listed.splitlines())
        return {name for name in names if name.startswith(("cuda", "__cuda"))}

    folder = simulated_cuda.library_dir()
    assert folder is not None
    there = symbols(folder / simulated_cuda.RUNTIME, "--defined-only")
    wanted: set[str] = set()
    for library in (Path(torch.__file__).parent / "lib").glob("lib*.so"):
        wanted |= symbols(library, "--undefined-only")
    assert len(wanted) > 60
    assert wanted - there == set()


if __name__ == "__main__":
    import faulthandler

    faulthandler.enable()
    found = globals()[sys.argv[1]]()
    Path(sys.argv[2]).write_text(json.dumps(found))
