# SPDX-License-Identifier: Apache-2.0
"""Real PyTorch jobs under `commensal run` that behave as no job should, and stopped processes.

The same without PyTorch, with more cases: tests/faults/jobs_test.cpp and kill_test.cpp.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
from training import TELL, TRAIN, facts_of
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

from commensal._coordinator import Coordinator

STEPS = "20"
MIB = 1 << 20

# Holds a tensor with a known content and never ends a step.
NEVER_STEPS = """
import sys, time, torch
kept = torch.arange(16 << 20)
print("lives", flush=True)
while True:
    time.sleep(0.1)
    if not torch.equal(kept, torch.arange(16 << 20)):
        sys.exit("content lost")
    print("content is right", flush=True)
"""

# Holds the MiB of argument 1 and works on all of them; at a line it says whether they are right.
HOLDS = """
import sys, threading, torch, commensal
pieces = [torch.zeros(1 << 18) for _ in range(int(sys.argv[1]))]
print("holds", flush=True)
steps, asked = 0, threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), asked.set()), daemon=True).start()
while not asked.is_set():
    for piece in pieces:
        piece.add_(1)
    steps += 1
    commensal.step()
print("right", all(bool((piece == steps).all()) for piece in pieces), flush=True)
"""

# In the middle of its second step it leaves without a word, or becomes the program of argument 1.
LEAVES = """
import os, sys, torch
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 256)).sum().backward()
optimizer.step()
model(torch.randn(8, 256)).sum().backward()
print("leaves", flush=True)
sys.stdin.readline()
if len(sys.argv) > 1:
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
os._exit(7)
"""

# Writes the number of its step over and over, and trains until it is killed.
COUNTS = """
import os, sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
print("training", flush=True)
step = 0
while True:
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    step += 1
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(str(step))
    os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


def run_job(world: World, name: str, *options: str) -> subprocess.Popen[str]:
    """Start a job; what follows "--" in the options is Python's command line."""
    at = options.index("--")
    return world.start(
        [
            *(str(COMMENSAL), "run", "--no-idle-class", "--name", name, *options[:at], "--"),
            *(sys.executable, *options[at + 1 :]),
        ]
    )


def live_job(world: World, name: str) -> dict[str, Any] | None:
    jobs: list[dict[str, Any]] = Coordinator("default", world.runtime_dir).status()["jobs"]
    return next((job for job in jobs if job["job"]["name"] == name and not job["ended"]), None)


