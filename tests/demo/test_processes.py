# SPDX-License-Identifier: Apache-2.0
"""The demo's processes: a job that fails says why, one that runs is ended, time is counted."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from commensal.demo.processes import (
    CpuSampler,
    DemoError,
    Job,
    examples_folder,
    plain_environment,
    program,
)

ONE_STEP = '{"time": 1.0, "step": 0, "seconds": 0.5, "wait_seconds": 0.0, "batch": 1, "loss": "x"}'


def script(folder: Path, text: str) -> list[str]:
    """Write a script that gets its log as argument 2 and its result as argument 4."""
    path = folder / "script.py"
    path.write_text(f"import os, sys, time\nlog, result = sys.argv[2], sys.argv[4]\n{text}\n")
    return [str(path)]


def wait_for(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    why = r"(?s)g job ended with exit code 1.*no digits here"
    job = Job("g", script(tmp_path, "sys.exit('no digits here')"), tmp_path)
    with job, pytest.raises(DemoError, match=why):
        job.record()


def test_a_job_without_a_result_fails(tmp_path: Path) -> None:
    job = Job("g", script(tmp_path, "pass"), tmp_path)
    with job, pytest.raises(DemoError, match="ended with exit code 0"):
        job.record()


def test_a_job_gives_its_steps_and_its_hash(tmp_path: Path) -> None:
    text = (
        f"open(log, 'w').write('{ONE_STEP}\\n'); open(result, 'w').write('{{\"sha256\": \"ab\"}}')"
    )
    with Job("g", script(tmp_path, text), tmp_path) as job:
        record = job.record()
    assert (len(record.steps), record.sha256, job.steps_done()) == (1, "ab", 1)


def test_a_running_job_is_stopped_with_what_it_did(tmp_path: Path) -> None:
    text = f"f = open(log, 'w', buffering=1); f.write('{ONE_STEP}\\n'); time.sleep(600)"
    with Job("o", script(tmp_path, text), tmp_path) as job:
        wait_for(lambda: job.steps_done() == 1)
        record = job.stop()
    assert len(record.steps) == 1
    assert record.sha256 == ""
    assert not job.running()


def test_leaving_the_block_ends_the_job(tmp_path: Path) -> None:
    with Job("o", script(tmp_path, "time.sleep(600)"), tmp_path) as job:
        assert job.running()
    assert not job.running()


def test_plain_jobs_are_no_jobs_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMMENSAL_RUN", "1")
    monkeypatch.setenv("OTHER", "kept")
    assert "COMMENSAL_RUN" not in plain_environment()
    assert plain_environment()["OTHER"] == "kept"


def test_the_sampler_counts_what_a_process_runs(tmp_path: Path) -> None:
    with Job(
        "busy", script(tmp_path, "open(log, 'w').write('x')\nwhile True: pass"), tmp_path
    ) as job:
        wait_for(job.log.exists)
        samples = CpuSampler({"busy": job.pid}).run(0.3)
    used = [sample.cpu_seconds for sample in samples]
    assert used == sorted(used)
    assert used[-1] > used[0]


def test_the_sampler_survives_the_end_of_a_process(tmp_path: Path) -> None:
    with Job("brief", script(tmp_path, "time.sleep(600)"), tmp_path) as job:
        sampler = CpuSampler({"brief": job.pid, "self": os.getpid()})
    assert {sample.job for sample in sampler.run(0.02)} == {"brief", "self"}


def test_the_example_scripts_are_found() -> None:
    assert (examples_folder() / "char_transformer.py").exists()


def test_a_program_is_beside_this_interpreter_or_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "commensald"
    place.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program("commensald") == str(Path(sys.executable).parent / "commensald")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert program("commensald") == str(place)
    assert program("another") == "/nowhere/another"
