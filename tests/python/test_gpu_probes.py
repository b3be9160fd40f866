# SPDX-License-Identifier: Apache-2.0
"""The GPU probes without a GPU: their words, their exit codes, and all questions simulated."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tool("tests/gpu", "tests/simulated_cuda")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "simulated_cuda"))

# Need nothing that the simulated driver does not do.
WITHOUT_KERNELS = {
    "memory-5.4.1b",
    "memory-5.4.2",
    "memory-5.4.6",
    "memory-5.4.7",
    "memory-5.4.8",
    "memory-5.3.host",
    "memory-5.3.vmm",
    "memory-5.3.access",
    "memory-5.3.copies",
    "memory-5.3.pinning",
    "compute-9.4",
    "compute-9.11",
}

# What the next steps of the design wait for: asked before all else, should the time be short.
FIRST = [
    "memory-5.4.7",
    "memory-5.3.host",
    "memory-5.3.access",
    "compute-9.11",
    "compute-9.10",
    "compute-9.6c",
    "compute-9.12",
    "memory-5.4.6",
    "memory-5.3.staging",
    "memory-5.4.8",
    "compute-9.13",
]


@pytest.fixture(scope="module")
def program() -> Path:
    if named := os.environ.get("COMMENSAL_TEST_GPU_PROBES"):
        return Path(named)
    built = sorted(
        (ROOT / "build").glob("*/tests/gpu/probes/commensal-gpu-probes"),
        key=lambda path: path.stat().st_mtime,
    )
    if not built:
        pytest.skip("the GPU probes are not built: they need CUDA's headers")
    return built[-1]


def compiler_folder() -> str:
    """Return the folder of NVRTC beside PyTorch; empty where there is none."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    folders = Path(spec.origin).parents[1].glob("nvidia/cu*/lib")
    return next((str(folder) for folder in folders if list(folder.glob("libnvrtc.so*"))), "")


def simulated(**settings: object) -> dict[str, str]:
    import run as simulated_cuda

    try:
        environ = simulated_cuda.environment(None, settings)
    except FileNotFoundError as reason:
        pytest.skip(str(reason))
    del environ["LD_PRELOAD"]  # the runtime; the probes use the driver alone
    environ["LD_LIBRARY_PATH"] += ":" + compiler_folder()
    return environ


