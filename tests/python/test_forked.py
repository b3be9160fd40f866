# SPDX-License-Identifier: Apache-2.0
"""A job that was forked (forked.py) and one that was started anew are alike."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import Any

import pytest
from training import TELL, TRAIN, facts_of
from world import COMMENSAL, DEADLINE, World, read_line

SURROUNDINGS = """
import json, os, signal, sys
facts = {
    "arguments": [sys.argv, sys.orig_argv, sys.path[0], __name__, globals().get("__file__")],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "threads": len(os.listdir("/proc/self/task")),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "scheduling": [os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)), os.nice(0)],
    "has_torch": "torch" in sys.modules,
    "input": sys.stdin.read(),
}
import torch, commensal
facts["active"] = commensal.is_active()
print(json.dumps(facts))
"""
# Of one job alone.
OWN = (
    "COMMENSAL_JOB_ID",
    "COMMENSAL_LAUNCH",
    "COMMENSAL_SUMMARY_FILE",
    "COMMENSAL_CPUS",
    "COMMENSAL_PRIMARY_PID",
)


def of_both(world: World, *command: str, stdin: str = "") -> list[subprocess.CompletedProcess[str]]:
    """Run a command anew, and by a fork."""
    done = []
    for fresh in (True, False):
        world.fresh = fresh
        done.append(world.run(command, stdin))
    return done


@pytest.mark.parametrize("managed", [True, False])
@pytest.mark.parametrize("code", [True, False])
def test_the_program_finds_the_same_surroundings(world: World, managed: bool, code: bool) -> None:
    program = ["-c", SURROUNDINGS] if code else [world.script(SURROUNDINGS)]
    launcher = [str(COMMENSAL), "run", "--no-idle-class", "--"] if managed else []
    told = []
    command = [*launcher, sys.executable, *program, "one", "two words"]
    for done in of_both(world, *command, stdin="given"):
        facts = facts_of(done)
        assert facts["active"] == managed
        assert not facts["has_torch"] and facts["input"] == "given"
        for name in OWN:
            facts["environment"].pop(name, None)
        told.append(facts)
    assert told[0] == told[1]


def shape(value: Any) -> Any:
    """Return what an object has, without its numbers."""
    if isinstance(value, dict):
        return {name: shape(field) for name, field in value.items()}
    return type(value).__name__ if not isinstance(value, list) else "list"


def test_a_job_trains_and_reports_the_same(world: World) -> None:
    script = world.script(TRAIN + TELL)
    options = ("--guaranteed", "--no-idle-class", "--memory", "1GiB")
    told, said = [], []
    for done in of_both(world, str(COMMENSAL), "run", *options, "--", sys.executable, script, "20"):
        told.append(facts_of(done))
        said.append(re.sub(r"\d+(\.\d+)?", "N", done.stderr))
    fresh, forked = told
    assert fresh["active"] and forked["active"]
    assert (fresh["digest"], fresh["loss"]) == (forked["digest"], forked["loss"])
    assert shape(fresh["stats"]) == shape(forked["stats"])
    for part, name in (
        *(("job", name) for name in ("class", "name", "role", "tenant", "coordinator_pid")),
        *(("gate", "law"), ("step", "number"), ("memory", "limit_bytes"), ("memory", "live_bytes")),
    ):
        assert fresh["stats"][part][name] == forked["stats"][part][name], name
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise SystemExit(3)", ""),
        ("import sys; sys.exit('no data')", "no data\n"),
        ("import os; os._exit(7)", ""),
        ("import atexit; atexit.register(print, 'end')", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ""),
        ("import signal; signal.raise_signal(signal.SIGINT)", None),
        ("1 / 0", None),
    ],
)
def test_it_ends_in_the_same_way(world: World, code: str, text: str | None) -> None:
    fresh, forked = of_both(world, sys.executable, "-c", code)
    assert (fresh.returncode, fresh.stdout) == (forked.returncode, forked.stdout)
    if text is None:  # a traceback has one more line where it begins
        assert fresh.stderr.splitlines()[-1] == forked.stderr.splitlines()[-1]
    else:
        assert fresh.stderr == forked.stderr == text


def test_what_cannot_be_started_is_refused_in_the_same_way(world: World) -> None:
    fresh, forked = of_both(world, str(COMMENSAL), "run", "--memory", "much", "--", "true")
    assert fresh.returncode == forked.returncode == 2
    assert fresh.stderr == forked.stderr
    fresh, forked = of_both(world, str(COMMENSAL), "run", "--quiet", "--", "/no/such", "x")
    assert fresh.returncode == forked.returncode == 127
    assert fresh.stderr == forked.stderr


def test_signals_reach_it_and_its_end_is_seen(world: World) -> None:
    process = world.start(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
    )
    read_line(process, "up")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == -signal.SIGTERM
