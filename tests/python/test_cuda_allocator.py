# SPDX-License-Identifier: Apache-2.0
"""Unmodified CUDA scripts with commensal's CUDA allocator under them: nothing changes.

Each scenario runs in processes of its own on the simulated driver (``tests/simulated_cuda``), or
with ``COMMENSAL_TEST_ON_GPU=1`` on the card: once with PyTorch's own allocator, once with ours over
it. What PyTorch says of its memory afterwards, and the calls that reached the driver, must be the
same. The libraries come from the newest build folder that has them, or from
``COMMENSAL_TEST_CUDA_LIBRARY_DIR``.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
from torch_support import newest_build

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "simulated_cuda"))

Facts = dict[str, Any]
MIB = 1 << 20
ON_GPU = os.environ.get("COMMENSAL_TEST_ON_GPU") == "1"
TESTING_LIBRARY = "libcommensal_cuda_testing.so"
DEADLINE_S = 150.0
WORDS = MIB  # float32 elements of 4 MiB


def library_dir() -> Path | None:
    """Return the folder with our libraries, None if nothing is built."""
    if named := os.environ.get("COMMENSAL_TEST_CUDA_LIBRARY_DIR"):
        return Path(named)
    return newest_build(TESTING_LIBRARY)


# ----- in the process of a scenario


# Whether a pinned block is free again when the next batch wants one depends on how fast the last
# copy was: native runs of it differ from each other in their calls.
UNCOUNTED = ("training",)


class Run:
    """What a scenario notes of PyTorch's memory."""

    def __init__(self) -> None:
        self.facts: Facts = {}
        self._simulation = None if ON_GPU else ctypes.CDLL("libcuda.so.1")

    def note(self, name: str, device: int = 0) -> None:
        """Note statistics and snapshot at this point."""
        import torch

        self.facts[name] = {
            "stats": dict(torch.cuda.memory_stats(device)),
            "segments": segments_of(torch.cuda.memory_snapshot()),
        }

    def note_calls(self) -> None:
        """Note how often each function of the driver was called."""
        if self._simulation is None:
            return
        size = self._simulation.simulated_cuda_log(None, 0)
        text = ctypes.create_string_buffer(size)
        self._simulation.simulated_cuda_log(text, size)
        log = json.loads(text.value)
        self.facts["calls"] = {
            name: [entry["calls"], entry["while_capturing"]] for name, entry in log.items()
        }

    @contextmanager
    def blocked(self, stream: Any) -> Iterator[None]:
        """Let nothing that is queued on a stream begin before the body is left."""
        gate = threading.Event()
        wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait(DEADLINE_S) and None)
        launch = ctypes.CDLL(None).cudaLaunchHostFunc
        assert launch(ctypes.c_void_p(stream.cuda_stream), wait, None) == 0
        try:
            yield
        finally:
            gate.set()
            stream.synchronize()


def segments_of(snapshot: list[dict[str, Any]]) -> list[str]:
    """Describe segments without their addresses, in an order that does not depend on these."""
    kept = ("device", "total_size", "allocated_size", "active_size", "requested_size")
    kept += ("segment_type", "segment_pool_id", "is_expandable")
    described = []
    for segment in snapshot:
        fact = {name: segment[name] for name in kept if name in segment}
        fact["on_default_stream"] = segment["stream"] == 0
        fact["blocks"] = [
            (block["size"], block["requested_size"], block["state"]) for block in segment["blocks"]
        ]
        described.append(json.dumps(fact))
    return sorted(described)


def trace_of(entries: list[dict[str, Any]]) -> list[Any]:
    """Describe a trace with a number for each address and stream, in order of appearance."""
    numbers: dict[int, int] = {}

    def number(value: int) -> int:
        return numbers.setdefault(value, len(numbers))

    return [
        [
            entry["action"],
            0 if entry["action"] == "oom" else number(entry.get("addr", 0)),
            entry["size"],
            number(entry["stream"]),
            [(frame["name"], frame["line"]) for frame in entry.get("frames", [])],
        ]
        for entry in entries
    ]


