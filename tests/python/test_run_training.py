# SPDX-License-Identifier: Apache-2.0
"""`commensal run` with PyTorch, a real daemon and real jobs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from training import TELL, TRAIN, facts_of
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

from commensal._coordinator import Coordinator
from commensal.cli._launch import may_renice

STEPS = "40"


def status(world: World) -> dict[str, Any]:
    return Coordinator("default", world.runtime_dir).status()


def job_named(world: World, name: str) -> dict[str, Any] | None:
    return next((job for job in status(world)["jobs"] if job["job"]["name"] == name), None)


def start_job(world: World, name: str, *options: str) -> subprocess.Popen[str]:
    """Start a job that trains until the file NAME.stop appears; return when it trains."""
    script = world.script(TRAIN + TELL)
    process = world.start(
        [
            # A machine that is busy with other things would starve the kernel's idle class.
            *(str(COMMENSAL), "run", "--no-idle-class", "--name", name, *options, "--"),
            *(sys.executable, script, STEPS, str(world.folder / f"{name}.stop")),
        ]
    )
    read_line(process, "training")
    return process


def stop_job(world: World, name: str, process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """End such a job in good order; return its facts and its stderr."""
    (world.folder / f"{name}.stop").touch()
    out, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, errors
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    return facts, errors


# As a program does that wants a clean slate for what it starts.
RESETS_HANDLERS = """
import signal, torch, commensal
x = torch.ones(16 << 20)
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_DFL)
ticket = commensal.set_memory_limit("8MiB")
print(bool((x == 1).all()), "the program has changed the handler" in ticket.reason)
"""


def test_law1_a_script_that_resets_all_signal_handlers_lives(world: World) -> None:
    script = world.script(RESETS_HANDLERS)
    done = world.commensal("run", "--name", "resets", "--", sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if "memory in use stays where it is" in line]
    assert len(said) <= 1, done.stderr  # none: it ended before anybody looked


# Prints for how many milliseconds PyTorch's second thread is on a core in the 50 after an op.
AFTER_AN_OP = """
import os, time, torch
torch.set_num_threads(2)
a, b = torch.randn(256, 1024), torch.randn(1024, 512)
def ran():
    return int(open(f"/proc/self/task/{worker}/schedstat").read().split()[0]) / 1e6
begin = set(os.listdir("/proc/self/task"))
a @ b
[worker] = set(os.listdir("/proc/self/task")) - begin
times = []
for _ in range(15):
    a @ b
    before = ran()
    time.sleep(0.05)
    times.append(ran() - before)
print(sorted(times)[7])
"""


@pytest.mark.fresh_process("OpenMP reads its variables when it is loaded")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: OpenMP does not spin long")
def test_c16_no_thread_spins_after_the_ops_of_an_opportunistic_job(world: World) -> None:
    script = world.script(AFTER_AN_OP)

    def after_an_op(**environment: str) -> float:
        command = ("run", "--opportunistic", "--no-idle-class", "--quiet", "--")
        done = world.commensal(*command, sys.executable, script, **environment)
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert after_an_op() < 0.5
    assert after_an_op(GOMP_SPINCOUNT="30000000") > 2.0  # the mechanism off: its user's choice


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What the script tells without commensal."""
    world = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    try:
        return facts_of(world.run([sys.executable, world.script(TRAIN + TELL), STEPS]))
    finally:
        world.close()


