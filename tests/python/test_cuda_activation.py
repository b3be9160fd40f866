# SPDX-License-Identifier: Apache-2.0
"""When commensal's CUDA allocator is installed: the choice, the complaint, and `commensal run`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from simulated_gpus import simulated_gpus
from training import facts_of
from world import World

from commensal import _cuda
from commensal._activation import LIBRARIES

pytestmark = pytest.mark.fresh_process("how commensal comes into a process")

SCRIPT = """
import ctypes, glob, json, os, torch
block = torch.ones(1000).cuda()
[library] = glob.glob(os.path.join(os.environ["TEST_LIBRARIES"], "libcommensal_torch_cuda-*.so"))
import commensal
print(json.dumps({
    "active": commensal.is_active(),
    "installed": ctypes.CDLL(library).commensal_torch_cuda_is_installed(),
    "values": block.cpu().unique().tolist(),
    "allocated": torch.cuda.memory_allocated(),
    "backend": torch.cuda.memory.get_allocator_backend(),
}))
"""


def devices(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("choice", "cuda", "nodes", "expected"),
    [
        ("", "13.0", ("nvidia0", "nvidiactl"), True),
        ("auto", "13.0", ("nvidia7",), True),
        ("auto", "13.0", ("dxg",), True),
        ("auto", "13.0", ("nvidiactl", "nvidia-uvm"), False),  # a driver, and no card
        ("auto", "13.0", (), False),
        ("auto", None, ("nvidia0",), False),
        ("0", "13.0", ("nvidia0",), False),
        ("1", "13.0", (), True),
        ("elastic", "13.0", (), True),
    ],
)
def test_is_wanted_where_there_is_a_card(
    tmp_path: Path, choice: str, cuda: str | None, nodes: tuple[str, ...], expected: bool
) -> None:
    environ = {"COMMENSAL_CUDA_ALLOCATOR": choice} if choice else {}
    assert _cuda.wanted(cuda, environ, devices(tmp_path, *nodes)) is expected


@pytest.mark.parametrize(
    ("environ", "cuda", "words"),
    [
        ({"COMMENSAL_CUDA_ALLOCATOR": "yes"}, "13.0", "not auto, 0, 1 or elastic: 'yes'"),
        ({"COMMENSAL_CUDA_ALLOCATOR": "1"}, None, "this PyTorch is built without CUDA"),
        ({"COMMENSAL_CUDA_ALLOCATOR": "elastic"}, None, "is elastic, and this PyTorch is built"),
        ({"COMMENSAL_CUDA_ALLOCATOR": "1"}, "13.0", "libcommensal_torch_cuda-2.11.so is missing"),
    ],
)
def test_says_in_one_line_why_not(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    environ: Mapping[str, str],
    cuda: str | None,
    words: str,
) -> None:
    _cuda.manage_cuda(tmp_path, "2.11.0+cu130", cuda, environ)
    line = capsys.readouterr().err
    assert line.startswith("commensal: GPU memory is PyTorch's own")
    assert words in line
    assert line.count("\n") == 1


def test_a_library_that_does_not_load_is_no_disaster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "libcommensal_torch_cuda-2.11.so").write_text("no library")
    _cuda.manage_cuda(tmp_path, "2.11.0+cu130", "13.0", {"COMMENSAL_CUDA_ALLOCATOR": "1"})
    assert "libcommensal_torch_cuda-2.11.so" in capsys.readouterr().err


def test_says_nothing_where_it_is_not_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _cuda.manage_cuda(tmp_path, "2.11.0+cpu", None, {})
    _cuda.manage_cuda(tmp_path, "2.11.0+cu130", "13.0", {"COMMENSAL_CUDA_ALLOCATOR": "0"})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("choice", ["1", "0"])
def test_a_script_under_commensal_run(world: World, choice: str) -> None:
    driver = simulated_gpus() | {"COMMENSAL_CUDA_ALLOCATOR": choice}
    script = world.script(SCRIPT)
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--", sys.executable, script),
        **driver,
        TEST_LIBRARIES=str(LIBRARIES),
    )
    facts = facts_of(done)
    assert facts["active"], done.stderr
    assert facts["installed"] == int(choice)
    assert facts["values"] == [1.0]
    assert facts["allocated"] == 4096
    assert facts["backend"] == "native"
    assert "GPU memory is PyTorch's own" not in done.stderr


def test_elastic_memory_is_not_offered_where_it_cannot_be_had(tmp_path: Path) -> None:
    asked = {"COMMENSAL_CUDA_ALLOCATOR": "elastic"}
    assert _cuda.offer_cuda(tmp_path, "2.11.0", "13.0", asked) == "host"  # no library
    assert _cuda.offer_cuda(tmp_path, "2.11.0", None, asked) == "host"
    assert _cuda.offer_cuda(LIBRARIES, "2.11.0", "13.0", {}) == "host"
    (tmp_path / "libcommensal_torch_cuda-2.11.so").write_text("no library")
    assert _cuda.offer_cuda(tmp_path, "2.11.0", "13.0", asked) == "host"


# Trains on a GPU whose kernels do nothing; what it has copied there must stay.
ELASTIC = """
import json, time, torch, commensal
values = [torch.full((1 << 20,), float(index)) for index in range(16)]
tensors = [value.cuda() for value in values]
addresses = [tensor.data_ptr() for tensor in tensors]
weight = torch.nn.Parameter(torch.zeros(16, device="cuda"))
weight.grad = torch.zeros(16, device="cuda")
optimizer = torch.optim.SGD([weight], lr=0.0)
def memory():
    told = commensal.stats()["memory"]
    return {name: told[f"{name}_bytes"] >> 20 for name in ("device", "host", "live")}