def error_of(body: Callable[[], object]) -> list[str]:
    """Return the type and the first line of what a call raises."""
    try:
        body()
    except Exception as error:
        text = str(error).splitlines()[0]
        if ON_GPU:  # others may hold memory too: the text says who, and how much is free
            text = re.sub(r"Process \d+ has [\d.]+ \w+ memory in use\. ", "", text)
            text = re.sub(r"(capacity of|of which|this process has) [\d.]+ \w+", r"\1 #", text)
        return [type(error).__name__, text]
    return ["nothing", ""]


def scenario_streams(run: Run) -> None:
    """A block that another stream still reads is not handed out again, and then is."""
    import torch

    side = torch.cuda.Stream()
    source = torch.ones(WORDS).cuda()
    copy = torch.empty_like(source)
    address = source.data_ptr()
    with run.blocked(side):
        with torch.cuda.stream(side):
            copy.copy_(source)
        source.record_stream(side)
        del source
        run.note("pending")
        other = torch.empty(WORDS, device="cuda")
        run.facts["reused_while_pending"] = other.data_ptr() == address
        other.copy_(torch.zeros(WORDS))  # its owner may write to it at once
    torch.cuda.synchronize()
    run.facts["copied"] = sorted(set(copy.cpu().tolist()))
    del other
    again = [torch.empty(WORDS, device="cuda") for _ in range(2)]
    run.facts["reused_afterwards"] = address in [tensor.data_ptr() for tensor in again]
    run.note("afterwards")
    with torch.cuda.stream(side):
        on_side = torch.empty(3 * WORDS, device="cuda")
    on_side.record_stream(side)  # its own stream: nothing to record
    del on_side, again
    torch.cuda.empty_cache()
    run.note("empty")


def scenario_pools(run: Run) -> None:
    """Private pools keep their memory to themselves."""
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = [torch.empty(size, device="cuda") for size in (100, WORDS, 3 * WORDS)]
    outside = torch.empty(WORDS, device="cuda")
    run.facts["pool"] = segments_of(pool.snapshot())
    run.facts["use_count"] = pool.use_count()
    run.note("used")
    del inside[1]
    with torch.cuda.use_mem_pool(pool):
        inside.append(torch.empty(WORDS, device="cuda"))
    run.facts["pool_again"] = segments_of(pool.snapshot())
    del inside, outside
    torch.cuda.empty_cache()
    run.note("emptied")
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    run.note("gone")


def scenario_graphs(run: Run) -> None:
    """Capture, replay, a pool that two graphs share, reset."""
    import torch

    static = torch.zeros(1000).cuda()
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        between = torch.empty(1000, device="cuda")
        between.copy_(static)
        scratch = torch.empty(WORDS, device="cuda")
        del scratch
    with torch.cuda.graph(second, pool=first.pool()):
        out = torch.empty(1000, device="cuda")
        out.copy_(between)
    run.note("captured")
    results = []
    for value in (1.0, 2.0):
        static.copy_(torch.full((1000,), value))
        first.replay()
        second.replay()
        results.append(out.cpu().unique().tolist())
    run.facts["results"] = results
    del between, out
    first.reset()
    second.reset()
    gc.collect()
    torch.cuda.empty_cache()
    run.note("reset")


def scenario_graph_trees(run: Run) -> None:
    """Graphs that checkpoint their pool and restore it (torch.compile's own)."""
    import torch

    torch._inductor.config.triton.slow_path_cudagraph_asserts = True

    def step(value: Any) -> Any:
        return (value.relu() + 1).sin().sum(0)

    compiled = torch.compile(step, backend="cudagraphs")
    weight = torch.zeros(64, 64, device="cuda", requires_grad=True)
    kept = []
    for index in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        result = compiled(weight)
        result.sum().backward()
        weight.grad = None  # it lies in the graphs' pool
        kept.append(result.detach().clone())
        if index == 3:
            kept.clear()
    run.facts["shape"] = list(result.shape)
    run.note("stepped")