@pytest.mark.fresh_process("the whole line once more, as a user has it")
@pytest.mark.parametrize("job_class", ["guaranteed", "opportunistic"])
def test_law1_a_script_is_active_and_computes_what_it_computes_alone(
    world: World, alone: dict[str, Any], job_class: str
) -> None:
    script = world.script(TRAIN + TELL)
    done = world.commensal(
        *("run", f"--{job_class}", "--no-idle-class", "--memory", "1GiB", "--"),
        *(sys.executable, script, STEPS),
    )
    facts = facts_of(done)
    assert facts["active"], done.stderr
    assert not alone["active"]
    assert facts["digest"] == alone["digest"]
    assert facts["loss"] == alone["loss"]
    stats = facts["stats"]
    assert stats["schema"] == 1
    assert stats["job"]["class"] == job_class
    assert stats["job"]["name"] == "script"
    assert stats["job"]["role"] == "main"
    assert stats["step"]["number"] == int(STEPS)
    assert stats["memory"]["live_bytes"] > 0
    assert stats["gate"]["law"] == {"guaranteed": "open", "opportunistic": "gap"}[job_class]
    [daemon] = world.daemons()
    assert stats["job"]["coordinator_pid"] == daemon.pid
    first, last = done.stderr.splitlines()
    assert first.startswith(f"commensal: {job_class}, 1 GiB, gate ")
    assert f"coordinator {daemon.pid}" in first
    assert last.startswith("commensal: ")
    assert "gave back" in last


def test_quiet_means_quiet(world: World) -> None:
    script = world.script(TRAIN + TELL)
    done = world.commensal("run", "--quiet", "--no-idle-class", "--", sys.executable, script, "5")
    assert facts_of(done)["active"]
    assert done.stderr == ""


def test_two_jobs_are_seen_changed_paused_and_resumed(world: World) -> None:
    first = start_job(world, "first", "--guaranteed", "--memory", "64MiB:512MiB")
    second = start_job(world, "second", "--opportunistic", "--memory", "512MiB")
    wait_until("both report", lambda: _reporting(world, "first", "second"))

    reply = json.loads(world.commensal("status", "--json").stdout)
    classes = {job["job"]["name"]: job["job"]["class"] for job in reply["jobs"]}
    assert classes == {"first": "guaranteed", "second": "opportunistic"}
    assert reply["schema"] == 1
    assert reply["coordinator"]["pid"] == world.daemons()[0].pid
    assert reply["devices"][0]["granted_bytes"] <= reply["devices"][0]["capacity_bytes"]
    table = world.commensal("status")
    assert table.returncode == 0
    for word in ("first", "second", "guaranteed", "opportunistic", "slowdown"):
        assert word in table.stdout

    changed = world.commensal("set", "second", "--memory", "128MiB", "--share", "0.5")
    assert changed.returncode == 0, changed.stderr
    assert changed.stdout.startswith("second: ")
    wait_until("limit is 128 MiB", lambda: _memory(world, "second")["limit_bytes"] == 128 << 20)
    # At most: the coordinator gives it less while it slows the first one down.
    wait_until("share is 0.5", lambda: _gate(world, "second")["share"] <= 0.5)

    assert world.commensal("pause", "second").returncode == 0
    wait_until("paused", lambda: _gate(world, "second")["state"] == "paused")
    assert world.commensal("resume", "second").returncode == 0
    wait_until("resumed", lambda: _gate(world, "second")["state"] != "paused")
    told = world.commensal("logs", "second").stdout
    for change in ("limit 128 MiB", "share 0:0.5", "paused", "resumed"):
        assert f": {change} as revision " in told

    unknown = world.commensal("set", "nobody", "--memory", "1GiB")
    assert unknown.returncode == 4
    assert unknown.stderr.startswith("commensal: nobody: refused: no job 'nobody'; there are: ")
    assert unknown.stdout == ""

    nobody = world.commensal("status", "nobody")
    assert nobody.returncode == 4
    assert "no job is called 'nobody'" in nobody.stderr

    facts, errors = stop_job(world, "second", second)
    assert facts["stats"]["memory"]["limit_bytes"] == 128 << 20
    assert "shared " in errors.splitlines()[-1]
    stop_job(world, "first", first)


def _record(world: World, name: str) -> dict[str, Any]:
    record = job_named(world, name)
    assert record is not None
    return record


def _memory(world: World, name: str) -> dict[str, Any]:
    memory: dict[str, Any] = _record(world, name)["memory"]
    return memory