def same():
    return all(torch.equal(t.cpu(), v) for t, v in zip(tensors, values))
optimizer.step()
facts = {"before": memory()}
patience = time.monotonic() + 60  # a busy machine may need several safe points for it
while True:
    ticket = commensal.set_memory_limit("16MiB")
    if not ticket.deferred_bytes or time.monotonic() > patience:
        break
facts["shrunk"] = memory()
facts["deferred"] = ticket.deferred_bytes
facts["same"] = [same()]
optimizer.step()
commensal.set_memory_limit("512MiB")
patience = time.monotonic() + 60  # until the coordinator has granted it
while memory()["host"] and time.monotonic() < patience:
    time.sleep(0.05)
    optimizer.step()
facts["grown"] = memory()
facts["same"].append(same())
facts["kept"] = addresses == [tensor.data_ptr() for tensor in tensors]
facts["allocated"] = torch.cuda.memory_allocated() >> 20
facts["free"] = torch.accelerator.memory.get_memory_info()[1] >> 20
on_host = torch.ones(1 << 20)
facts["after_host"] = memory()["live"]
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    facts["error"] = str(error).splitlines()[0]
print(json.dumps(facts))
"""


def test_a_jobs_gpu_memory_shrinks_and_grows_under_commensal_run(world: World) -> None:
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--memory", "0:512MiB"),
        *("--", sys.executable, world.script(ELASTIC)),
        **simulated_gpus(MEMORY=1 << 30),
    )
    facts = facts_of(done)
    assert "GPU memory is PyTorch's own" not in done.stderr
    assert facts["before"]["device"] >= 64
    assert facts["before"]["host"] == 0
    assert facts["deferred"] == 0
    assert facts["shrunk"]["device"] <= 16
    assert facts["shrunk"]["host"] >= 48
    assert facts["grown"]["host"] == 0
    assert facts["same"] == [True, True]
    assert facts["kept"]
    assert facts["allocated"] == 64
    assert facts["free"] == 512  # the device is seen through the limit
    assert facts["after_host"] == facts["before"]["live"]  # memory of the host is not counted
    assert facts["error"].startswith("CUDA out of memory. Tried to allocate 32768.00 GiB")
    assert "limit 512 MiB" in facts["error"]