def scenario_out_of_memory(run: Run) -> None:
    """Running out: the same error, the same text, observers, retries, and life goes on."""
    import torch

    seen = []
    torch._C._cuda_attach_out_of_memory_observer(
        lambda device, size, total, free: seen.append([device, size, ON_GPU or free])
    )
    total = torch.cuda.mem_get_info()[1]
    first = torch.empty(WORDS, device="cuda")
    run.facts["too_much"] = error_of(
        lambda: torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    )
    run.facts["is_oom"] = issubclass(torch.cuda.OutOfMemoryError, torch.OutOfMemoryError)
    torch.cuda.set_per_process_memory_fraction(128 * MIB / total)
    run.facts["fraction"] = torch.cuda.get_per_process_memory_fraction()
    run.facts["over_fraction"] = error_of(
        lambda: torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    )
    cached = [torch.empty(24 * MIB, dtype=torch.uint8, device="cuda") for _ in range(4)]
    cached.clear()
    large = torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")  # takes back what is cached
    run.note("retried")
    run.facts["observed"] = seen
    del large, first
    torch.cuda.set_per_process_memory_fraction(1.0)
    run.note("after")


def scenario_history(run: Run) -> None:
    """The memory history has the same entries with the same stacks."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    side = torch.cuda.Stream()
    kept = torch.empty(WORDS, device="cuda")
    with torch.cuda.stream(side):
        gone = torch.empty(2 * WORDS, device="cuda")
    kept.record_stream(side)
    del gone
    torch.cuda.synchronize()
    error_of(lambda: torch.empty(1 << 44, dtype=torch.uint8, device="cuda"))
    torch.cuda.empty_cache()
    snapshot = torch.cuda.memory._snapshot()
    [trace] = snapshot["device_traces"][:1]
    run.facts["trace"] = trace_of(trace)
    run.facts["segments"] = segments_of(snapshot["segments"])
    run.facts["settings"] = snapshot["allocator_settings"]
    run.facts["keys"] = sorted(snapshot)
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept


def scenario_training(run: Run) -> None:
    """Steps with pinned batches, backward on its own thread, a fused optimizer, a scaler."""
    import torch

    data = torch.utils.data.TensorDataset(torch.randn(64, 1000))
    loader = torch.utils.data.DataLoader(data, batch_size=16, pin_memory=True)
    weight = torch.zeros(1000, device="cuda", requires_grad=True)
    optimizer = torch.optim.Adam([weight], fused=True)
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        for (batch,) in loader:
            moved = batch.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = ((moved * weight).relu() ** 2).mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    torch.cuda.synchronize()
    run.note("trained")
    del moved, loss
    run.facts["summary"] = torch.cuda.memory_summary()


def scenario_settings(run: Run) -> None:
    """Settings of the allocator from the environment and at run time reach the native one."""
    import torch

    run.facts["backend"] = torch.cuda.memory.get_allocator_backend()
    small = [torch.empty(4 * WORDS, device="cuda") for _ in range(3)]
    run.note("from_environment")
    torch._C._accelerator_setAllocatorSettings("backend:native,max_split_size_mb:64")
    small.append(torch.empty(40 * WORDS, device="cuda"))
    run.note("at_run_time")
    run.facts["unknown"] = error_of(
        lambda: torch._C._accelerator_setAllocatorSettings("no_such_setting:1")
    )
    small.clear()
    torch.cuda.empty_cache()
    run.note("emptied")


def scenario_interface(run: Run) -> None:
    """The rest of what a script may ask of the allocator."""
    import torch

    memory = torch.accelerator.memory
    blocks = [torch.cuda.caching_allocator_alloc(size) for size in (0, 513, 2 * MIB)]
    side = torch.cuda.Stream()
    blocks.append(torch.cuda.caching_allocator_alloc(MIB, stream=side))
    run.note("raw")
    for block in blocks:
        torch.cuda.caching_allocator_delete(block)
    tensor = torch.ones(WORDS).cuda()
    run.facts["clone"] = [
        list(tensor.untyped_storage().clone().cpu()[:4]),
        tensor.clone().shape == tensor.shape,
    ]
    run.facts["accelerator"] = [
        memory.memory_allocated(),
        memory.max_memory_allocated(),
        memory.memory_reserved(),
        memory.memory_stats() == torch.cuda.memory_stats(),
    ]
    torch.cuda.reset_peak_memory_stats()
    memory.reset_accumulated_memory_stats()
    run.note("reset")
    if not ON_GPU:
        run.facts["info"] = [torch.cuda.mem_get_info(), memory.get_memory_info()]
        # On a card PyTorch's own memory is shared, and then kept for who has not opened it yet.
        run.facts["shared"] = error_of(tensor.untyped_storage()._share_cuda_)
    torch.cuda.caching_allocator_enable(False)
    run.facts["uncached"] = torch.empty(WORDS, device="cuda").shape[0]
    torch.cuda.caching_allocator_enable(True)
    tensor.resize_(2 * WORDS)
    tensor.resize_(0)
    del tensor
    memory.empty_cache()
    run.note("emptied")


def scenario_peers(run: Run) -> None:
    """Two devices: copies from one to the other, statistics of each."""
    import torch

    first = torch.ones(WORDS).to("cuda:0")
    second = first.to("cuda:1")
    run.facts["arrived"] = second.cpu().unique().tolist()
    second.copy_(first)
    with torch.cuda.device(1):
        third = torch.empty(WORDS, device="cuda")
    run.note("first", 0)
    run.note("second", 1)
    del first, second, third
    torch.cuda.empty_cache()
    run.note("emptied", 1)


def scenario_compiled(run: Run) -> None:
    """Inductor's kernels, launched by Triton's static launcher."""
    import torch

    def step(value: Any) -> Any:
        return (value.relu() + 1).sin().sum(0)

    compiled = torch.compile(step)
    result = compiled(torch.zeros(64, 64, device="cuda"))
    run.facts["shape"] = list(result.shape)
    run.note("ran")


def scenario_elastic(run: Run) -> None:
    """Live tensors leave the device and come back, at the same addresses, with their content."""
    import torch

    testing = our_testing()
    memory = functools.partial(where_memory_lies, testing)
    values = [torch.full((WORDS,), float(index)) for index in range(16)]
    tensors = [value.cuda() for value in values]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.empty(WORDS, device="cuda")
        out.copy_(tensors[3])
    addresses = [tensor.data_ptr() for tensor in tensors]
    run.facts["elastic"] = [bool(testing.commensal_testing_is_elastic(0, a)) for a in addresses]
    run.facts["captured_elastic"] = bool(testing.commensal_testing_is_elastic(0, out.data_ptr()))
    before = torch.cuda.memory_stats()
    steps = []
    # Of each, 20 MiB are what PyTorch's allocator holds for the graph.
    for limit in (24 * MIB, 1 << 30, 40 * MIB, 1 << 30):
        torch.cuda.synchronize()
        deferred = testing.commensal_testing_set_limit(0, limit)
        graph.replay()  # what it reads may have moved, and is where it was
        same = all(torch.equal(t.cpu(), v) for t, v in zip(tensors, values, strict=True))
        steps.append([limit, deferred, *memory(), same, out.cpu().unique().tolist()])
    run.facts["steps"] = steps
    run.facts["addresses_kept"] = addresses == [tensor.data_ptr() for tensor in tensors]
    after = torch.cuda.memory_stats()
    name = "allocated_bytes.all.current"
    run.facts["told"] = [before[name], after[name]]
    run.facts["free"] = torch.cuda.mem_get_info()[0] > 0
    del tensors, out, graph
    gc.collect()
    torch.cuda.empty_cache()
    run.facts["left"] = [*memory(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


def scenario_elastic_pressure(run: Run) -> None:
    """More than the limit is served from the slower tier, and too much is PyTorch's error."""
    import torch

    testing = our_testing()
    tensors = [torch.full((WORDS,), float(index)).cuda() for index in range(24)]  # 96 MiB
    run.facts["memory"] = where_memory_lies(testing)
    run.facts["values"] = [tensor.cpu().unique().tolist() for tensor in tensors]
    run.facts["too_much"] = error_of(
        lambda: torch.empty(900 * MIB, dtype=torch.uint8, device="cuda")
    )
    run.facts["ooms"] = torch.cuda.memory_stats()["num_ooms"]
    del tensors[::2]
    more = [torch.empty(WORDS, device="cuda") for _ in range(12)]
    run.facts["goes_on"] = len({tensor.data_ptr() for tensor in more})


