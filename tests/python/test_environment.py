# SPDX-License-Identifier: Apache-2.0
"""A job as environment variables, and which process is what to its job."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from commensal._environment import (
    _COMPILERS_CODE,
    _COMPILERS_FOLDER,
    JobSettings,
    Launch,
    Member,
    check_instance,
    default_runtime_dir,
    member_of,
    new_job_id,
)
from commensal._quantities import MemoryRange, ShareRange
from commensal._terms import JobTerms

TRAIN = ["python", "train.py"]


def test_what_run_writes_the_script_reads() -> None:
    written = JobSettings(
        job_id="train-1",
        name="train",
        job_class="guaranteed",
        tenant="vision",
        terms=JobTerms(
            memory=MemoryRange(1 << 20, 1 << 30),
            share=ShareRange(0.1, 0.7),
            law="duty_cycle",
            slo=0.07,
            idle_class=False,
            affinity=False,
        ),
        elastic_threads=True,
        instance="second",
        runtime_dir=Path("/tmp/x"),
        spill_dir=Path("/var/tmp/y"),
        host_cap_bytes=5 << 30,
        summary_file=Path("/tmp/z"),
        launch=Launch(12, 345.678),
        quiet=True,
        gpu_memory="native",  # a guaranteed job's always is
        memory_policy="elastic",
        ask_wait_ms=1234,
        park_idle_ms=90_000,
        background_rate_bytes=None,
        sample_ops=False,
    )
    assert JobSettings.from_environ(written.to_environ()) == written


def test_an_open_maximum_survives_the_way() -> None:
    terms = JobTerms(memory=MemoryRange(7, None))
    written = JobSettings("a", "a", "guaranteed", terms=terms, runtime_dir=Path("/x"))
    assert JobSettings.from_environ(written.to_environ()).terms == terms


def test_whose_memory_serves_on_gpus_survives_the_way() -> None:
    written = JobSettings("a", "a", "opportunistic", runtime_dir=Path("/x"), gpu_memory="elastic")
    assert JobSettings.from_environ(written.to_environ()) == written
    inner = written.to_environ() | {"COMMENSAL_CLASS": "guaranteed"}
    assert JobSettings.from_environ(inner).gpu_memory == "native"


def test_a_memory_policy_survives_the_way() -> None:
    written = JobSettings(
        "a", "a", "guaranteed", runtime_dir=Path("/x"), memory_policy="antman", ask_wait_ms=0
    )
    assert JobSettings.from_environ(written.to_environ()) == written


def test_a_share_of_the_multiprocessors_survives_the_way() -> None:
    terms = JobTerms(sm_share=0.3)
    written = JobSettings("a", "a", "opportunistic", runtime_dir=Path("/x"), terms=terms)
    assert JobSettings.from_environ(written.to_environ()) == written
    inner = JobSettings("b", "b", "guaranteed", runtime_dir=Path("/x"))
    environ = written.to_environ() | inner.to_environ()  # a job inside of that one
    assert JobSettings.from_environ(environ) == inner


def test_defaults_are_the_harmless_ones() -> None:
    read = JobSettings.from_environ({})
    assert read.job_class == "opportunistic"
    assert read.terms == JobTerms(), "nothing is asked for"
    assert not read.elastic_threads, "it changes results"
    assert not read.quiet
    assert read.gpu_memory == "native"
    assert read.memory_policy == "elastic"
    assert read.ask_wait_ms == 2000
    assert read.park_idle_ms is None
    assert read.background_rate_bytes == 512 << 20
    assert read.sample_ops


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("COMMENSAL_CLASS", "vip"),
        ("COMMENSAL_MEMORY", "2:1"),
        ("COMMENSAL_SHARE", "0:7"),
        ("COMMENSAL_LAW", "chaos"),
        ("COMMENSAL_SM_SHARE", "0"),
        ("COMMENSAL_HOST_CAP", "much"),
        ("COMMENSAL_INSTANCE", "../etc"),
        ("COMMENSAL_LAUNCH", "yesterday"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=variable) as caught:
        JobSettings.from_environ({variable: value})
    assert value.rsplit(":", maxsplit=1)[-1] in str(caught.value)


def test_runtime_dir_follows_the_documented_order() -> None:
    both = {"COMMENSAL_RUNTIME_DIR": "/a", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert default_runtime_dir(both) == Path("/a")
    assert default_runtime_dir({"XDG_RUNTIME_DIR": "/run/user/7"}) == Path("/run/user/7/commensal")
    assert default_runtime_dir({}) == Path(f"/tmp/commensal-{os.geteuid()}")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "x" * 65])
def test_an_instance_name_is_a_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="instance name"):
        check_instance(name)


def test_job_ids_are_short_and_differ() -> None:
    name = "Some très long name of a script, with spaces"
    first, second = new_job_id(name), new_job_id(name)
    assert first != second
    assert len(first) <= 32
    assert first.isascii()
    assert " " not in first
    assert new_job_id("---").startswith("job-")


class TestMember:
    def test_the_first_process_is_main(self) -> None:
        assert member_of({}, 10, TRAIN) == Member("main")

    def test_a_spawned_worker_helps(self) -> None:
        environ = {"COMMENSAL_PRIMARY_PID": "10", "COMMENSAL_PRIMARY_RANK": ""}
        assert member_of(environ, 11, TRAIN).role == "helper"

    def test_the_same_process_after_exec_stays_main(self) -> None:
        environ = {"COMMENSAL_PRIMARY_PID": "10", "COMMENSAL_PRIMARY_RANK": ""}
        assert member_of(environ, 10, TRAIN) == Member("main")

    def test_rank_variables_make_a_rank(self) -> None:
        assert member_of({"RANK": "1", "WORLD_SIZE": "4"}, 12, TRAIN) == Member("rank", 1, 4)

    def test_a_rank_under_an_active_launcher_is_a_rank(self) -> None:
        environ = {"RANK": "0", "WORLD_SIZE": "2", "COMMENSAL_PRIMARY_PID": "10"}
        assert member_of(environ, 12, TRAIN) == Member("rank", 0, 2)

    def test_a_worker_of_a_rank_helps(self) -> None:
        environ = {"RANK": "1", "COMMENSAL_PRIMARY_PID": "12", "COMMENSAL_PRIMARY_RANK": "1"}
        assert member_of(environ, 13, TRAIN).role == "helper"

    @pytest.mark.parametrize(
        "command",
        [
            TRAIN,
            ["python", "-u", "train.py", "-c", "from multiprocessing.spawn import spawn_main"],
            ["python", "-X", "dev", "-Wignore", "-mpkg.train"],
            ["python", "-c", "import train"],
            ["python", "-m", "submitit.core._submit", "folder"],
        ],
    )
    def test_what_a_launcher_that_has_not_trained_starts_is_main(self, command: list[str]) -> None:
        launcher = {"COMMENSAL_PRIMARY_PID": "10", "COMMENSAL_PRIMARY_RANK": ""}
        idle, trains = ({"COMMENSAL_PRIMARY_TRAINS": text} for text in "01")
        assert member_of(launcher | idle, 11, command) == Member("main")
        assert member_of(launcher | trains, 11, command).role == "helper"

    @pytest.mark.parametrize(
        "command",
        [
            ["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(pipe=7)"],
            ["python", "-I", "-c", "from multiprocessing.forkserver import main; main(5)"],
            ["python", "-m", "joblib.externals.loky.backend.popen_loky_posix", "--pipe", "7"],
            ["python", "/v/lib/torch/_inductor/compile_worker/__main__.py", "--kind=fork"],
            ["python", "-c", "\nimport torch\nfrom ctypes import cdll\ncdll.LoadLibrary('x')"],
            ["python", "-m", "torch.distributed.run", "train.py"],
        ],
    )
    def test_a_process_of_a_pool_helps_before_the_first_step_too(self, command: list[str]) -> None:
        launcher = {"COMMENSAL_PRIMARY_PID": "10", "COMMENSAL_PRIMARY_TRAINS": "0"}
        assert member_of(launcher, 11, command).role == "helper"

    def test_the_compilers_processes_are_what_they_were(self) -> None:
        torch = find_spec("torch")
        assert torch is not None and torch.origin is not None
        compiler = Path(torch.origin).parent / "_inductor"
        for file in ("compile_worker/__main__.py", "autotune_process.py"):
            assert _COMPILERS_FOLDER in str(compiler / file) and (compiler / file).is_file()
        assert _COMPILERS_CODE in (compiler / "cpu_vec_isa.py").read_text(encoding="utf-8")

    def test_what_a_rank_starts_helps_before_the_first_step_too(self) -> None:
        environ = {"RANK": "1", "COMMENSAL_PRIMARY_PID": "12", "COMMENSAL_PRIMARY_RANK": "1"}
        idle = {"COMMENSAL_PRIMARY_TRAINS": "0"}
        assert member_of(environ | idle, 13, TRAIN).role == "helper"

    @pytest.mark.parametrize(
        "command",
        [
            ["/v/bin/python", "/v/bin/torchrun", "--nproc-per-node=2", "train.py"],
            ["python", "-u", "-m", "torch.distributed.run", "train.py"],
        ],
    )
    def test_the_agent_of_torchrun_helps(self, command: list[str]) -> None:
        assert member_of({}, 10, command).role == "helper"

    @pytest.mark.parametrize(
        "command",
        [
            ["python", "train.py", "torchrun"],
            ["python", "-m", "pkg", "-m", "torch.distributed.run"],
        ],
    )
    def test_an_argument_makes_no_agent(self, command: list[str]) -> None:
        assert member_of({}, 10, command).role == "main"

    def test_a_rank_that_is_no_number_is_named(self) -> None:
        with pytest.raises(ValueError, match="'first'"):
            member_of({"RANK": "first"}, 10, TRAIN)