def _gate(world: World, name: str) -> dict[str, Any]:
    gate: dict[str, Any] = _record(world, name)["gate"]
    return gate


def _reporting(world: World, *names: str) -> bool:
    jobs = {job["job"]["name"]: job for job in status(world)["jobs"]}
    return all(jobs.get(name, {}).get("step", {}).get("number") for name in names)


def test_a_killed_job_gives_its_lease_back(world: World) -> None:
    job = start_job(world, "victim", "--guaranteed", "--memory", "64MiB")
    wait_until("reports", lambda: _reporting(world, "victim"))
    assert status(world)["devices"][0]["granted_bytes"] > 0
    job.kill()
    _, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == -signal.SIGKILL
    assert errors.splitlines()[-1].startswith("commensal: ")
    assert "nothing was managed" not in errors
    wait_until("lease is back", lambda: status(world)["devices"][0]["granted_bytes"] == 0)
    record = job_named(world, "victim")
    assert record is None or record["ended"]


def test_law6_a_script_trains_on_when_its_daemon_is_killed(
    world: World, alone: dict[str, Any]
) -> None:
    job = start_job(world, "orphan", "--opportunistic", "--memory", "256MiB")
    wait_until("reports", lambda: _reporting(world, "orphan"))
    [daemon] = world.daemons()
    daemon.kill()
    daemon.wait(DEADLINE)
    facts, _ = stop_job(world, "orphan", job)
    assert facts["digest"] == alone["digest"]
    assert facts["stats"]["step"]["number"] > 0


def test_a_new_daemon_takes_the_jobs_of_a_killed_one_over(world: World) -> None:
    job = start_job(world, "heir", "--opportunistic", "--memory", "256MiB")
    wait_until("reports", lambda: _reporting(world, "heir"))
    [daemon] = world.daemons()
    daemon.kill()
    daemon.wait(DEADLINE)
    # The next `run` starts a new one; its own script needs nothing.
    assert world.commensal("run", "--quiet", "--", "true").returncode == 0
    wait_until("the job is back", lambda: _reporting(world, "heir"))
    assert status(world)["coordinator"]["pid"] != daemon.pid
    stop_job(world, "heir", job)


def test_law6_a_script_trains_without_a_daemon(world: World) -> None:
    world.runtime_dir.write_text("a file where the folder should be")
    script = world.script(TRAIN + TELL)
    done = world.commensal("run", "--no-idle-class", "--", sys.executable, script, STEPS)
    facts = facts_of(done)
    assert facts["active"]
    assert facts["stats"]["job"]["coordinator"] == ""
    assert "no coordinator, the job runs on its own limits: " in done.stderr
    assert f"not a folder (symbolic links are not followed): {world.runtime_dir}" in done.stderr
    assert not world.daemons()


def test_a_spill_folder_that_cannot_be_used_is_told_at_the_start(world: World) -> None:
    script = world.script("import torch")
    done = world.commensal(
        *("run", "--no-idle-class", "--spill-dir", "/no/such/folder", "--", sys.executable, script)
    )
    assert done.returncode == 0
    assert "commensal: note: no slower tier: cannot open a file in /no/such/folder" in done.stderr


def test_law6_a_script_trains_without_a_network(world: World) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or world.run([unshare, "-n", "true"]).returncode != 0:
        pytest.skip("no right to make a network namespace")
    script = world.script(TRAIN + TELL)
    done = world.run(
        [unshare, "-n", str(COMMENSAL), "run", "--guaranteed", "--", sys.executable, script, STEPS]
    )
    assert facts_of(done)["active"]


def test_a_pipe_on_run_ends_with_the_job(world: World) -> None:
    script = world.script("print('done')")
    done = world.run(
        ["/bin/sh", "-c", f"{COMMENSAL} run -- {sys.executable} {script} 2>&1 | cat"]
    )  # would wait for its deadline if the daemon held the pipe
    assert "done\n" in done.stdout
    [daemon] = world.daemons()
    inherited = [os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1, 2)]
    assert not any(target.startswith("pipe:") for target in inherited)


