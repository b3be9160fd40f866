# SPDX-License-Identifier: Apache-2.0
"""The pre-run of a gang: when its first step is told, and what becomes of the gang."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from test_submit import ENDED, SHELL, Cluster
from world import COMMENSAL, World

from commensal import _core
from commensal._coordinator import Refused, Unreachable
from commensal._pre_run import FirstStep

JOB = {"COMMENSAL_CLUSTER_JOB": "7", "COMMENSAL_CLUSTER_ATTEMPT": "2"}


class Session:
    """Steps that the test makes; `ended`: there is no session any more."""

    def __init__(self) -> None:
        self.steps = 0
        self.ended = False

    def stats_json(self) -> str:
        if self.ended:
            raise _core.SessionError("commensal is not active in this process")
        return json.dumps({"step": {"number": self.steps}})


class Told:
    def __init__(self) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.said: list[str] = []

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.messages.append((request, fields))
        return {}

    def first(self, **environ: str) -> FirstStep:
        return FirstStep(JOB | environ, self.ask, self.said.append)


def test_the_first_step_is_told_once() -> None:
    told, session = Told(), Session()
    first = told.first()
    assert first.look(session) > 0
    assert not told.messages
    session.steps = 1
    first.look(session)
    assert told.messages == [("first_step", {"id": "7", "attempt": 2})]
    assert first.over


def test_a_silent_coordinator_is_told_later() -> None:
    told, session = Told(), Session()
    session.steps = 3
    first = told.first()
    told.error = Unreachable("nobody there")
    assert first.look(session) > 1
    assert first.look(session) > 1
    assert told.said == ["the first step is not reported yet: nobody there"]
    told.error = None
    first.look(session)
    assert first.over
    assert len(told.messages) == 1


def test_a_refusal_is_said_and_ends_it() -> None:
    told, session = Told(), Session()
    session.steps = 1
    told.error = Refused("attempt 2 of job 7 is over")
    first = told.first()
    first.look(session)
    assert first.over
    assert told.said == ["the first step is not reported: attempt 2 of job 7 is over"]


def test_nothing_is_told_without_a_job_or_after_its_session() -> None:
    told, session = Told(), Session()
    assert told.first(COMMENSAL_CLUSTER_JOB="").over
    first = told.first()
    session.ended = True
    first.look(session)
    assert first.over
    assert not told.messages
    assert not told.said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "2", "--prerun", "soon"], "not a duration: 'soon'"),
        (["--prerun", "5m"], "a pre-run is for a gang, and the job asks for 1 device"),
    ],
)
def test_submit_says_what_is_wrong_with_a_pre_run(
    world: World, words: list[str], said: str
) -> None:
    done = world.commensal("submit", *words, "--", "true")
    assert done.returncode == 2
    assert f"'--prerun': {said}" in done.stderr


# --- with a coordinator ----------------------------------------------------------------------


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    cluster.start("--devices", "2", "--commensal", str(COMMENSAL))
    yield cluster
    cluster.close()


def test_a_gang_is_placed_after_its_first_step(cluster: Cluster) -> None:
    script = cluster.world.script(
        """
import os, time
if not os.environ.get("COMMENSAL_PRE_RUN"):
    print("gang of", os.environ["WORLD_SIZE"], flush=True)
    raise SystemExit
import torch
print("tries in", os.environ["WORLD_SIZE"], flush=True)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    time.sleep(0.1)
"""
    )
    gang = cluster.submit("--gpus", "2", "--prerun", "1h", "--", sys.executable, script)
    ended = cluster.wait(gang, *ENDED)
    assert ended["state"] == "finished", (ended["reason"], cluster.output("1"))
    tried = cluster.job(str(int(gang) - 1))
    assert (tried["state"], tried["gpus"]) == ("finished", 1)
    assert tried["reason"] == "its pre-run went well: its first step is done"
    assert "tries in 1" in cluster.output(tried["id"])
    assert sorted(cluster.output(gang)) == ["[0] gang of 2", "[1] gang of 2"]


def test_a_gang_that_fails_in_its_first_step_is_never_placed(cluster: Cluster) -> None:
    gang = cluster.submit("--gpus", "2", "--prerun", "1h", "--", *SHELL, "echo no data; exit 3")
    ended = cluster.wait(gang, *ENDED)
    assert (ended["state"], ended["attempt"]) == ("cancelled", 0)
    assert "its pre-run, job 1, is failed" in ended["reason"]
    assert cluster.output("1") == ["no data"]