def our_testing() -> ctypes.CDLL:
    """Return the library with the C functions for tests."""
    folder = library_dir()
    assert folder is not None
    testing = ctypes.CDLL(str(folder / TESTING_LIBRARY))
    testing.commensal_testing_install_elastic.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
    testing.commensal_testing_install_elastic.restype = ctypes.c_char_p
    testing.commensal_testing_set_limit.argtypes = [ctypes.c_int, ctypes.c_uint64]
    testing.commensal_testing_set_limit.restype = ctypes.c_uint64
    testing.commensal_testing_is_elastic.argtypes = [ctypes.c_int, ctypes.c_void_p]
    testing.commensal_testing_frees.restype = ctypes.c_uint64
    return testing


def where_memory_lies(testing: ctypes.CDLL) -> list[int]:
    """Return the MiB of elastic memory on the device, and on the slower tier."""
    device, host = ctypes.c_uint64(), ctypes.c_uint64()
    testing.commensal_testing_memory(0, ctypes.byref(device), ctypes.byref(host))
    return [device.value // MIB, host.value // MIB]


def scenario_late(run: Run) -> None:
    """Installing after CUDA has started is refused, and the script goes on."""
    import torch

    tensor = torch.ones(WORDS).cuda()
    run.facts["complaint"] = install()
    run.facts["served_by_us"] = is_installed()
    run.facts["works"] = tensor.clone().shape[0]


def scenario_other_backend(run: Run) -> None:
    """Another allocator of PyTorch's is left alone."""
    import torch

    run.facts["complaint"] = install()
    run.facts["served_by_us"] = is_installed()
    run.facts["backend"] = torch.cuda.memory.get_allocator_backend()


def scenario_twice(run: Run) -> None:
    """A second installation does nothing, also after CUDA has started."""
    import torch

    run.facts["complaints"] = [install()]
    torch.empty(1, device="cuda")
    run.facts["complaints"].append(install())
    run.facts["served_by_us"] = is_installed()


def our_library() -> ctypes.CDLL:
    """Return our library for the PyTorch of this process."""
    import torch

    folder = library_dir()
    assert folder is not None
    minor = ".".join(torch.__version__.split(".")[:2])
    return ctypes.CDLL(str(folder / f"libcommensal_torch_cuda-{minor}.so"))


def install() -> str:
    """Install our allocator; return an empty text, or why not."""
    function = our_library().commensal_torch_cuda_install
    function.restype = ctypes.c_char_p
    return (function() or b"").decode()


def is_installed() -> bool:
    """Tell whether our allocator serves this process."""
    return bool(our_library().commensal_torch_cuda_is_installed())


def main(scenarios: dict[str, Any], name: str, who: str, answer: str) -> None:
    """Run one scenario with one allocator and write what it notes."""
    import faulthandler

    faulthandler.enable()  # SIGABRT is how a process that is late is ended
    import torch  # noqa: F401  (our libraries bind to those that it loads)

    folder = library_dir()
    assert folder is not None
    run = Run()
    testing = our_testing()
    if who.startswith("elastic"):
        limit = int(who.removeprefix("elastic")) * MIB
        assert testing.commensal_testing_install_elastic(limit, 256 * MIB) is None
    elif who == "ours":
        assert install() == ""
        run.facts["served_by_us"] = is_installed()
    elif who != "native":
        testing.commensal_testing_swap_deleters(int(who == "careful"))
    scenarios[f"scenario_{name}"](run)
    if name not in UNCOUNTED:
        run.note_calls()
    run.facts["frees_seen"] = testing.commensal_testing_frees()
    Path(answer).write_text(json.dumps(run.facts))


# ----- in the test's process


def run_scenario(
    name: str,
    who: str,
    devices: int = 1,
    settings: str = "",
    file: str = __file__,
    **environ: str,
) -> Facts:
    """Run a scenario of a file in a process of its own and return its facts; the same one once."""
    extra = tuple(sorted(environ.items()))
    facts: Facts = json.loads(_run_scenario(name, who, devices, settings, file, extra))
    return facts


def run_with(
    *whose: str, name: str, devices: int = 1, settings: str = "", file: str = __file__
) -> list[Facts]:
    """Run a scenario with several allocators; at the same time where each has its own machine."""
    with ThreadPoolExecutor(1 if ON_GPU else len(whose)) as pool:
        return list(pool.map(lambda who: run_scenario(name, who, devices, settings, file), whose))


@functools.cache
def _run_scenario(
    name: str, who: str, devices: int, settings: str, file: str, extra: tuple[tuple[str, str], ...]
) -> str:
    folder = library_dir()
    if folder is None:
        pytest.skip("the CUDA adaptor is not built: it needs a PyTorch with CUDA")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COMMENSAL_RUN", "PYTORCH_"))}
    environment = clean | {"COMMENSAL_TEST_CUDA_LIBRARY_DIR": str(folder)}
    if not ON_GPU:
        environment = simulated(environment, devices)
    with tempfile.TemporaryDirectory(prefix="commensal-test-") as scratch:
        answer = Path(scratch, "facts.json")
        environment |= {"TORCHINDUCTOR_CACHE_DIR": scratch, "OMP_NUM_THREADS": "2"}
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes for one kernel
        if settings:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = settings
        environment |= dict(extra)
        process = forked.start(
            [sys.executable, file, name, who, str(answer)],
            fresh=ON_GPU,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=scratch,
            env=environment,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(6)  # faulthandler prints where every thread is
            output, _ = process.communicate()
            pytest.fail(f"{name} ({who}) not done after {DEADLINE_S:.0f} s:\n{output}")
        assert process.returncode == 0, f"{name} ({who}) ended with {process.returncode}:\n{output}"
        return answer.read_text()


def simulated(environment: dict[str, str], devices: int) -> dict[str, str]:
    """Return the environment of a process on the simulated driver."""
    import run as simulated_cuda

    try:
        return simulated_cuda.environment(environment, {"DEVICES": devices, "MEMORY": 1 << 30})
    except FileNotFoundError as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(
    "name",
    [
        "streams",
        "pools",
        "graphs",
        pytest.param("graph_trees", marks=pytest.mark.soak),
        "out_of_memory",
        "history",
        pytest.param("training", marks=pytest.mark.soak),
        "interface",
        pytest.param("compiled", marks=pytest.mark.soak),
    ],
)
def test_a_script_finds_nothing_changed(name: str) -> None:
    native, ours = run_with("native", "ours", name=name)
    assert ours.pop("served_by_us")
    assert ours == native


def test_two_devices() -> None:
    if ON_GPU:
        pytest.skip("one card")
    native, ours = run_with("native", "ours", name="peers", devices=2)
    assert ours.pop("served_by_us")
    assert ours == native
    assert ours["arrived"] == [1.0]


# What a script sees of its memory that is the same whoever serves it: blocks, their bytes as asked
# for, and everything that the scenarios find out by using them.
COUNTED = ("allocation.all", "requested_bytes.all", "active.all")


def counts(facts: Facts) -> Facts:
    """Return the counts of every note of a scenario."""
    return {
        name: {
            f"{counter}.{kind}": note["stats"][f"{counter}.{kind}"]
            for counter in COUNTED
            for kind in ("current", "peak", "allocated", "freed")
        }
        for name, note in facts.items()
        if isinstance(note, dict) and "stats" in note
    }


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("streams", ["reused_while_pending", "copied", "reused_afterwards"]),
        ("pools", ["pool", "pool_again", "use_count"]),
        ("graphs", ["results"]),
        ("graph_trees", ["shape"]),
        ("training", []),
        ("compiled", ["shape"]),
        ("interface", ["clone", "uncached"]),
    ],
)
def test_elastic_memory_serves_unmodified_scripts(name: str, same: list[str]) -> None:
    native, elastic = run_with("native", "elastic1024", name=name)
    for fact in same:
        assert elastic[fact] == native[fact], fact
    found, expected = counts(elastic), counts(native)
    assert found.keys() == expected.keys()
    for note in expected:
        assert found[note] == expected[note], note


