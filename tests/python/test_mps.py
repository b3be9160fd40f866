# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS: whether a daemon runs is found out, and who uses it is decided."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World

from commensal._mps import Daemon, find_daemon, held_share, plan_use

RUNS = Daemon(Path("/pipes"), 77)
NONE = Daemon(Path("/pipes"), None, "no MPS control daemon: /pipes/control is missing")
NOWHERE = Path("/run/nowhere")


class Pipes:
    """A pipe directory as a daemon leaves it, and processes as /proc shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "pipes"
        self.processes = folder / "proc"
        self.folder.mkdir()
        os.mkfifo(self.folder / "control")
        self.pid("77\n")
        self.runs("77", "nvidia-cuda-mps")

    def pid(self, text: str) -> None:
        (self.folder / "nvidia-cuda-mps-control.pid").write_text(text)

    def runs(self, pid: str, name: str) -> None:
        (self.processes / pid).mkdir(parents=True, exist_ok=True)
        (self.processes / pid / "comm").write_text(name + "\n")

    def find(self) -> Daemon:
        return find_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(self.folder)}, self.processes)


@pytest.fixture
def pipes(tmp_path: Path) -> Pipes:
    return Pipes(tmp_path)


def test_a_daemon_that_runs_is_found(pipes: Pipes) -> None:
    assert pipes.find() == Daemon(pipes.folder, 77)


def test_its_control_may_be_a_socket(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipes.folder / "control").unlink()
    monkeypatch.chdir(pipes.folder)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as control:
        control.bind("control")
        assert pipes.find().pid == 77


def test_without_a_folder_there_is_none(tmp_path: Path) -> None:
    found = find_daemon({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "no")})
    assert found.pid is None
    assert found.reason == f"no MPS control daemon: {tmp_path}/no/control is missing"


def test_the_default_folder_is_the_drivers() -> None:
    assert find_daemon({}).folder == Path("/tmp/nvidia-mps")
    assert find_daemon({"CUDA_MPS_PIPE_DIRECTORY": ""}).folder == Path("/tmp/nvidia-mps")


def test_a_control_that_is_no_pipe_is_none(pipes: Pipes) -> None:
    (pipes.folder / "control").unlink()
    (pipes.folder / "control").touch()
    assert pipes.find().pid is None
    assert "is no pipe" in pipes.find().reason


@pytest.mark.parametrize("text", ["", "many", "-1", "../1", "7\n7"])
def test_a_file_without_a_process_id_is_none(pipes: Pipes, text: str) -> None:
    pipes.pid(text)
    assert pipes.find().pid is None
    assert "holds no process id" in pipes.find().reason


def test_a_daemon_that_has_died_is_none(pipes: Pipes) -> None:
    pipes.pid("78")
    assert pipes.find().reason == "the MPS control daemon has ended: there is no process 78"


def test_another_process_with_its_number_is_none(pipes: Pipes) -> None:
    pipes.runs("77", "bash")
    assert pipes.find().reason == "the MPS control daemon has ended: process 77 is 'bash'"


def test_an_opportunistic_job_is_a_client_of_low_priority() -> None:
    plan = plan_use("opportunistic", None, None, RUNS, {}, NOWHERE)
    assert plan.variables == {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    plan = plan_use("opportunistic", None, 0.3, RUNS, {}, NOWHERE)
    assert plan.variables == {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    whole = plan_use("opportunistic", None, 1.0, RUNS, {}, NOWHERE)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in whole.variables


def test_what_its_user_has_set_stays() -> None:
    own = {"CUDA_MPS_CLIENT_PRIORITY": "0", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "55"}
    assert plan_use("opportunistic", None, 0.3, RUNS, own, NOWHERE).variables == {}


def test_a_guaranteed_job_stays_out_unless_its_user_asks() -> None:
    plan = plan_use("guaranteed", None, None, RUNS, {}, NOWHERE)
    assert plan.variables == {"CUDA_MPS_PIPE_DIRECTORY": str(NOWHERE)}
    assert "default" in plan.reason
    own = {"CUDA_MPS_PIPE_DIRECTORY": "/pipes"}  # where the daemon was found
    assert plan_use("guaranteed", None, None, RUNS, own, NOWHERE) == plan
    assert plan_use("guaranteed", True, None, RUNS, {}, NOWHERE).variables == {}


def test_no_mps_keeps_an_opportunistic_job_out() -> None:
    plan = plan_use("opportunistic", False, 0.3, RUNS, {}, NOWHERE)
    assert plan.variables == {"CUDA_MPS_PIPE_DIRECTORY": str(NOWHERE)}


@pytest.mark.parametrize("job_class", ["opportunistic", "guaranteed"])
def test_without_a_daemon_nothing_is_set(job_class: str) -> None:
    assert job_class in ("opportunistic", "guaranteed")
    kind = "guaranteed" if job_class == "guaranteed" else "opportunistic"
    plan = plan_use(kind, None, 0.3, NONE, {}, NOWHERE)  # type: ignore[arg-type]
    assert plan.variables == {}
    assert plan.reason == NONE.reason
    assert not plan.unmet
    assert plan_use(kind, True, None, NONE, {}, NOWHERE).unmet  # type: ignore[arg-type]


def test_a_share_that_mps_holds_is_said(pipes: Pipes) -> None:
    environ = {"CUDA_MPS_PIPE_DIRECTORY": str(pipes.folder)}
    assert held_share(environ, pipes.processes) == ""
    environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "30"
    assert "MPS holds it" in held_share(environ, pipes.processes)
    pipes.pid("78")
    assert held_share(environ, pipes.processes) == "", "the daemon is gone, and CUDA goes without"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """Return the pipe directory of a process that has the daemon's name."""
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    folder = tmp_path / "mps"
    folder.mkdir()
    os.mkfifo(folder / "control")
    with subprocess.Popen([str(program), "600"]) as process:
        (folder / "nvidia-cuda-mps-control.pid").write_text(f"{process.pid}\n")
        yield folder
        process.kill()