def test_spawned_workers_help_and_are_no_new_job(world: World) -> None:
    script = world.script(
        """
import json, multiprocessing, sys
def work(queue, done):
    import torch, commensal
    queue.put(commensal.stats()["job"]["role"] if commensal.is_active() else "inactive")
    done.wait()
if __name__ == "__main__":
    import torch, commensal
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    worker = context.Process(target=work, args=(queue, done))
    worker.start()
    role = queue.get()
    print("role", role, commensal.stats()["job"]["role"], flush=True)
    sys.stdin.read()
    done.set()
    worker.join()
"""
    )
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--no-idle-class", "--name", "parent", "--"),
            *(sys.executable, script),
        ]
    )
    assert read_line(job, "role") == "role helper main\n"
    wait_until("both are members", lambda: len(_record(world, "parent")["members"]) == 2)
    assert len(status(world)["jobs"]) == 1
    _, errors = job.communicate("", timeout=DEADLINE)
    assert job.returncode == 0, errors
    assert errors.count("opportunistic, ") == 1  # the helper says nothing


DDP = """
import json, os, sys, torch, commensal
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20
stop_file = sys.argv[1]

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((64,), float(index))

def train():
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.Adam(model.parameters())
    ballast = [torch.ones(MIB) for _ in range(24)]  # 4 MiB each
    stop = torch.zeros(1)
    while not stop.item():
        optimizer.zero_grad()
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        stats = commensal.stats()  # the safe point is over
        stop.fill_(float(os.path.exists(stop_file)))
        dist.all_reduce(stop)  # no rank stops before the other
    if "spawn" in sys.argv:
        rows = torch.utils.data.DataLoader(Rows(), num_workers=1, multiprocessing_context="spawn")
        assert sum(float(row.sum()) for row in rows) == 64 * 28.0
    intact = all(bool((tensor == 1).all()) for tensor in ballast)
    line = json.dumps({"intact": intact} | {k: stats[k] for k in ("job", "gate", "memory")})
    os.write(1, (line + "\\n").encode())  # at once: both ranks write into one pipe
    dist.barrier()
    dist.destroy_process_group()
"""
TORCHRUN = (
    DDP
    + """
if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
"""
)
SPAWN = (
    DDP
    + """
def work(rank, folder):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    train()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(os.getcwd(),), nprocs=2)
"""
)


@pytest.mark.parametrize(
    ("launcher", "job_class"),
    [
        ("torchrun", "guaranteed"),
        pytest.param("torchrun", "opportunistic", marks=pytest.mark.soak),
        ("spawn", "opportunistic"),
    ],
)
def test_ranks_are_managed_members_of_one_job(world: World, launcher: str, job_class: str) -> None:
    if launcher == "torchrun":
        command = [str(COMMENSAL.parent / "torchrun"), "--standalone", "--nproc-per-node=2"]
        script, parent = world.script(TORCHRUN), "helper"
    else:
        command, script, parent = [sys.executable], world.script(SPAWN), "main"
    stop = world.folder / "stop"
    job = world.start(
        [
            *(str(COMMENSAL), "run", f"--{job_class}", "--no-idle-class", "--name", "pair"),
            *("--memory", "0:512MiB", "--share", "0:0.9"),
            *("--", *command, script, str(stop), launcher),
        ],
        GLOO_SOCKET_IFNAME="lo",
    )
    roles = sorted([(parent, 0), ("rank", 0), ("rank", 1)])
    wait_until("starts a coordinator", Coordinator("default", world.runtime_dir).listens)
    wait_until("two ranks", lambda: job.poll() is not None or _roles(world, "pair") == roles)
    assert job.poll() is None, job.communicate()[1]
    wait_until("they train", lambda: _reporting(world, "pair"))
    changed = world.commensal("set", "pair", "--memory", "0:96MiB")
    assert changed.returncode == 0, changed.stderr
    wait_until("fits", lambda: _record(world, "pair")["lease"]["held_bytes"] <= 96 << 20)
    stop.touch()
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    ranks = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert sorted(rank["job"]["rank"] for rank in ranks) == [0, 1]
    assert all(rank["intact"] for rank in ranks)
    assert {rank["job"]["role"] for rank in ranks} == {"rank"}
    assert {rank["job"]["class"] for rank in ranks} == {job_class}
    assert {rank["job"]["world_size"] for rank in ranks} == {2}
    # The limit is the job's: its ranks have parts of it, and keep to them.
    memories = [rank["memory"] for rank in ranks]
    assert sum(memory["limit_bytes"] for memory in memories) <= 96 << 20
    for memory in memories:
        held = memory["device_bytes"] + memory["host_touched_bytes"]
        assert held <= memory["limit_bytes"] + memory["deferred_bytes"]
        assert memory["moved_out_bytes_total"] > 0
    # A share below 1 is held by the gate, in each of them.
    assert all(rank["gate"]["ops_seen_total"] > 0 for rank in ranks)
    # Helpers say nothing: neither torchrun's agent nor the loaders' workers.
    assert len(re.findall(rf"{job_class}, .*, gate ", errors)) == roles.count(("main", 0)) + 2
    assert "unmanaged" not in errors