def test_elastic_memory_runs_out_as_pytorchs_own() -> None:
    native, elastic = run_with("native", "elastic1024", name="out_of_memory")
    for facts in (native, elastic):
        assert facts["is_oom"]
        for error in (facts["too_much"], facts["over_fraction"]):
            assert error[0] == "OutOfMemoryError"
            assert error[1].startswith("CUDA out of memory. Tried to allocate ")
        assert len(facts["observed"]) == 2
        assert [seen[:2] for seen in facts["observed"]] == [seen[:2] for seen in native["observed"]]
    assert elastic["fraction"] == native["fraction"]
    assert elastic["retried"]["stats"]["num_ooms"] == 2


def test_elastic_memorys_history_has_its_blocks() -> None:
    facts = run_scenario("history", "elastic1024")
    actions = [entry[0] for entry in facts["trace"]]
    assert [action for action in actions if not action.startswith("segment")] == [
        "alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "oom",
    ]
    stacks = [{name for name, _ in entry[4]} for entry in facts["trace"]]
    assert all("scenario_history" in stack for stack in stacks[:3])
    kept = [json.loads(segment) for segment in facts["segments"]]
    assert sum(segment["requested_size"] for segment in kept) == 4 * MIB
    for segment in kept:
        assert sum(block[0] for block in segment["blocks"]) == segment["total_size"]


