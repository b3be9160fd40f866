# SPDX-License-Identifier: Apache-2.0
"""`commensal explain --state`: the plan that a policy makes of a state that was written down."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_status import job, machine

COMMENSAL = Path(sys.executable).with_name("commensal")

State = dict[str, Any]


def explain(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMENSAL, "explain", *arguments], capture_output=True, text=True, check=False
    )


def a_state() -> State:
    devices = [{"id": "GPU-0"}, {"id": "GPU-1"}]
    return {
        "now": 600,
        "nodes": [{"name": "n0", "devices": devices}],
        "jobs": [
            {
                **{"id": "long", "phase": "running", "gpus": 2, "submit": 0, "attained": 600},
                "duration": 90000,
                "placement": [{"node": "n0", "device": device["id"]} for device in devices],
            },
            {"id": "late", "submit": 500, "gpus": 1, "duration": 60},
        ],
    }


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return write(tmp_path, a_state())


def write(folder: Path, content: State) -> Path:
    path = folder / "state.json"
    path.write_text(json.dumps(content))
    return path


def test_a_plan_is_shown_with_its_reasons(state: Path) -> None:
    done = explain("--state", state, "--policy", "srtf")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "1 jobs run, 1 wait, 2 devices on 1 nodes" in lines[0]
    assert any("long" in line and "stop" in line for line in lines)
    assert any("late" in line and "n0: GPU-0" in line and "60 s" in line for line in lines)


def test_who_waits_and_who_goes_on_is_said(state: Path) -> None:
    done = explain("--state", state, "--policy", "fifo")
    assert done.returncode == 0, done.stderr
    assert "it changes nothing" in done.stdout
    assert "go on: long" in done.stdout
    assert "wait on: late" in done.stdout


def test_a_gang_that_fits_on_neither_gpus_nor_cores_is_told_of(tmp_path: Path) -> None:
    content = a_state()
    content["nodes"].append({"name": "c0", "devices": [{"id": "host", "type": "cpu"}]})
    content["jobs"][1]["gpus"] = 3
    done = explain("--state", write(tmp_path, content), "--policy", "fifo")
    assert done.returncode == 0, done.stderr
    assert (
        "late never fits: the job asks for 3 devices, all GPUs or none, and the cluster has 2 GPUs "
        "and 1 nodes' cores"
    ) in done.stdout


@pytest.mark.parametrize("arguments", [["--json"], ["--json", "-"]])
def test_json_is_alone_on_stdout(state: Path, arguments: list[str]) -> None:
    done = explain("--state", state, "--policy", "srtf", *arguments)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [d["action"] for d in told["plan"]["decisions"]] == ["stop", "start"]
    assert told["state"]["kind"] == "cluster"
    assert all(decision["reason"] for decision in told["plan"]["decisions"])


def test_options_go_to_the_policy(state: Path) -> None:
    # With so high a first limit `long` is in the first queue, and came earlier.
    stopped = explain("--state", state, "--policy", "las", "--option", "first-limit=60", "--json")
    kept = explain("--state", state, "--policy", "las", "--option", "first-limit=6000", "--json")
    assert [d["job"] for d in json.loads(stopped.stdout)["plan"]["decisions"]] == ["long", "late"]
    assert json.loads(kept.stdout)["goes_on"] == ["long"]


def test_the_status_of_a_node_is_a_state(tmp_path: Path) -> None:
    status = machine(job("prod", "guaranteed"), job("sweep"), job("over", ended=True))
    path = write(tmp_path, status)
    done = explain("--state", path, "--policy", "antman", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["state"]["kind"] == "node"
    assert told["goes_on"] == ["prod-1234abcd", "sweep-1234abcd"]
    assert told["plan"]["decisions"] == []
    assert "no duration is stated" in told["assumed"][0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "srtff"], "did you mean srtf?"),
        (["--policy", "fifo", "--option", "tipes=aware"], "did you mean types?"),
        (["--policy", "fifo", "--option", "types"], "--option is not name=value: types"),
        (["--policy", "gavel"], "needs throughputs by GPU type"),
        ([], "--policy NAME"),
        (["job", "--policy", "fifo"], "a job of a live coordinator: job"),
        (["--policy", "fifo", "--last", "3m"], "of a live coordinator only"),
    ],
)
def test_wrong_options_are_named(state: Path, arguments: list[str], said: str) -> None:
    done = explain("--state", state, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_without_a_state_a_job_is_needed() -> None:
    for arguments, said in (([], "--state FILE"), (["--policy", "fifo"], "--state FILE")):
        done = explain(*arguments)
        assert done.returncode == 2
        assert said in done.stderr


def test_a_bad_state_is_named_by_place_key_and_value(tmp_path: Path) -> None:
    content = a_state()
    content["jobs"][0]["placement"][1]["device"] = "GPU-7"
    path = write(tmp_path, content)
    done = explain("--state", path, "--policy", "fifo")
    assert done.returncode == 2
    for part in (str(path), "jobs[0].placement[1]", "device", '"GPU-7"'):
        assert part in done.stderr
    path.write_text("{")
    assert "is not JSON" in explain("--state", path, "--policy", "fifo").stderr
    done = explain("--state", tmp_path / "absent.json", "--policy", "fifo")
    assert done.returncode == 2
    assert "absent.json" in done.stderr


def test_a_state_that_is_no_file_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    done = explain("--state", tmp_path / "none.json", "--policy", "srtf")
    assert done.returncode == 2
    assert done.stderr == f"commensal: {tmp_path / 'none.json'}: no such file\n"
    done = explain("--state", tmp_path, "--policy", "srtf")
    assert done.returncode == 2
    assert done.stderr.startswith(f"commensal: {tmp_path}: not a regular file")