def test_a_spawned_process_that_trains_alone_is_managed(world: World) -> None:
    script = world.script(
        """
import json, multiprocessing, torch
def work():
    import commensal
    before = commensal.stats()["job"]["role"]
    ballast = [torch.ones(1 << 20) for _ in range(48)]  # 4 MiB each
    weight = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.sum().backward()
        optimizer.step()
    stats = commensal.stats()
    assert all(bool((tensor == 1).all()) for tensor in ballast)
    print(json.dumps([before, stats["job"]["role"], stats["step"]["number"], stats["memory"]]))
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    raise SystemExit(worker.exitcode)
"""
    )
    done = world.commensal(
        *("run", "--no-idle-class", "--memory", "160MiB", "--", sys.executable, script)
    )
    assert done.returncode == 0, done.stderr
    before, role, steps, memory = json.loads(done.stdout)
    assert (before, role, steps) == ("helper", "rank", 3)
    # What it had before its first step has gone below its part of the limit.
    assert memory["limit_bytes"] <= 160 << 20
    assert memory["moved_out_bytes_total"] > 0
    held = memory["device_bytes"] + memory["host_touched_bytes"]
    assert held <= memory["limit_bytes"] + memory["deferred_bytes"]


LAUNCHER = """
import subprocess, sys, torch

def start(*arguments):
    subprocess.run([sys.executable, *arguments], check=True)

start(sys.argv[1], "first")
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
start(sys.argv[1], "second")
print("both have ended", flush=True)
sys.stdin.readline()
"""
LAUNCHED = """
import json, os, sys, torch, commensal
ballast = [torch.ones(1 << 20) for _ in range(48)]  # 4 MiB each
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3 if sys.argv[1] == "first" else 0):
    weight.sum().backward()
    optimizer.step()
stats = commensal.stats()
print(json.dumps({"pid": os.getpid(), "role": stats["job"]["role"], "memory": stats["memory"]}))
print(sys.argv[1], "waits", flush=True)
os.read(0, 1)  # no more: the rest is for others
"""