def test_live_tensors_leave_the_device_and_come_back() -> None:
    facts = run_scenario("elastic", "elastic1024")
    assert facts["elastic"] == [True] * 16
    assert not facts["captured_elastic"]
    for limit, deferred, device, host, same, replayed in facts["steps"]:
        assert deferred == 0
        assert device <= limit // MIB
        assert device + host >= 64
        assert same
        assert replayed == [3.0]
    assert [step[3] >= 48 for step in facts["steps"]] == [True, False, False, False]
    assert facts["addresses_kept"]
    assert facts["told"][0] == facts["told"][1]
    assert facts["left"] == [0, 0, 0, 0]


def test_above_the_limit_the_slower_tier_serves_and_then_nobody() -> None:
    facts = run_scenario("elastic_pressure", "elastic48")
    device, host = facts["memory"]
    assert device <= 48
    assert device + host >= 96
    assert facts["values"] == [[float(index)] for index in range(24)]
    kind, text = facts["too_much"]
    assert kind == "OutOfMemoryError"
    assert "limit 48 MiB" in text
    assert facts["ooms"] == 1
    assert facts["goes_on"] == 12


@pytest.mark.parametrize("settings", ["backend:native", "expandable_segments:True"])
def test_settings_of_the_allocator(settings: str) -> None:
    native, ours = run_with("native", "ours", name="settings", settings=settings)
    assert ours.pop("served_by_us")
    assert ours == native
    assert ours["backend"] == "native"