SHOW = (
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if 'CUDA_MPS' in k}))"
)


def variables_of(world: World, *options: str, **environ: str) -> dict[str, str]:
    done = world.commensal(
        *("run", "--quiet", *options, "--", sys.executable, "-c", SHOW), **environ
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, str] = json.loads(done.stdout)
    return told


def test_commensal_run_puts_jobs_where_they_belong(world: World, daemon: Path) -> None:
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(daemon)}
    told = variables_of(world, "--opportunistic", "--sm-share", "0.25", **pipes)
    assert told == pipes | {
        "CUDA_MPS_CLIENT_PRIORITY": "1",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    told = variables_of(world, "--guaranteed", **pipes)
    assert list(told) == ["CUDA_MPS_PIPE_DIRECTORY"]
    assert find_daemon(told).pid is None, "nothing answers there"
    assert variables_of(world, "--guaranteed", "--mps", **pipes) == pipes


def test_commensal_run_says_that_there_is_no_mps(world: World, tmp_path: Path) -> None:
    done = world.commensal(
        *("run", "--quiet", "--mps", "--", sys.executable, "-c", SHOW),
        CUDA_MPS_PIPE_DIRECTORY=str(tmp_path),
    )
    assert "commensal: MPS is not used: no MPS control daemon" in done.stderr
    assert json.loads(done.stdout) == {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}


def test_doctor_says_whether_mps_runs(world: World, daemon: Path, tmp_path: Path) -> None:
    def line(folder: Path) -> dict[str, str]:
        told = world.commensal("doctor", "--json", CUDA_MPS_PIPE_DIRECTORY=str(folder)).stdout
        [found] = [check for check in json.loads(told)["checks"] if check["name"] == "mps"]
        return dict(found)

    assert line(daemon)["state"] == "ok"
    assert str(daemon) in line(daemon)["detail"]
    assert line(tmp_path) == {
        "name": "mps",
        "state": "off",
        "detail": f"no MPS control daemon: {tmp_path}/control is missing",
    }
