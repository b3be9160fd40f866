# SPDX-License-Identifier: Apache-2.0
"""When commensal's CUDA allocator is installed: the choice, the complaint, and `commensal run`."""

from __future__ import annotations

import sys
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
    ("nodes", "visible", "expected"),
    [
        (("nvidia0", "nvidiactl"), None, True),
        (("nvidia7",), "7", True),
        (("dxg",), None, True),
        (("nvidia0",), "", False),
        (("nvidia0",), "-1", False),
        (("nvidiactl", "nvidia-uvm"), None, False),  # a driver, and no card
        ((), None, False),
    ],
)
def test_a_gpu_is_there_where_a_card_is_visible(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
    visible: str | None,
    expected: bool,
) -> None:
    monkeypatch.setattr(_cuda, "_DRIVER", "libno_such_driver.so.1")
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert _cuda.has_gpu(environ, devices(tmp_path, *nodes)) is expected


def test_a_gpu_is_there_where_its_driver_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "_DRIVER", "libc.so.6")  # any that loads
    assert _cuda.has_gpu({}, tmp_path)
    assert not _cuda.has_gpu({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, tmp_path)


@pytest.mark.parametrize(
    ("cuda", "gpu", "elastic", "words"),
    [
        (None, True, True, "this PyTorch is built without CUDA"),
        (None, True, False, ""),
        ("13.0", False, True, "this process sees no GPU"),
        ("13.0", False, False, ""),
        ("13.0", True, False, "libcommensal_torch_cuda-2.11.so is missing"),
        ("13.0", True, True, "libcommensal_torch_cuda-2.11.so is missing"),
    ],
)
def test_what_serves_is_chosen_and_why_not_is_said_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cuda: str | None,
    gpu: bool,
    elastic: bool,
    words: str,
) -> None:
    monkeypatch.setattr(_cuda, "has_gpu", lambda environ: gpu)
    chosen = _cuda.choose(tmp_path, "2.11.0+cu130", cuda, {}, elastic=elastic)
    assert (chosen.kind, chosen.device, chosen.later_device) == (None, "host", "")
    _cuda.manage(chosen)
    line = capsys.readouterr().err
    assert line.count("\n") == int(bool(words))
    assert words in line
    assert line.startswith(
        "commensal: GPU memory is PyTorch's own, commensal does not" * bool(words)
    )


def test_a_library_that_does_not_load_is_no_disaster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_cuda, "has_gpu", lambda environ: True)
    (tmp_path / "libcommensal_torch_cuda-2.11.so").write_text("no library")
    _cuda.manage(_cuda.choose(tmp_path, "2.11.0+cu130", "13.0", {}, elastic=False))
    assert "libcommensal_torch_cuda-2.11.so" in capsys.readouterr().err


@pytest.mark.parametrize("visible", ["0", ""])
def test_a_script_under_commensal_run(world: World, visible: str) -> None:
    driver = simulated_gpus() | {"COMMENSAL_GPU_MEMORY": "", "CUDA_VISIBLE_DEVICES": visible}
    script = SCRIPT if visible else SCRIPT.replace(".cuda()", "")
    done = world.commensal(
        *("run", "--opportunistic", "--no-idle-class", "--", sys.executable, world.script(script)),
        **driver,
        TEST_LIBRARIES=str(LIBRARIES),
    )
    facts = facts_of(done)
    assert facts["active"], done.stderr
    assert facts["installed"] == int(bool(visible))
    assert facts["values"] == [1.0]
    assert facts["allocated"] == (4096 if visible else 0)
    assert facts["backend"] == "native"
    assert "GPU memory is PyTorch's own" not in done.stderr


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