def test_streams_wait_for_each_other() -> None:
    facts = run_scenario("streams", "ours")
    assert not facts["reused_while_pending"]
    assert facts["copied"] == [1.0]
    assert facts["reused_afterwards"]


def test_a_foreign_deleter_shown_to_native_corrupts_memory() -> None:
    """Why blocks keep native's deleter: its `recordStream` ignores a block that has another."""
    facts = run_scenario("streams", "swapped")
    assert facts["frees_seen"] > 0
    assert facts["reused_while_pending"]
    assert facts["copied"] == [0.0]  # the copy read what the next owner wrote


@pytest.mark.parametrize(
    "name", ["streams", "graphs", pytest.param("graph_trees", marks=pytest.mark.soak)]
)
def test_a_foreign_deleter_taken_off_for_native_does_no_harm(name: str) -> None:
    native, careful = run_with("native", "careful", name=name)
    assert careful.pop("frees_seen") > 0
    assert native.pop("frees_seen") == 0
    assert careful == native


def test_comes_before_cuda_or_not_at_all() -> None:
    facts = run_scenario("late", "native")
    assert facts["complaint"].startswith("CUDA has been started already")
    assert "\n" not in facts["complaint"]
    assert not facts["served_by_us"]
    assert facts["works"] == WORDS


def test_p38_another_backend_is_refused_with_a_message_and_left_alone() -> None:
    facts = run_scenario("other_backend", "native", settings="backend:cudaMallocAsync")
    assert "'cudaMallocAsync'" in facts["complaint"]
    assert not facts["served_by_us"]
    assert facts["backend"] == "cudaMallocAsync"


def test_a_second_installation_does_nothing() -> None:
    facts = run_scenario("twice", "native")
    assert facts["complaints"] == ["", ""]
    assert facts["served_by_us"]


if __name__ == "__main__":
    main(globals(), *sys.argv[1:])