def test_a_launcher_that_imports_torch_hands_the_job_to_its_script(world: World) -> None:
    launched = world.script(LAUNCHED, "launched.py")
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--guaranteed", "--name", "launched", "--memory", "0:160MiB"),
            *("--", sys.executable, world.script(LAUNCHER), launched),
        ]
    )
    assert job.stdin is not None
    first = json.loads(read_line(job, '"role"'))
    read_line(job, "first waits")
    assert first["role"] == "main"
    assert first["memory"]["limit_bytes"] <= 160 << 20
    assert first["memory"]["host_bytes"] > 0

    def tells(pid: int, steps: int) -> bool:
        record = _record(world, "launched")
        return (record["job"]["pid"], record["step"]["number"]) == (pid, steps)

    wait_until("its steps are the job's", lambda: tells(first["pid"], 3))
    assert _roles(world, "launched") == [("main", 0), ("main", 0)]
    job.stdin.write("\n")
    job.stdin.flush()

    # The launcher has made a step of its own by now: what it starts helps it.
    second = json.loads(read_line(job, '"role"'))
    read_line(job, "second waits")
    assert second["role"] == "helper"
    wait_until("the launcher is the job again", lambda: tells(job.pid, 1))
    job.stdin.write("\n")
    job.stdin.flush()
    read_line(job, "both have ended")
    _, errors = job.communicate("\n", timeout=DEADLINE)
    assert job.returncode == 0, errors
    assert errors.count("guaranteed, ") == 2  # the launcher and its first script
    assert "unmanaged" not in errors


def _roles(world: World, name: str) -> list[tuple[str, int]]:
    jobs = world.status().get("jobs", [])
    return sorted(
        (member["role"], member["rank"])
        for job in jobs
        if job["job"]["name"] == name
        for member in job["members"]
    )


def test_the_scripts_threads_idle_and_the_sessions_do_not(world: World) -> None:
    if not may_renice():
        pytest.skip("an ordinary user's job enters the idle class only where it may leave it")
    script = world.script(
        """
import json, os, pathlib
before = os.sched_getscheduler(0) == os.SCHED_IDLE
import torch
torch.ones(300, 300) @ torch.ones(300, 300)
classes = {
    (task / "comm").read_text().strip(): os.sched_getscheduler(int(task.name)) == os.SCHED_IDLE
    for task in pathlib.Path("/proc/self/task").iterdir()
}
print(json.dumps({"before": before, "main": os.sched_getscheduler(0) == os.SCHED_IDLE,
                  "classes": classes}))
"""
    )
    facts = facts_of(world.commensal("run", "--opportunistic", "--", sys.executable, script))
    assert facts["before"]  # the import already
    assert facts["main"]
    own = {name: idle for name, idle in facts["classes"].items() if name.startswith("commensal-")}
    assert own
    assert not any(own.values())


# Waits at a closed gate in forward, backward (which calls no Python) and optimizer alike.
HANDLERS = """
import os, signal, sys, torch
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"seen\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(20)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
print("training", flush=True)
while True:
    optimizer.zero_grad()
    model(torch.randn(16, 32)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def waiting(world: World) -> subprocess.Popen[str]:
    """A job whose main thread waits at the gate: `commensal pause`."""
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--no-idle-class", "--name", "waiting", "--"),
            *(sys.executable, world.script(HANDLERS)),
        ]
    )
    read_line(job, "training")
    wait_until("reports", lambda: _reporting(world, "waiting"))
    assert world.commensal("pause", "waiting").returncode == 0
    wait_until("waits", lambda: _gate(world, "waiting")["ops_gated_total"] > 0)
    return job


def test_ctrl_c_ends_a_job_that_waits_at_the_gate(waiting: subprocess.Popen[str]) -> None:
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=DEADLINE)
    assert waiting.returncode == -signal.SIGINT  # what Python does; a shell shows 130
    assert "KeyboardInterrupt" in errors
    assert "SystemError" not in errors


def test_a_paused_job_runs_its_signal_handlers_and_goes_on_waiting(
    world: World, waiting: subprocess.Popen[str]
) -> None:
    before = _record(world, "waiting")["step"]["number"]
    for _ in range(3):
        waiting.send_signal(signal.SIGUSR1)
        assert read_line(waiting, "seen") == "seen\n"
    assert _record(world, "waiting")["step"]["number"] <= before + 1  # was perhaps on its way
    waiting.send_signal(signal.SIGTERM)  # its handler raises SystemExit
    waiting.communicate(timeout=DEADLINE)
    assert waiting.returncode == 7