def ask(
    program: Path, *arguments: str, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *arguments],
        env=None if environ is None else dict(environ),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def answers(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    return {probe["id"]: probe for probe in report["probes"]} | {"report": report}


def test_without_a_driver_it_says_so_in_one_sentence(program: Path) -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        done = ask(program)
        assert done.returncode == 3
        assert done.stdout == ""
        assert done.stderr.startswith("commensal-gpu-probes: no CUDA driver here: ")
        assert done.stderr.count("\n") == 1
    else:
        pytest.skip("there is a CUDA driver here")


def test_without_a_device_it_says_so_too(program: Path) -> None:
    done = ask(program, environ=simulated() | {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [["--only"], ["--only", "memory-0"], ["--deadline", "soon"], ["--deadline", "-1"], ["--what"]],
)
def test_wrong_usage_is_code_2(program: Path, arguments: list[str]) -> None:
    done = ask(program, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("commensal-gpu-probes: ")


def test_lists_each_question_once(program: Path) -> None:
    lines = ask(program, "--list").stdout.splitlines()
    ids = [line.split()[0] for line in lines]
    assert len(ids) == len(set(ids)) == 31
    assert ids[: len(FIRST)] == FIRST
    assert set(ids) >= WITHOUT_KERNELS
    assert all(line.endswith("?") for line in lines)
    assert "exit code" in ask(program, "--help").stdout


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_kernels_compile_without_a_gpu(program: Path, architecture: str) -> None:
    if not (folder := compiler_folder()):
        pytest.skip("no NVRTC beside PyTorch")
    done = ask(program, "--compile-kernels", architecture, environ={"LD_LIBRARY_PATH": folder})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1000


@pytest.mark.slow
def test_all_questions_on_the_simulated_driver(program: Path) -> None:
    done = ask(program, environ=simulated(MEMORY=1 << 30))
    assert done.returncode == 0, done.stdout + done.stderr
    answered = answers(done)
    report = answered.pop("report")
    assert report["simulated"] is True
    assert report["schema"] == 1
    assert report["device"]["memory_bytes"] == 1 << 30
    assert report["driver"]["cuda_version"] >= 13000
    for name, probe in answered.items():
        assert probe["status"] in ("answered", "answered_in_part", "not_run"), probe
        assert (probe["status"] == "answered") == ("reason" not in probe)
        if name in WITHOUT_KERNELS:
            assert probe["status"] == "answered", probe
        if probe["status"] != "not_run":
            assert probe["facts"] or probe["figures"], probe
        for figure in probe["figures"].values():
            assert figure["n"] == 0 or figure["min"] <= figure["median"] <= figure["max"]
    on_host = answered["memory-5.4.3"]["facts"]
    assert on_host["host_numa_device_pointer"] == "same"
    assert on_host["host_numa_copies_right"]
    assert on_host["host_numa_cpu_reads"]
    graph = answered["memory-5.4.4"]["facts"]
    assert graph["copy_node_on_host_chunk"]
    assert graph["copy_node_back_on_device"]
    assert answered["memory-5.4.1b"]["facts"]["2_mib_comes_as_zeros"]
    counted = answered["memory-5.4.6"]["facts"]
    made = counted["device_made_mib"]
    assert counted["device_taken_from_the_card_mib"] == made
    assert counted["device_counted_for_the_process_mib"] == made
    assert counted["device_given_back_to_the_card_mib"] == made
    assert counted["host_numa_taken_from_the_card_mib"] == 0  # as the simulation has it
    assert counted["host_numa_counted_for_the_process_mib"] == 0
    assert answered["compute-9.4"]["figures"]["write_to_reader_in_another_process"]["n"] > 10
    assert answered["compute-9.12"]["status"] == "answered_in_part"
    gates = answered["compute-9.12"]["facts"]
    for stream in ("own_stream", "legacy_stream", "graph"):
        assert gates[f"{stream}_holds_while_closed"]
        assert gates[f"{stream}_does_all_in_the_end"]
        assert answered["compute-9.12"]["figures"][f"{stream}_open_to_work_begun"]["n"] == 30
    waits = answered["memory-5.4.7"]["figures"]
    assert waits["making_256_mib"]["n"] == waits["registering_256_mib"]["n"] == 6
    assert waits["other_process_launch_undisturbed"]["n"] > 10
    assert waits["other_process_allocation_undisturbed"]["n"] > 10
    calls = answered["memory-5.3.host"]["figures"]
    assert calls["create_call_16_mib_by_8_threads"]["n"] == 3 * 8 * 4
    at_once = answered["memory-5.3.access"]["figures"]
    assert {f"unmap_of_{n}_chunks_in_one_call" for n in (4, 16, 64)} <= set(at_once)
    events = answered["compute-9.11"]["figures"]
    assert {f"record_of_the_context_with_{n}_busy_streams" for n in (4, 32, 128)} <= set(events)


def test_what_the_driver_refuses_is_an_answer(program: Path) -> None:
    environ = simulated(HOST_HANDLES=0)
    ids = ["memory-5.4.3", "memory-5.4.2", "memory-5.4.4"]
    done = ask(program, *(word for name in ids for word in ("--only", name)), environ=environ)
    assert done.returncode == 0, done.stderr
    answered = answers(done)
    for name in ids:
        assert "CUDA_ERROR_NOT_SUPPORTED" in answered[name]["facts"]["host_numa_refused"]
        assert answered[name]["status"] == "answered_in_part"
    assert answered["memory-5.4.3"]["facts"]["device_create"] == "allowed"


def test_a_chunk_that_was_handed_over_stays_when_its_maker_releases_it(
    program: Path, tmp_path: Path
) -> None:
    environ = simulated(MEMORY=1 << 30, LEDGER=tmp_path / "ledger")
    done = ask(program, "--only", "memory-5.4.8", environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    probe = answers(done)["memory-5.4.8"]
    assert probe["status"] == "answered"
    facts = probe["facts"]
    assert facts["each_sees_what_the_other_writes"]
    assert facts["content_stays_when_the_maker_releases"]
    assert facts["host_numa_import"] == "allowed"
    assert facts["free_when_the_maker_has_released_mib"] == 0
    assert facts["free_when_both_have_released_mib"] == facts["exported_mib"] == 16 * 2 + 8 * 16
    assert probe["figures"]["import_2_mib"]["n"] == 16


def test_a_second_process_that_fails_says_why(program: Path) -> None:
    environ = simulated(FAIL="cuMemImportFromShareableHandle:1:CUDA_ERROR_NOT_SUPPORTED")
    done = ask(program, "--only", "memory-5.4.8", environ=environ)
    assert done.returncode == 4
    reason = answers(done)["memory-5.4.8"]["reason"]
    assert reason == "cuMemImportFromShareableHandle: CUDA_ERROR_NOT_SUPPORTED"
    environ = simulated(FAIL="cuMemFree:4:CUDA_ERROR_UNKNOWN")
    done = ask(program, "--only", "memory-5.4.7", environ=environ)
    assert done.returncode == 4
    assert "cuMemFree: CUDA_ERROR_UNKNOWN" in answers(done)["memory-5.4.7"]["reason"]


def test_a_call_that_must_work_and_fails_is_code_4(program: Path) -> None:
    environ = simulated(FAIL="cuMemMap:3:CUDA_ERROR_UNKNOWN")
    done = ask(program, "--only", "memory-5.3.vmm", "--only", "memory-5.4.4", environ=environ)
    assert done.returncode == 4
    answered = answers(done)
    assert answered["memory-5.3.vmm"]["status"] == "failed"
    assert answered["memory-5.3.vmm"]["reason"] == "cuMemMap: CUDA_ERROR_UNKNOWN"
    assert "memory-5.4.4" in answered  # the next question is asked all the same


def test_a_question_that_hangs_ends_at_its_deadline(program: Path) -> None:
    environ = simulated(COPY_BYTES_PER_SECOND=1000)
    done = ask(program, "--only", "memory-5.3.copies", "--deadline", "2", environ=environ)
    assert done.returncode == 4
    probe = answers(done)["memory-5.3.copies"]
    assert probe["status"] == "failed"
    assert probe["reason"] == "not done within 2 s"


def test_no_question_takes_more_than_half_of_the_free_memory(program: Path) -> None:
    environ = simulated(MEMORY=96 << 20)
    done = ask(program, "--only", "memory-5.3.vmm", "--only", "memory-5.3.access", environ=environ)
    assert done.returncode == 0, done.stderr
    answered = answers(done)
    free = answered["report"]["device"]["memory_free_bytes"]
    sizes = [int(n.split("_")[1]) for n in answered["memory-5.3.vmm"]["figures"] if "create" in n]
    assert max(sizes) << 20 <= free // 2
    assert answered["memory-5.3.access"]["status"] == "not_run"  # it wants 128 MiB
    assert "half of the memory that was free" in answered["memory-5.3.access"]["reason"]


def test_the_script_names_its_stages(tmp_path: Path) -> None:
    script = ROOT / "tests" / "gpu" / "run_all.sh"
    environ = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        [str(script), "no-such-stage"], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "build probes adaptor" in done.stderr
    done = subprocess.run([str(script), "--help"], capture_output=True, text=True, check=True)
    assert "Exit code" in done.stdout


def test_a_dry_run_without_a_driver_is_refused(tmp_path: Path) -> None:
    script = ROOT / "tests" / "gpu" / "run_all.sh"
    environ = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable}
    done = subprocess.run(
        [str(script), "--simulated", str(tmp_path)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"no simulated driver (libcuda.so.1) in '{tmp_path}'" in done.stderr


# Stands for the compiler: an object is empty, and made of its source alone.
COMPILER = """#!/bin/sh
for source; do
  [ "$before" = -o ] && object=$source
  [ "$before" = -MF ] && told=$source
  before=$source
done
: >"$object" && echo "x.o: $source" >"$told"
"""


def test_a_bundle_has_what_a_bare_machine_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    (tmp_path / "g++").write_text(COMPILER)
    (tmp_path / "g++").chmod(0o755)
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "Python.h").touch()
    done = subprocess.run(
        [str(ROOT / "tests" / "gpu" / "bundle.sh"), str(folder)],
        env=os.environ
        | {
            "PYTHON": sys.executable,
            "CXX": str(tmp_path / "g++"),
            "BUILD": str(tmp_path / "compiled"),
            "PYTHON_HEADERS": str(tmp_path / "headers"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "no wheels of" in done.stderr or "no dpkg here" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    told = json.loads((folder / "bundle.json").read_text())
    assert told["packages"]["libzmq3-dev"]
    assert any(name.startswith("pytest-") for name in told["wheels"])
    for header in ("zmq.h", "zmq.hpp", "spdlog/spdlog.h", "nlohmann/json.hpp", "gtest/gtest.h"):
        assert (folder / "include" / header).is_file(), header
    for library in ("libzmq.so.5", "libfmt.so", "libgmock_main.a", "libbenchmark.so"):
        assert (folder / "lib" / library).exists(), library
    needs = subprocess.run(
        ["ldd", str(folder / "lib" / "libzmq.so.5")],
        env=os.environ | {"LD_LIBRARY_PATH": str(folder / "lib")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "not found" not in needs
    assert str(folder / "lib" / "libsodium.so.23") in needs
    assert sum(path.stat().st_size for path in folder.rglob("*")) < 48 << 20
    assert (folder / "python" / "Python.h").is_file()
    missing = [line for line in told["missing"] if line.startswith(("some objects", "headers"))]
    if missing and "no CUDA headers" in missing[0]:
        pytest.skip(missing[0])
    assert missing == []
    objects = {path.parent.name for path in (folder / "objects").glob("*/*.cpp.o")}
    assert {"probes", "allocator", "memory", "rules", "runtime", "node", "keys"} <= objects
    assert "core.cpython-312-x86_64-linux-gnu.so" in objects


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (None, "no bundle.json in '{folder}'"),
        ("{", "no bundle.json in '{folder}'"),
        ('{"python": "3.9"}', "'{folder}' is for Python 3.9, this is {python}: make it with"),
    ],
)
def test_a_folder_that_is_no_bundle_for_this_python_is_named(
    tmp_path: Path, told: str | None, words: str
) -> None:
    if told is not None:
        (tmp_path / "bundle.json").write_text(told)
    script = ROOT / "tests" / "gpu" / "run_all.sh"
    environ = os.environ | {"OUT": str(tmp_path), "PYTHON": sys.executable, "BUNDLE": str(tmp_path)}
    done = subprocess.run([str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    python = "{}.{}".format(*sys.version_info)
    assert words.format(folder=tmp_path, python=python) in done.stderr
