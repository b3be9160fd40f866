# SPDX-License-Identifier: Apache-2.0
"""The cluster's coordinator on one machine, with real processes: submit, queue, logs, cancel."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from world import COMMENSAL, World, read_line, wait_until

COORDINATOR = COMMENSAL.parent / "commensal-coordinator"
SHELL = ["/bin/sh", "-c"]
ENDED = {"finished", "failed", "cancelled", "lost"}


class Cluster:
    """One coordinator with so many devices that share this machine's cores."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start(self, *options: str) -> None:
        command = [str(COORDINATOR), "--runtime-dir", str(self.world.runtime_dir), "--grace", "2"]
        command += ["--state-dir", str(self.world.folder / "state" / "default"), *options]
        done = self.world.run(command)
        assert done.returncode == 0, done.stderr

    def submit(self, *words: str) -> str:
        done = self.world.commensal("submit", *words)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().isdecimal()
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, Any]:
        jobs = self.world.ask("queue", all=True)["jobs"]
        return dict(next(entry for entry in jobs if entry["id"] == job))

    def wait(self, job: str, *states: str) -> dict[str, Any]:
        wait_until(f"job {job} is {states}", lambda: self.job(job)["state"] in states)
        return self.job(job)

    def output(self, job: str) -> list[str]:
        return self.world.commensal("logs", job).stdout.splitlines()

    def pid(self) -> int:
        return int(self.world.ask("nodes")["coordinator"]["pid"])

    def close(self) -> None:
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            ours = any(str(self.world.folder) in word for word in words)
            if ours and process.info["name"].startswith("commensal-"):
                for child in (*process.children(recursive=True), process):
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                        child.kill()


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


@pytest.fixture
def marker(world: World) -> Callable[[str], Path]:
    return lambda name: world.folder / name


def test_submit_prints_the_id_alone_and_starts_the_coordinator(cluster: Cluster) -> None:
    done = cluster.world.commensal("submit", "--", *SHELL, "echo here; exit 3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    job = cluster.wait("1", *ENDED)
    assert (job["state"], job["exit_code"], job["name"]) == ("failed", 3, "sh")
    assert cluster.output("1") == ["here"]
    assert psutil.Process(cluster.pid()).name().startswith("commensal-coord")


def test_a_submitted_job_trains_under_commensal(cluster: Cluster) -> None:
    script = cluster.world.script(
        """
import torch, commensal
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
print("class", commensal.stats()["job"]["class"], commensal.stats()["job"]["id"], flush=True)
"""
    )
    job = cluster.submit("--opportunistic", "--name", "small", "--", sys.executable, script)
    assert cluster.wait(job, *ENDED)["state"] == "finished", cluster.output(job)
    assert f"class opportunistic job-{job}.1" in cluster.output(job)


def test_arguments_environment_and_folder_arrive_as_they_are(cluster: Cluster) -> None:
    show = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.getcwd())"
    words = ["a b", "$(id)", "'quoted\"", "*"]
    job = cluster.submit(
        *("--env", "GREETING=good day", "--chdir", "/"),
        *("--", sys.executable, "-c", show, *words),
    )
    cluster.wait(job, "finished")
    assert cluster.output(job) == [f"{words} good day /"]


def test_a_gang_has_one_rank_a_device(cluster: Cluster) -> None:
    cluster.start("--devices", "2")
    show = (
        "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['LOCAL_RANK'])"
    )
    job = cluster.submit("--gpus", "2", "--", sys.executable, "-c", show)
    cluster.wait(job, "finished")
    assert sorted(cluster.output(job)) == ["[0] 0 2 0", "[1] 1 2 1"]