@pytest.fixture(scope="module")
def alone() -> str:
    """The digest of the weights that training without commensal ends with."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("COMMENSAL_")}
    command = [sys.executable, "-c", TRAIN + TELL, STEPS]
    done = subprocess.run(
        command, env=clean | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    digest: str = facts_of(done)["digest"]
    return digest


def expect_a_job_works(world: World, alone: str) -> None:
    """The retry: training under the same daemon gives the numbers that it gives alone."""
    script = world.script(TRAIN + TELL, "retry.py")
    done = world.commensal("run", "--no-idle-class", "--", sys.executable, script, STEPS)
    facts = facts_of(done)
    assert facts["active"], done.stderr
    assert facts["digest"] == alone


def test_law2_a_job_that_never_steps_gives_memory_back(world: World) -> None:
    script = world.script(NEVER_STEPS)
    job = run_job(world, "still", "--opportunistic", "--memory", "1GiB", "--", script)
    read_line(job, "lives")
    assert world.commensal("set", "still", "--memory", "32MiB").returncode == 0

    def shrunk() -> bool:
        record = live_job(world, "still")
        return record is not None and record["memory"]["device_bytes"] <= 32 * MIB

    wait_until("it holds 32 MiB", shrunk)
    for _ in range(3):
        read_line(job, "content is right")
    assert job.poll() is None


def test_a_job_that_calls_os_exit_returns_its_lease(world: World, alone: str) -> None:
    job = run_job(world, "leaver", "--", world.script(LEAVES))
    read_line(job, "leaves")
    wait_until("it is registered", lambda: live_job(world, "leaver"))
    job.communicate("go\n", timeout=DEADLINE)
    assert job.returncode == 7
    wait_until("its lease is back", lambda: live_job(world, "leaver") is None)
    expect_a_job_works(world, alone)


def test_law1_a_job_that_executes_another_program_is_managed_again(
    world: World, alone: str
) -> None:
    train = world.script(TRAIN + TELL, "train.py")
    job = run_job(world, "turncoat", "--", world.script(LEAVES), train, STEPS)
    read_line(job, "leaves")
    out, errors = job.communicate("go\n", timeout=DEADLINE)
    assert job.returncode == 0, errors
    facts: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert facts["active"], errors
    assert facts["digest"] == alone
    wait_until("its lease is back", lambda: live_job(world, "turncoat") is None)


def test_law4_jobs_go_on_beside_a_stopped_daemon_and_after_it(world: World) -> None:
    script = world.script(COUNTS)
    counts = {name: world.folder / f"{name}.count" for name in ("own", "guest")}

    def steps(name: str) -> int:
        return int(counts[name].read_text()) if counts[name].exists() else 0

    def beyond(name: str, step: int) -> bool:
        return steps(name) > step

    own = run_job(
        world, "own", "--guaranteed", "--memory", "64MiB", "--", script, str(counts["own"])
    )
    guest = run_job(world, "guest", "--opportunistic", "--", script, str(counts["guest"]))
    for job in (own, guest):
        read_line(job, "training")
    wait_until("both are known", lambda: live_job(world, "own") and live_job(world, "guest"))
    [daemon] = world.daemons()
    os.kill(daemon.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    before = {name: steps(name) for name in counts}
    # Longer than a lease and than the silence after which a coordinator counts as dead.
    wait_until("its leases have run out", lambda: time.monotonic() - stopped_at > 3.5)
    for job_name in counts:
        most = before[job_name] + 3
        wait_until(f"{job_name} goes on", partial(beyond, job_name, most))
    os.kill(daemon.pid, signal.SIGCONT)
    wait_until("it answers", lambda: live_job(world, "own") and live_job(world, "guest"))
    assert world.daemons()[0].pid == daemon.pid
    # And stopped itself, for as long, a job comes back to where it was.
    os.kill(guest.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_until("time has passed", lambda: time.monotonic() - stopped_at > 3.5)
    record = live_job(world, "guest")
    assert record is not None, "a stopped job keeps its lease"
    halted = steps("guest")
    os.kill(guest.pid, signal.SIGCONT)
    wait_until("the guest goes on", lambda: steps("guest") > halted + 3)
    assert own.poll() is None
    assert guest.poll() is None


def test_law3_a_guaranteed_job_has_its_minimum_beside_a_stopped_one(world: World) -> None:
    daemon = [str(COMMENSAL.parent / "commensald"), "--memory-budget", "400MiB"]
    assert world.run([*daemon, "--runtime-dir", str(world.runtime_dir)]).returncode == 0
    script = world.script(HOLDS)
    guest = run_job(world, "guest", "--opportunistic", "--", script, "300")
    read_line(guest, "holds")

    def lease(name: str) -> dict[str, Any]:
        record = live_job(world, name)
        return record["lease"] if record is not None else {}

    wait_until("it has 300 MiB", lambda: lease("guest").get("held_bytes", 0) >= 300 * MIB)
    os.kill(guest.pid, signal.SIGSTOP)
    own = run_job(world, "own", "--guaranteed", "--memory", "250MiB", "--", script, "200")
    read_line(own, "holds")
    wait_until("it has its minimum", lambda: lease("own").get("granted_bytes", 0) >= 250 * MIB)
    charged = lease("guest")["charged_bytes"]
    assert 300 * MIB <= charged < 400 * MIB, "what it holds, not its limit"
    assert lease("own")["beyond_budget_bytes"] >= charged + 250 * MIB - 400 * MIB
    os.kill(guest.pid, signal.SIGCONT)
    wait_until(
        "it has given back", lambda: lease("own").get("beyond_budget_bytes") == 0, deadline=120
    )
    for job in (own, guest):
        out, errors = job.communicate("end\n", timeout=DEADLINE)
        assert job.returncode == 0, errors
        assert out.splitlines()[-1] == "right True"
