# SPDX-License-Identifier: Apache-2.0
"""commensal on a real Slurm cluster of four nodes on this machine, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from world import COMMENSAL, World, wait_until

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "slurm" / "cluster.sh"
COORDINATOR = COMMENSAL.parent / "commensal-coordinator"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
LACKING = [
    name
    for name in ("slurmctld", "slurmd", "munged", "sbatch", "cc")
    if shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}") is None
]
HEADERS = Path("/usr/include/slurm/spank.h")

pytestmark = [
    pytest.mark.skipif(bool(LACKING), reason=f"not installed: {', '.join(LACKING)}"),
    pytest.mark.skipif(not HEADERS.exists(), reason=f"not installed: {HEADERS}"),
]

ENDED = {"finished", "failed", "cancelled", "lost"}
# Trains, and says of what class it is, until it is guaranteed.
TELLS_ITS_CLASS = """
import torch, commensal
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
said = None
while said != "guaranteed":
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    job = commensal.stats()["job"]["class"]
    if job != said:
        said = job
        print("class", said, flush=True)
"""


class Slurm:
    """A cluster with nodes n1..n4 of two made-up GPUs, and a coordinator that speaks to it."""

    def __init__(self, world: World) -> None:
        self.world = world
        # Not in the world's folder: munged wants one that others may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="csl-"))
        self.environ = {
            "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"),
            "HOME": str(world.folder),  # where twins meet
        }

    def call(self, verb: str, *words: str) -> None:
        command = ["bash", str(CLUSTER), verb, str(self.folder), *words]
        path = f"{COMMENSAL.parent}:{os.environ['PATH']}"  # where it finds commensal-slurm-auto
        done = self.world.run(command, **self.environ, PATH=path)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return self.world.run(list(command), **self.environ)

    def coordinate(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [str(COORDINATOR), "--engine", "slurm", "--grace", "5", "--first-retry", "1"]
        command += ["--runtime-dir", str(self.world.runtime_dir)]
        command += ["--state-dir", str(self.world.folder / "state" / "default"), *options]
        return self.run(*command)

    def submit(self, *words: str) -> str:
        done = self.world.commensal("submit", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def shell(self, text: str, *options: str) -> str:
        return self.submit(*options, "--", "/bin/sh", "-c", text)

    def job(self, job: str) -> dict[str, Any]:
        jobs = self.world.ask("queue", all=True)["jobs"]
        return dict(next(entry for entry in jobs if entry["id"] == job))

    def wait(self, job: str, *states: str) -> dict[str, Any]:
        wait_until(f"job {job} is {states}", lambda: self.job(job)["state"] in states)
        return self.job(job)

    def nodes(self) -> dict[str, Any]:
        return self.world.ask("nodes")

    def pid(self) -> int:
        return int(self.nodes()["coordinator"]["pid"])

    def places(self) -> dict[str, str]:
        """Return the node of each of the coordinator's running jobs, as Slurm says it."""
        told = self.run("squeue", "--noheader", "--states=running", "--format=%j|%N").stdout
        pairs = [line.rsplit("|", 1) for line in told.splitlines()]
        return {n.split(":")[2]: node for n, node in pairs if n.startswith("commensal:")}

    def squeue(self, job: str) -> str:
        return self.run("squeue", "--noheader", f"--jobs={job}", "--format=%T %N").stdout.strip()

    def batch(self, *words: str) -> str:
        done = self.run("sbatch", "--parsable", f"--output={self.folder}/log/%j.out", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def close(self) -> None:
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            ours = any(str(self.world.folder) in word for word in words)
            if ours and process.info["name"].startswith("commensal-coor"):
                process.kill()
        try:
            self.call("stop")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def started(world: World, *options: str) -> Iterator[Slurm]:
    slurm = Slurm(world)
    try:
        slurm.call("start", "-n", "4", "-g", "2", "-c", "4", *options)
        yield slurm
    finally:
        slurm.close()


@pytest.fixture
def slurm(world: World) -> Iterator[Slurm]:
    # Long enough for a machine that is busy with other tests.
    with started(world, "-t", "120") as slurm:
        yield slurm


def test_jobs_of_both_classes_and_what_they_print(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    assert [node["name"] for node in slurm.nodes()["nodes"]] == ["n1", "n2", "n3", "n4"]
    doctor = slurm.run(str(COMMENSAL), "doctor", "--cluster", "--json")
    found = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert doctor.returncode == 0, found
    for name in ("engine", "programs", "slurm", "nodes"):
        assert found[name]["state"] == "ok", found[name]
    show = 'echo "$SLURM_JOB_PARTITION on $SLURMD_NODENAME: $CUDA_VISIBLE_DEVICES $1"; exit 3'
    words = ["--", "/bin/sh", "-c", show, "sh", "a $(id) 'b"]
    guaranteed = slurm.submit("--guaranteed", *words)
    assert slurm.wait(guaranteed, *ENDED)["exit_code"] == 3
    opportunistic = slurm.submit("--opportunistic", *words)
    assert slurm.wait(opportunistic, *ENDED)["exit_code"] == 3
    for job, name in ((guaranteed, "guaranteed"), (opportunistic, "opportunistic")):
        [line] = slurm.world.commensal("logs", job).stdout.splitlines()
        assert line.startswith(f"{name} on n") and line.endswith(": 0 a $(id) 'b")


def test_a_gang_on_one_node_has_one_device_a_rank(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    job = slurm.shell(
        "echo $RANK of $WORLD_SIZE: $CUDA_VISIBLE_DEVICES", "--guaranteed", "--gpus=2"
    )
    slurm.wait(job, "finished")
    lines = sorted(slurm.world.commensal("logs", job).stdout.splitlines())
    assert lines == ["[0] 0 of 2: 0", "[1] 1 of 2: 1"]


# Ranks that find each other by torchrun's variables alone, and say who has come. One stays.
MEET = """
import os, signal, socket, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
names = ("NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME")
me = " ".join([str(rank), *(os.environ[name] for name in names)])
if rank == 0:
    came, peers = [me], []
    with socket.create_server(meeting) as server:
        for _ in range(world - 1):
            peers.append(server.accept()[0])
            came.append(peers[-1].makefile().readline().strip())
    print(*sorted(came), *sys.argv[1:], sep="; ", flush=True)
    for peer in peers:
        peer.sendall(b"!")
else:
    while True:
        try:
            peer = socket.create_connection(meeting)
            break
        except ConnectionRefusedError:
            pass
    peer.sendall(f"{me}\\n".encode())
    peer.recv(1)  # until rank 0 has seen all
if "stay" in sys.argv:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
"""


def test_a_gang_on_several_nodes_meets_and_one_rank_lost_ends_all(slurm: Slurm) -> None:
    assert slurm.coordinate("--semantic-retries", "0").returncode == 0
    script = slurm.world.script(MEET)
    words = ["--", sys.executable, script, "a $(id) 'b"]
    job = slurm.submit("--guaranteed", "--gpus=4", *words)
    assert slurm.wait(job, *ENDED)["state"] == "finished", slurm.world.commensal("logs", job).stdout
    nodes = [place["node"] for place in slurm.job(job)["placement"]]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    [line] = slurm.world.commensal("logs", job).stdout.splitlines()
    came = [f"{rank} {rank // 2} {rank % 2} 2 {rank % 2} {nodes[rank]}" for rank in range(4)]
    assert line == "[0] " + "; ".join([*came, "a $(id) 'b"])
    lost = slurm.submit("--opportunistic", "--gpus=3", *words, "stay")
    told = slurm.wait(lost, *ENDED)
    node = told["placement"][1]["node"]
    assert told["reason"].startswith(f"rank 1 was killed by SIGKILL (node {node})"), told
    assert len({place["node"] for place in told["placement"]}) > 1
    wait_until("Slurm has nothing of it", lambda: not slurm.places())


def test_the_least_loaded_node_and_a_guaranteed_job_that_does_not_wait(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    held = [slurm.shell("sleep 1000", "--guaranteed", "--gpus=2") for _ in range(3)]
    for job in held:
        slurm.wait(job, "running")
    guest = slurm.shell("sleep 1000", "--opportunistic")
    slurm.wait(guest, "running")
    places = slurm.places()
    taken = {places[job] for job in held}
    assert len(taken) == 3 and places[guest] not in taken
    assert [place["node"] for place in slurm.job(guest)["placement"]] == [places[guest]]
    # All devices left are those beside the guest: it is in nobody's way.
    last = slurm.shell("sleep 1000", "--guaranteed", "--gpus=2")
    slurm.wait(last, "running")
    assert slurm.places()[last] == places[guest]
    assert slurm.job(guest)["state"] == "running"


def test_a_cancelled_job_may_still_save_its_work(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    job = slurm.shell(
        "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done", "--opportunistic"
    )
    wait_until("it is ready", lambda: "ready" in slurm.world.ask("read_log", id=job)["text"])
    assert slurm.world.commensal("cancel", job).returncode == 0
    assert slurm.wait(job, *ENDED)["state"] == "cancelled"
    lines = slurm.world.commensal("logs", job).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("ready", "saved")
    wait_until("Slurm has nothing of it", lambda: not slurm.places())


def test_a_killed_coordinator_loses_nothing_and_starts_nothing_twice(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    starts = slurm.world.folder / "starts"
    go = slurm.world.folder / "go"
    note = f"echo $COMMENSAL_CLUSTER_JOB >> {starts}"
    stays = slurm.shell(f"{note}; while ! [ -e {go} ]; do sleep 0.1; done", "--guaranteed")
    ends = slurm.shell(f"{note}; while ! [ -e {go}1 ]; do sleep 0.1; done; exit 7")
    for job in (stays, ends):
        slurm.wait(job, "running")
    os.kill(slurm.pid(), signal.SIGKILL)
    Path(f"{go}1").touch()  # it ends while nobody looks
    wait_until("it has left Slurm", lambda: ends not in slurm.places())
    quick = []
    for _ in range(3):  # killed again as soon as it has acknowledged a job
        assert slurm.coordinate().returncode == 0
        quick.append(slurm.shell(note))
        os.kill(slurm.pid(), signal.SIGKILL)
    assert slurm.coordinate().returncode == 0
    assert slurm.wait(ends, *ENDED)["exit_code"] == 7
    assert slurm.job(stays)["state"] == "running"
    go.touch()
    for job in (stays, *quick):
        assert slurm.wait(job, *ENDED)["state"] == "finished", slurm.job(job)
    assert sorted(starts.read_text().split()) == sorted([stays, ends, *quick])


def test_a_restart_of_slurms_controller_harms_no_job(slurm: Slurm) -> None:
    assert slurm.coordinate().returncode == 0
    go = slurm.world.folder / "go"
    job = slurm.shell(f"while ! [ -e {go} ]; do sleep 0.1; done; exit 4", "--guaranteed")
    slurm.wait(job, "running")
    slurm.call("ctl-stop")
    wait_until("the coordinator says so", lambda: slurm.nodes()["coordinator"]["problem"])
    waiting = slurm.shell("exit 5", "--opportunistic")
    said = slurm.job(waiting)["reason"]
    assert said.startswith(("sinfo ", "squeue "))
    assert slurm.job(job)["state"] == "running"
    go.touch()  # what keepers leave is seen without Slurm
    assert slurm.wait(job, *ENDED)["exit_code"] == 4
    slurm.call("ctl-start")
    assert slurm.wait(waiting, *ENDED)["exit_code"] == 5
    assert slurm.nodes()["coordinator"]["problem"] == ""


def test_jobs_run_without_any_coordinator(slurm: Slurm) -> None:
    show = "echo $COMMENSAL_CLASS $SLURM_JOB_PARTITION; sleep 1000"
    guaranteed = slurm.batch("--commensal=guaranteed", "--gres=gpu:2", "-w", "n1", "--wrap", show)
    seat = slurm.batch("--commensal=opportunistic", "--gres=seat:2", "-w", "n1", "--wrap", show)
    for job in (guaranteed, seat):
        wait_until(f"{job} runs", lambda job=job: slurm.squeue(job) == "RUNNING n1")
    for job, name in ((guaranteed, "guaranteed"), (seat, "opportunistic")):
        output = slurm.folder / "log" / f"{job}.out"
        wait_until("it is there", output.exists)
        wait_until("it has said its class", output.read_text)
        assert output.read_text() == f"{name} {name}\n"
    notes = sorted(path.read_text().split()[2] for path in (slurm.folder / "run/jobs").iterdir())
    assert notes == ["class=guaranteed", "class=opportunistic"]
    slurm.run("scancel", guaranteed, seat)
    wait_until("epilogs have run", lambda: not list((slurm.folder / "run/jobs").iterdir()))


# Says what it is, and stays until it is told to end.
STAY = """#!/bin/bash
#SBATCH --commensal=auto
echo $SLURM_JOB_ID $COMMENSAL_CLASS $(srun -n1 printenv COMMENSAL_CLASS) "$@"
while ! [ -e go ]; do sleep 0.1; done
exit 7
"""


def auto(slurm: Slurm, *words: str, stdin: str = "") -> tuple[str, str]:
    """Submit with --commensal=auto; return the ids of the guaranteed twin and of the other."""
    done = slurm.world.run(["sbatch", "--parsable", *words], stdin, **slurm.environ)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0] == "sbatch: --commensal=auto: its twin in a seat:" and len(said) == 2
    return done.stdout.strip(), said[1]


def state(slurm: Slurm, job: str) -> str:
    told = slurm.run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T %N")
    return told.stdout.strip()


def test_of_two_twins_the_guaranteed_one_runs_where_a_device_is_free(slurm: Slurm) -> None:
    script = slurm.world.script(STAY, "stay.sh")
    out = slurm.world.folder / "out.txt"
    words = ["--gpus=1", "--job-name=free", f"--output={out}", script, "a $(id) 'b"]
    first, second = auto(slurm, *words)
    wait_until("it runs", lambda: out.exists() and out.read_text().endswith("'b\n"))
    assert out.read_text() == f"{first} guaranteed guaranteed a $(id) 'b\n"
    wait_until("the other one is gone", lambda: state(slurm, second).startswith("CANCELLED"))
    (slurm.world.folder / "go").touch()
    wait_until("it has ended", lambda: state(slurm, first).startswith("FAILED"))
    assert "ExitCode=7:0" in slurm.run("scontrol", "show", "job", first).stdout
    assert out.read_text().count("\n") == 1
    assert list((slurm.world.folder / ".commensal-slurm").iterdir()) == []


def test_sbatch_refuses_what_a_class_may_not_have(slurm: Slurm) -> None:
    for words, says in (
        (["--commensal=opportunistic", "--gres=gpu:1"], "takes --gres=seat:N, not gpu"),
        (["--commensal=guaranteed", "--gres=seat:1"], "takes --gres=gpu:N"),
        (["--gres=seat:1"], "seat is for --commensal=opportunistic"),
        (["--commensal=auto", "--array=1-2"], "takes no --array: submit its jobs one by one"),
        (["--commensal=auto", "--gres=seat:1"], "a guaranteed job takes --gres=gpu:N"),
        (["--commensal=auto", "--wait"], "--commensal=auto does not go with --wait: say"),
        (["--commensal=auto", ":", "--gres=gpu:1"], "takes no heterogeneous job: say"),
        (["--commensal=sometimes"], "takes guaranteed, opportunistic or auto, not 'sometimes'"),
    ):
        done = slurm.run("sbatch", *words, "--wrap", "true")
        assert done.returncode != 0 and says in done.stderr
    for program in ("srun", "salloc"):
        done = slurm.run(program, "--commensal=auto", "--gres=gpu:1", "true")
        assert done.returncode != 0 and "--commensal=auto is for sbatch: say" in done.stderr
    assert slurm.run("squeue", "--noheader").stdout == ""


def test_without_slurms_programs_it_says_so_and_starts_nothing(world: World) -> None:
    slurm = Slurm(world)
    empty = world.folder / "empty"
    empty.mkdir()
    try:
        assert slurm.coordinate("--slurm-bin", str(empty)).returncode == 0
        problem = slurm.nodes()["coordinator"]["problem"]
        assert problem == f"cannot run {empty}/sinfo: No such file or directory"
        job = slurm.shell("true")
        assert slurm.job(job)["state"] == "queued" and problem in slurm.job(job)["reason"]
    finally:
        os.kill(slurm.pid(), signal.SIGKILL)
        slurm.folder.rmdir()  # no cluster was started in it
    done = slurm.coordinate("--slurm-bin", "/no/such/folder")
    assert done.returncode == 2 and "/no/such/folder" in done.stderr


def test_a_submitted_job_trains_under_commensal(slurm: Slurm) -> None:
    assert slurm.coordinate("--commensal", str(COMMENSAL)).returncode == 0
    script = slurm.world.script(
        """
import torch, commensal
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print("class", commensal.stats()["job"]["class"], flush=True)
"""
    )
    job = slurm.submit("--opportunistic", "--", sys.executable, script)
    assert slurm.wait(job, *ENDED)["state"] == "finished", slurm.world.commensal("logs", job).stdout
    assert "class opportunistic" in slurm.world.commensal("logs", job).stdout


# Fills memory, trains until a file appears, and looks at what it filled.
FILLS = """
import json, os, sys, time, torch, commensal
blocks = [torch.full((2**20,), float(i)) for i in range(int(sys.argv[1]) // 4)]
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("filled", flush=True)
while not os.path.exists(sys.argv[2]):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
whole = all(bool((block == float(i)).all()) for i, block in enumerate(blocks))
print(json.dumps({"whole": whole, "memory": commensal.stats()["memory"]}), flush=True)
"""


def test_an_opportunistic_job_shrinks_when_a_guaranteed_one_arrives(slurm: Slurm) -> None:
    daemon = [str(COMMENSAL.parent / "commensald"), "--idle-exit", "0", "--memory-budget", "256MiB"]
    assert slurm.run(*daemon, "--runtime-dir", str(slurm.world.runtime_dir)).returncode == 0
    assert slurm.coordinate("--commensal", str(COMMENSAL)).returncode == 0
    script, end = slurm.world.script(FILLS), slurm.world.folder / "end"
    fills = [sys.executable, script]

    def submit(job_class: str, mebibytes: int, until: Path) -> str:
        words = [f"--{job_class}", "--", *fills, str(mebibytes), str(until)]
        if job_class == "guaranteed":
            words = ["--memory", "160MiB", *words]
        job = slurm.submit(*words)
        wait_until(
            f"job {job} holds its memory",
            lambda: "filled" in slurm.world.ask("read_log", id=job)["text"],
        )
        return job

    def held(job: str) -> int:
        """Bytes on the device; 0 if the node's coordinator does not answer just now."""
        jobs = slurm.world.status(f"job-{job}.1").get("jobs", [])
        return int(jobs[0]["memory"]["device_bytes"]) if jobs else 0

    guest = submit("opportunistic", 160, end)
    node = slurm.places()[guest]
    wait_until("its node knows", lambda: held(guest) >= 160 << 20)
    for other in slurm.nodes()["nodes"]:
        if other["name"] != node:
            slurm.world.ask("drain", node=other["name"])
    owner = submit("guaranteed", 128, slurm.world.folder / "first")
    assert slurm.places()[owner] == node
    wait_until("it has shrunk", lambda: 0 < held(guest) <= (256 - 160) << 20)
    wait_until("the other one has room", lambda: held(owner) >= 128 << 20)
    assert slurm.job(guest)["state"] == "running"
    (slurm.world.folder / "first").touch()
    assert slurm.wait(owner, *ENDED)["state"] == "finished"
    wait_until("it has its memory back", lambda: held(guest) >= 160 << 20)
    end.touch()
    assert slurm.wait(guest, *ENDED)["state"] == "finished"
    assert slurm.job(guest)["attempt"] == 1
    for job in (owner, guest):
        facts = json.loads(str(slurm.world.ask("read_log", id=job)["text"]).splitlines()[-1])
        assert facts["whole"], job
    assert facts["memory"]["moved_bytes_total"] >= (160 - 96) << 20


def test_an_auto_job_is_upgraded_where_it_runs_when_quota_frees(slurm: Slurm) -> None:
    # As a service would: what a job of Slurm starts ends with that job.
    daemon = [str(COMMENSAL.parent / "commensald"), "--idle-exit", "0"]
    assert slurm.run(*daemon, "--runtime-dir", str(slurm.world.runtime_dir)).returncode == 0
    assert slurm.coordinate("--commensal", str(COMMENSAL)).returncode == 0
    assert slurm.world.commensal("quota", "set", "default", "1").returncode == 0
    first = slurm.shell("sleep 1000", "--guaranteed")
    slurm.wait(first, "running")
    script = slurm.world.script(f"{TELLS_ITS_CLASS}import time\ntime.sleep(1000)\n")
    auto = slurm.submit("--auto", "--", sys.executable, script)
    logs = lambda: slurm.world.ask("read_log", id=auto)["text"]  # noqa: E731
    wait_until("it trains beside others", lambda: "class opportunistic" in logs())
    node = slurm.job(auto)["placement"][0]["node"]
    assert slurm.world.commensal("cancel", first).returncode == 0
    wait_until("it is told to be guaranteed", lambda: "class guaranteed" in logs())
    wait_until("the coordinator knows", lambda: slurm.job(auto)["class"] == "guaranteed")
    told = slurm.job(auto)
    assert (told["state"], told["attempt"]) == ("running", 1)
    shown = "--format=%j|%P|%N|%b"
    lines = slurm.run("squeue", "--noheader", "--states=running", shown).stdout.splitlines()
    [twin] = [line for line in lines if ":guaranteed|" in line]
    assert twin.endswith(f":{auto}:1:guaranteed|guaranteed|{node}|gres:gpu:1")
    assert slurm.world.commensal("cancel", auto).returncode == 0
    slurm.wait(auto, "cancelled")
    left = lambda: slurm.run("squeue", "--noheader", "--states=running").stdout  # noqa: E731
    wait_until("Slurm has its devices back", lambda: not left())


def test_a_twin_in_a_seat_is_upgraded_where_it_runs_without_a_coordinator(slurm: Slurm) -> None:
    # Nodes take their time to end a job: Slurm must not requeue the twin in a seat meanwhile.
    epilog = slurm.folder / "etc" / "commensal-epilog.sh"
    epilog.write_text(epilog.read_text().replace("\nrm ", "\nsleep 3\nrm ", 1))
    daemon = [str(COMMENSAL.parent / "commensald"), "--idle-exit", "0"]
    assert slurm.run(*daemon, "--runtime-dir", str(slurm.world.runtime_dir)).returncode == 0
    hogs = {
        f"n{n}": slurm.batch(
            "--commensal=guaranteed", "--gres=gpu:2", f"--nodelist=n{n}", "--wrap=sleep 1000"
        )
        for n in range(1, 5)
    }
    wait_until("all is taken", lambda: all("RUNNING" in slurm.squeue(job) for job in hogs.values()))
    train = slurm.world.script(TELLS_ITS_CLASS)
    text = f"""#!/bin/bash
#SBATCH --commensal=auto
echo starts as $COMMENSAL_CLASS on $CUDA_VISIBLE_DEVICES
{COMMENSAL} run --quiet --$COMMENSAL_CLASS -- {sys.executable} {train}
exit 7
"""
    out = slurm.world.folder / "out.txt"
    first, second = auto(slurm, "--gres=gpu:1", f"--output={out}", stdin=text)
    wait_until("it trains", lambda: out.exists() and "class opportunistic" in out.read_text())
    [_, node] = slurm.squeue(second).split()
    bound = lambda: slurm.run("scontrol", "show", "job", first).stdout  # noqa: E731
    wait_until("the other one is bound", lambda: f"ReqNodeList={node} " in bound())
    assert slurm.squeue(first) == "PENDING"
    slurm.run("scancel", hogs[node])
    # The script ends once it is guaranteed, and the twin that holds its device ends as it does.
    wait_until("both have ended", lambda: state(slurm, first) == f"FAILED {node}")
    assert state(slurm, second) == f"FAILED {node}"
    assert "ExitCode=7:0" in bound()
    lines = out.read_text().splitlines()
    assert lines == ["starts as opportunistic on 0", "class opportunistic", "class guaranteed"]
    assert list((slurm.world.folder / ".commensal-slurm").iterdir()) == []


def test_a_twin_that_was_requeued_is_taken_over_from(slurm: Slurm) -> None:
    """As a preemption does it; it has begun twice then, one after the other."""
    held = slurm.batch("--commensal=guaranteed", "--gres=gpu:2", "-w", "n2", "--wrap", "sleep 1000")
    wait_until("the device is taken", lambda: slurm.squeue(held) == "RUNNING n2")
    script = slurm.world.script(STAY, "stay.sh")
    out = slurm.world.folder / "out.txt"
    first, second = auto(slurm, "-w", "n2", "--gpus-per-node=1", f"--output={out}", script, "x")
    ran = f"{second} opportunistic opportunistic x\n"
    wait_until("it runs", lambda: out.exists() and out.read_text() == ran)
    assert slurm.run("scontrol", "requeue", second).returncode == 0
    wait_until("it waits", lambda: state(slurm, second).startswith("PENDING"))
    slurm.run("scancel", held)
    wait_until("the other one has it", lambda: out.read_text().endswith(" guaranteed x\n"))
    says = f"commensal: job {second} was requeued, and this one runs the script from its beginning"
    assert out.read_text() == f"{says}\n{first} guaranteed guaranteed x\n"
    assert state(slurm, second).startswith("CANCELLED")


@pytest.mark.alone
def test_a_job_whose_node_dies_is_started_on_another_one(world: World) -> None:
    with started(world, "-t", "5") as slurm:
        assert slurm.coordinate().returncode == 0
        starts = world.folder / "starts"
        job = slurm.shell(f"echo $SLURMD_NODENAME >> {starts}; sleep 1000", "--opportunistic")
        slurm.wait(job, "running")
        wait_until("it has begun", starts.exists)
        [first] = starts.read_text().split()
        slurm.call("node-kill", first)
        wait_until("it runs again", lambda: len(starts.read_text().split()) == 2)
        assert starts.read_text().split()[1] != first
        assert slurm.wait(job, "running")["attempt"] == 2
        told = {node["name"]: node for node in slurm.nodes()["nodes"]}
        assert told[first]["state"] == "down" and told[first]["reason"].startswith("Slurm: ")