def test_a_job_beyond_its_quota_waits_and_is_told_why(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    cluster.start("--devices", "2")
    assert cluster.world.commensal("quota", "set", "vision", "1").returncode == 0
    wait_for = f"while [ ! -e {marker('go')} ]; do sleep 0.05; done"
    first = cluster.submit("--tenant", "vision", "--guaranteed", "--", *SHELL, wait_for)
    second = cluster.submit("--tenant", "vision", "--guaranteed", "--", *SHELL, "true")
    cluster.wait(first, "running")
    job = cluster.wait(second, "queued")
    assert "1 of 1 in use, it asks for 1" in job["reason"]
    shown = cluster.world.commensal("queue").stdout
    assert "running (guaranteed)" in shown
    assert "quota" in shown
    marker("go").touch()
    cluster.wait(second, "finished")
    told = cluster.world.commensal("explain", second).stdout
    for state in ("submitted", "queued", "starting", "running", "finished"):
        assert state in told


def test_who_waits_is_told_until_when(cluster: Cluster, marker: Callable[[str], Path]) -> None:
    wait_for = f"while [ ! -e {marker('go')} ]; do sleep 0.05; done"
    first = cluster.submit("--guaranteed", "--time", "3h", "--", *SHELL, wait_for)
    second = cluster.submit("--guaranteed", "--", *SHELL, "true")
    cluster.wait(first, "running")
    cluster.wait(second, "queued")
    assert "estimate" not in cluster.job(first)
    estimate = cluster.job(second)["estimate"]
    assert 10_000_000 < estimate["starts_in_ms"] <= 3 * 3_600_000
    shown = " ".join(cluster.world.commensal("queue").stdout.split())
    assert "in about 3 h" in shown
    marker("go").touch()
    cluster.wait(second, "finished")


def test_another_policy_is_asked_about_the_cluster_as_it_is(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    cluster.start("--devices", "2")
    wait_for = f"while [ ! -e {marker('go')} ]; do sleep 0.05; done"
    runs = cluster.submit("--guaranteed", "--gpus", "2", "--", *SHELL, wait_for)
    cluster.wait(runs, "running")
    waits = cluster.submit("--guaranteed", "--", *SHELL, "true")
    cluster.wait(waits, "queued")
    told = cluster.world.commensal("state")
    state = json.loads(told.stdout)
    assert [job["phase"] for job in state["jobs"]] == ["running", "queued"]
    assert len(state["nodes"][0]["devices"]) == 2
    marker("s.json").write_text(told.stdout)
    plan = cluster.world.commensal(
        "explain", "--state", str(marker("s.json")), "--policy", "fifo", "--json"
    )
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)
    assert planned["goes_on"] == [runs]
    assert planned["waits"] == [waits]
    marker("go").touch()
    cluster.wait(waits, "finished")


def test_a_copy_of_the_store_is_a_store(cluster: Cluster) -> None:
    job = cluster.submit("--", *SHELL, "true")
    cluster.wait(job, "finished")
    done = cluster.world.commensal("backup")
    assert done.returncode == 0, done.stderr
    copy = Path(done.stdout.strip())
    assert copy.parent.name == "backups"
    assert copy.stat().st_mode & 0o077 == 0
    pid = cluster.pid()
    later = cluster.submit("--", *SHELL, "true")
    cluster.wait(later, "finished")
    os.kill(pid, signal.SIGTERM)
    wait_until("is gone", lambda: not psutil.pid_exists(pid))
    store = copy.parent.parent / "cluster.db"
    copy.replace(store)
    store.with_name("cluster.db-wal").unlink(missing_ok=True)
    cluster.start()
    told = json.loads(cluster.world.commensal("queue", "--all", "--json").stdout)
    assert [(entry["id"], entry["state"]) for entry in told["jobs"]] == [(job, "finished")]


def test_a_failure_that_a_program_calls_passing_is_tried_again(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    cluster.start("--first-retry", "0.1", "--retries", "2")
    script = f"echo x >>{marker('tries')}; exit 75"
    job = cluster.submit("--", *SHELL, script)
    wait_until("it has failed for good", lambda: cluster.job(job)["attempt"] == 3)
    assert cluster.wait(job, "failed")["exit_code"] == 75
    assert marker("tries").read_text() == "x\n" * 3
    told = cluster.world.commensal("explain", job).stdout
    assert "infrastructure failure" in told
    assert "2 of 2" in told


def test_cancel_ends_what_waits_and_what_runs(cluster: Cluster) -> None:
    runs = cluster.submit("--guaranteed", "--", *SHELL, "trap '' TERM; while :; do sleep 1; done")
    waits = cluster.submit("--guaranteed", "--", *SHELL, "true")
    cluster.wait(runs, "running")
    assert cluster.world.commensal("cancel", waits).stdout == f"job {waits}: cancelled\n"
    assert cluster.world.commensal("cancel", runs).stdout == f"job {runs}: is asked to end\n"
    cluster.wait(runs, "cancelled")
    again = cluster.world.commensal("cancel", runs)
    assert again.returncode == 4
    assert "has ended: cancelled" in again.stderr


def test_jobs_survive_a_killed_coordinator(cluster: Cluster, marker: Callable[[str], Path]) -> None:
    wait_for = f"echo begun; while [ ! -e {marker('go')} ]; do sleep 0.05; done; echo over"
    runs = cluster.submit("--guaranteed", "--", *SHELL, wait_for)
    waits = cluster.submit("--guaranteed", "--", *SHELL, "echo next")
    cluster.wait(runs, "running")
    before = cluster.pid()
    os.kill(before, signal.SIGKILL)
    wait_until("is gone", lambda: not psutil.pid_exists(before))
    marker("go").touch()
    third = cluster.submit("--", *SHELL, "true")  # starts the next coordinator
    for job in (runs, waits, third):
        assert cluster.wait(job, *ENDED)["state"] == "finished"
    assert cluster.pid() != before
    assert cluster.output(runs) == ["begun", "over"]
    assert cluster.output(waits) == ["next"]


@pytest.mark.parametrize("command", ["queue --all", "logs 1", "page"])
def test_a_command_brings_a_killed_coordinator_back(cluster: Cluster, command: str) -> None:
    cluster.start()
    cluster.submit("--", *SHELL, "echo done")
    cluster.wait("1", *ENDED)
    before = cluster.pid()
    psutil.Process(before).kill()
    wait_until("the coordinator is gone", lambda: not psutil.pid_exists(before))
    done = cluster.world.commensal(*command.split())
    assert done.returncode == 0, done.stderr
    assert "coordinator" not in done.stderr
    assert cluster.pid() != before
    assert cluster.job("1")["state"] == "finished"


def test_one_that_was_asked_to_end_stays_so_and_what_starts_it_is_said(cluster: Cluster) -> None:
    cluster.start()
    cluster.submit("--", *SHELL, "true")
    pid = cluster.pid()
    psutil.Process(pid).terminate()
    wait_until("the coordinator is gone", lambda: not psutil.pid_exists(pid))
    for command in ("queue", "nodes", "cancel 1"):
        done = cluster.world.commensal(*command.split())
        assert done.returncode == 3
        assert "'commensal-coordinator' starts it again (instance default)" in done.stderr
    for command in ("explain 1", "logs 1", "resume 1"):
        done = cluster.world.commensal(*command.split())
        assert done.returncode == 4
        assert done.stderr.count("\n") == 1
        assert "'commensal-coordinator' starts it again (instance default)" in done.stderr


def test_logs_follow_a_job_until_its_end(cluster: Cluster, marker: Callable[[str], Path]) -> None:
    job = cluster.submit(
        "--", *SHELL, f"echo one; while [ ! -e {marker('go')} ]; do sleep 0.05; done; echo two"
    )
    reader = cluster.world.start([str(COMMENSAL), "logs", job, "-f"])
    assert read_line(reader, "one") == "one\n"
    marker("go").touch()
    assert read_line(reader, "two") == "two\n"
    assert reader.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--tenant", "visoin", "--", "true"], 4, 'unknown tenant "visoin"'),
        (["--gpus", "64", "--", "true"], 4, "asks for 64 devices and the cluster has 1"),
        (["--cpus", "1e4", "--", "true"], 4, "asks for 10000 cores on each node"),
        (["--", "train-nowhere"], 2, "command not found: 'train-nowhere'"),
        (["--", sys.executable, "/nowhere/train.py"], 2, "no such file: '/nowhere/train.py'"),
        (["--memory", "lots", "--", "true"], 2, "'lots'"),
        (["--share", "2", "--", "true"], 2, "'2'"),
        (["--env", "1=2", "--", "true"], 2, "'1=2'"),
        (["--time", "soon", "--", "true"], 2, "'soon'"),
        (["--after", "77", "--", "true"], 4, '"77"'),
        (["--chdir", "/nowhere", "--", "true"], 2, "/nowhere"),
        (["--guaranteed", "--auto", "--", "true"], 2, "exclude each other"),
        (["--", sys.executable, "a\x1b[2J.py"], 2, "no such file"),
        (["--", "/bin/sh", "-m", "a\x07"], 4, "the name of a job holds no control characters"),
    ],
)
def test_a_wrong_submission_names_the_value_and_queues_nothing(
    cluster: Cluster, words: list[str], code: int, said: str
) -> None:
    done = cluster.world.commensal("submit", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    if code == 4:
        assert json.loads(cluster.world.commensal("queue", "--json").stdout) == {"jobs": []}


def test_a_script_that_another_job_is_to_write_may_be_missing(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    script = marker("made.py")
    first = cluster.submit("--", *SHELL, "exit 3")
    job = cluster.submit("--after", first, "--", sys.executable, str(script))
    ended = cluster.wait(job, *ENDED)
    assert (ended["state"], ended["reason"]) == (
        "cancelled",
        f"job {first}, which it was to follow, is failed",
    )


def test_a_number_that_nobody_submitted_is_named(cluster: Cluster) -> None:
    cluster.start()
    for words in (["explain", "99"], ["logs", "99"], ["resume", "99"]):
        done = cluster.world.commensal(*words)
        assert done.returncode == 4, words
        assert "no job 99 was submitted" in done.stderr, words
    done = cluster.world.commensal("explain", "sweep")
    assert done.returncode == 3, "no number: a job of 'run', of whose coordinator there is none"
    assert "'commensal run' starts a coordinator" in done.stderr


def test_of_a_job_that_has_printed_nothing_it_is_said(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    wait_for = f"while [ ! -e {marker('go')} ]; do sleep 0.05; done"
    runs = cluster.submit("--guaranteed", "--", *SHELL, wait_for)
    waits = cluster.submit("--guaranteed", "--", *SHELL, "true")
    cluster.wait(runs, "running")
    for job, state in ((runs, "running"), (waits, "queued")):
        done = cluster.world.commensal("logs", job)
        said = f"commensal: job {job} has printed nothing yet: it is {state}\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, "", said)
    marker("go").touch()
    followed = cluster.world.commensal("logs", waits, "--follow", "--json")
    said = f"commensal: job {waits} has printed nothing: it is finished\n"
    assert (followed.returncode, followed.stdout, followed.stderr) == (0, "", said)


def test_numbers_below_zero_are_wrong_values_and_no_unknown_options(cluster: Cluster) -> None:
    cluster.start()
    done = cluster.world.commensal("cancel", "-1")
    assert (done.returncode, done.stderr) == (4, 'commensal: unknown job "-1"\n')
    quotas = cluster.world.commensal("tenants", "--json").stdout
    assert cluster.world.commensal("quota", "set", "vision", "-1").returncode == 2
    assert cluster.world.commensal("tenants", "--json").stdout == quotas


def test_an_instance_may_be_named_by_its_variable(cluster: Cluster) -> None:
    """Else `submit` starts another coordinator than the one that was meant, and says nothing."""
    world, trial = cluster.world, {"COMMENSAL_INSTANCE": "trial"}
    command = [str(COORDINATOR), "--state-dir", str(world.folder / "state" / "trial")]
    assert world.run(command, **trial).returncode == 0
    assert world.commensal("queue", **trial).stdout == "no jobs\n"
    assert world.commensal("queue").returncode == 3, "there is no other one"
    named = world.run([*command, "--instance", "trial"], COMMENSAL_INSTANCE="other")
    assert named.returncode == 3, "it runs already: the option counts"
    wrong = world.run(command, COMMENSAL_INSTANCE="a/b")
    assert wrong.returncode == 2 and "a/b" in wrong.stderr
    daemon = [str(COMMENSAL.parent / "commensald"), "--idle-exit", "0"]
    assert world.run(daemon, **trial).returncode == 0
    pid = int((world.runtime_dir / "trial.lock").read_text())
    assert psutil.Process(pid).name() == "commensald"
    psutil.Process(pid).kill()


def test_a_tenant_that_a_quota_makes_is_said_to_be_new(cluster: Cluster) -> None:
    cluster.start()
    said = [cluster.world.commensal("quota", "set", "vison", "2").stdout for _ in range(2)]
    assert said == ["tenant vison: quota 2 (a new tenant)\n", "tenant vison: quota 2\n"]


def test_without_a_coordinator_the_others_say_so(cluster: Cluster) -> None:
    for words in (["queue"], ["nodes"], ["tenants"], ["cancel", "1"], ["drain", "n1"]):
        done = cluster.world.commensal(*words)
        assert done.returncode == 3, words
        assert "'commensal submit' starts a coordinator" in done.stderr


def test_a_drained_machine_is_given_no_jobs(cluster: Cluster) -> None:
    cluster.start()
    node = json.loads(cluster.world.commensal("nodes", "--json").stdout)["nodes"][0]["name"]
    cluster.world.commensal("drain", node, "--reason", "new disk")
    job = cluster.submit("--", *SHELL, "true")
    assert "no node" in cluster.wait(job, "queued")["reason"]
    assert "new disk" in cluster.world.commensal("nodes").stdout
    cluster.world.commensal("undrain", node)
    cluster.wait(job, "finished")


def test_an_auto_job_is_upgraded_where_it_runs(
    cluster: Cluster, marker: Callable[[str], Path]
) -> None:
    cluster.start("--devices", "2", "--commensal", str(COMMENSAL))
    cluster.world.commensal("quota", "set", "vision", "1")
    script = cluster.world.script(
        f"""
import os, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("trains", os.getpid(), flush=True)
while not os.path.exists({str(marker("stop"))!r}):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""
    )
    wait_for = f"while [ ! -e {marker('go')} ]; do sleep 0.05; done"
    first = cluster.submit("--tenant", "vision", "--guaranteed", "--", *SHELL, wait_for)
    cluster.wait(first, "running")
    auto = cluster.submit("--tenant", "vision", "--auto", "--", sys.executable, script)
    wait_until("trains", lambda: any("trains" in line for line in cluster.output(auto)))
    assert cluster.job(auto)["class"] == "opportunistic"
    marker("go").touch()
    wait_until("guaranteed", lambda: cluster.job(auto).get("class") == "guaranteed")
    job = cluster.wait(auto, "running")
    assert job["attempt"] == 1, "without a restart"
    status = json.loads(cluster.world.commensal("status", "--json").stdout)
    seen = {entry["job"]["id"]: entry["job"]["class"] for entry in status["jobs"]}
    assert seen[f"job-{auto}.1"] == "guaranteed"
    marker("stop").touch()
    assert cluster.wait(auto, *ENDED)["state"] == "finished"


def test_several_nodes_on_one_machine(cluster: Cluster) -> None:
    folders = {name: cluster.world.folder / name for name in ("n1", "n2")}
    daemon = str(COMMENSAL.parent / "commensald")
    try:
        for folder in folders.values():
            folder.mkdir(mode=0o700)
            done = cluster.world.run([daemon, "--runtime-dir", str(folder), "--idle-exit", "0"])
            assert done.returncode == 0, done.stderr
        words = [word for name in folders for word in ("--node", f"{name}={folders[name]}")]
        cluster.start("--commensal", str(COMMENSAL), *words)
        assert cluster.world.commensal("drain", "n1").returncode == 0
        show = "import os; print(*(os.environ[f'COMMENSAL_{name}'] for name in "
        show += "('CLUSTER_NODE', 'RUNTIME_DIR', 'CLASS')))"
        job = cluster.submit("--opportunistic", "--", sys.executable, "-c", show)
        cluster.wait(job, *ENDED)
        assert cluster.output(job) == [f"n2 {folders['n2']} opportunistic"]
        told = json.loads(cluster.world.commensal("nodes", "--json").stdout)["nodes"]
        assert {node["name"]: node["state"] for node in told} == {"n1": "drained", "n2": "up"}
    finally:
        for folder in folders.values():
            with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                psutil.Process(int((folder / "default.lock").read_text())).kill()


def test_wrong_nodes_are_named(cluster: Cluster) -> None:
    for words, message in (
        (["--node", "n1"], 'a node is NAME=FOLDER, not "n1"'),
        (["--node", "n1=/no/such"], "the folder of node n1 is not there: /no/such"),
    ):
        done = cluster.world.run([str(COORDINATOR), "--check-config", *words])
        assert done.returncode == 2
        assert done.stderr == f"commensal-coordinator: {message}\n"
