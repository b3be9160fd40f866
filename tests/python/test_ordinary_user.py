# SPDX-License-Identifier: Apache-2.0
"""The whole line as an ordinary user: nothing needs a privilege."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from training import TELL, TRAIN, facts_of
from world import COMMENSAL, World

import commensal

pytestmark = pytest.mark.root
NOBODY = 65534
AsUser = Callable[..., "CompletedProcess[str]"]


@pytest.fixture
def python(world: World) -> str:
    """An interpreter that the ordinary user can start."""
    if os.geteuid() != 0:
        pytest.skip("not root: the other tests are run by an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv to become an ordinary user")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{version}"):
        if Path(candidate).exists() and _become(world, candidate, "-c", "pass").returncode == 0:
            return candidate
    pytest.skip(f"no Python {version} that an ordinary user can start")


@pytest.fixture
def as_user(world: World, python: str) -> AsUser:
    os.chown(world.folder, NOBODY, NOBODY)

    def run(*arguments: str) -> CompletedProcess[str]:
        return _become(world, python, *arguments)

    return run


def _become(world: World, *command: str) -> CompletedProcess[str]:
    packages = str(Path(commensal.__file__).parent.parent)
    return world.run(
        # The shell starts the command with the rights that are left, not with setpriv's.
        [
            *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
            *("/bin/sh", "-c", 'exec "$@"', "sh", *command),
        ],
        PYTHONPATH=packages,
        PATH=f"{COMMENSAL.parent}:{os.environ['PATH']}",
        HOME=str(world.folder),
    )


def test_an_ordinary_user_trains_shrinks_and_asks(
    world: World, as_user: AsUser, python: str
) -> None:
    script = world.script(TRAIN + _SHRINK + TELL)
    done = as_user(
        *("-m", "commensal", "run", "--no-idle-class", "--memory", "256MiB", "--"),
        *(python, script, "40"),
    )
    facts = facts_of(done)
    assert facts["active"], done.stderr
    assert facts["moved"] > 0
    assert facts["intact"]
    [daemon] = world.daemons()
    assert daemon.uids().effective == NOBODY
    assert facts["stats"]["job"]["coordinator_pid"] == daemon.pid
    asked = as_user("-m", "commensal", "status", "--json")
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout)["coordinator"]["pid"] == daemon.pid


_SHRINK = """
tensors = [torch.full((4 * 2**20,), float(i)) for i in range(8)]
commensal.set_memory_limit("64MiB")
facts["moved"] = commensal.stats()["memory"]["moved_out_bytes_total"]
facts["intact"] = all(bool((t == i).all()) for i, t in enumerate(tensors))
"""


def test_doctor_finds_nothing_broken_for_an_ordinary_user(as_user: AsUser) -> None:
    done = as_user("-m", "commensal", "doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0, report
    idle = next(check for check in report["checks"] if check["name"] == "idle class")
    assert idle["state"] in ("note", "ok")  # "ok" where RLIMIT_NICE lets a user leave it
