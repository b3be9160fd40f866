# SPDX-License-Identifier: Apache-2.0
"""A job's loss and the rule by which it ends: what is told, when, and what is not even read."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from test_submit import ENDED, Cluster
from world import World

import commensal
from commensal import _losses
from commensal._coordinator import Refused, Unreachable
from commensal._losses import LossReporter
from commensal.cli._job_life import describe_life
from commensal.cli.submit import parse_flat_rule

JOB = {
    "COMMENSAL_CLUSTER_JOB": "7",
    "COMMENSAL_CLUSTER_ATTEMPT": "2",
    "COMMENSAL_REPORT_LOSS": "10",
}


class Told:
    """A coordinator that hears; `heard` is set with each message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.said: list[str] = []
        self.now = 100.0
        self.heard = threading.Event()

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        assert request == "report_loss"
        if self.error is not None:
            raise self.error
        self.messages.append(fields)
        self.heard.set()
        return {"flat": False}

    def reporter(self, **environ: str) -> LossReporter:
        return LossReporter(JOB | environ, self.ask, lambda: self.now, self.said.append)


class Silent(LossReporter):
    """Tells only when the test says so."""

    def _work(self) -> None:
        pass


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def silent(told: Told) -> Silent:
    return Silent(JOB, told.ask, lambda: told.now, told.said.append)


def test_a_loss_is_told_by_itself(told: Told) -> None:
    told.reporter().note(0.5)
    assert told.heard.wait(60)
    (message,) = told.messages
    assert message == {"id": "7", "attempt": 2, "points": [{"age_ms": 0, "loss": 0.5}]}


def test_a_loss_is_read_once_an_interval(told: Told, silent: Silent) -> None:
    read: list[float] = []

    class Loss:
        def __float__(self) -> float:
            read.append(told.now)
            return 0.25

    for _ in range(25):
        silent.note(Loss())
        told.now += 1.0
    assert read == [100.0, 110.0, 120.0]
    assert silent.tell()
    assert [point["age_ms"] for point in told.messages[0]["points"]] == [25000, 15000, 5000]


def test_what_is_no_number_is_told_as_such(told: Told, silent: Silent) -> None:
    for loss in (math.nan, math.inf, 1.0):
        silent.note(loss)
        told.now += 10
    assert silent.tell()
    assert [point["loss"] for point in told.messages[0]["points"]] == [None, None, 1.0]
    with pytest.raises(ValueError, match="could not convert"):
        silent.note("low")  # type: ignore[arg-type]


def test_a_silent_coordinator_is_told_later(told: Told, silent: Silent) -> None:
    told.error = Unreachable("nobody there")
    for _ in range(3):
        silent.note(1.0)
        assert not silent.tell()
        told.now += 10
    assert told.said == ["the loss is not reported yet: nobody there"]
    told.error = None
    assert silent.tell()
    assert len(told.messages[0]["points"]) == 3
    silent.note(2.0)
    assert silent.tell()
    assert [point["loss"] for point in told.messages[1]["points"]] == [2.0]


def test_what_waits_to_be_told_is_bounded(told: Told, silent: Silent) -> None:
    for number in range(1000):
        silent.note(float(number))
        told.now += 10
    assert silent.tell()
    assert [point["loss"] for point in told.messages[0]["points"]] == [*range(900, 1000)]


def test_a_refusal_is_said_and_ends_it(told: Told, silent: Silent) -> None:
    told.error = Refused("attempt 2 of job 7 is over")
    silent.note(1.0)
    assert silent.tell()
    assert told.said == ["the loss is not reported any more: attempt 2 of job 7 is over"]
    assert not silent.active


@pytest.mark.parametrize(
    "environ", [{"COMMENSAL_REPORT_LOSS": ""}, {"COMMENSAL_CLUSTER_JOB": ""}, {"RANK": "1"}]
)
def test_nothing_is_read_without_a_rule_or_in_other_ranks(
    told: Told, environ: dict[str, str]
) -> None:
    told.reporter(**environ).note(object())  # type: ignore[arg-type]
    assert not told.messages


def test_a_step_reads_its_loss_only_where_a_rule_looks(
    told: Told, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COMMENSAL_REPORT_LOSS", raising=False)
    monkeypatch.setattr(_losses._process, "reporter", silent)
    commensal.step(loss=object())  # type: ignore[arg-type]
    monkeypatch.setenv("COMMENSAL_REPORT_LOSS", "10")
    commensal.step(loss=0.5)
    commensal.step()
    assert silent.tell()
    assert [point["loss"] for point in told.messages[0]["points"]] == [0.5]


def test_a_step_while_another_thread_loads_the_core_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half_loaded = ModuleType("commensal._core")  # in sys.modules from the begin of its import on
    monkeypatch.setitem(sys.modules, "commensal._core", half_loaded)
    commensal.step()
    assert not commensal.is_active()


@pytest.mark.parametrize(
    ("text", "window_ms", "change"),
    [("30m", 1_800_000, 0.01), ("1h:0.5%", 3_600_000, 0.005), ("10s:50", 10_000, 0.5)],
)
def test_rules_are_read(text: str, window_ms: int, change: float) -> None:
    assert parse_flat_rule(text) == {"window_ms": window_ms, "change": pytest.approx(change)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("9s", "shorter than 10 s: '9s'"),
        ("long", "not a duration: 'long'"),
        ("", "not a duration: ''"),
        ("30m:", "not a change in percent: ''"),
        ("30m:x", "not a change in percent: 'x'"),
        ("30m:0", "not a change above 0 % and at most 50 %: '0'"),
        ("30m:nan", "not a change above 0 % and at most 50 %: 'nan'"),
        ("30m:51%", "not a change above 0 % and at most 50 %: '51%'"),
    ],
)
def test_bad_rules_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_flat_rule(text)


def test_explain_shows_what_the_rule_says() -> None:
    job = {"id": "7", "name": "n", "tenant": "t", "state": "running", "gpus": 1, "placement": []}
    job |= {"asked": "auto", "reason": "", "rule": "its loss is known for 3 min of 10 min"}
    lines = list(describe_life({"job": job, "spec": {"command": ["x"]}, "history": []}))
    assert "  its rule: its loss is known for 3 min of 10 min" in lines


def test_explain_says_how_a_parked_job_goes_on() -> None:
    job = {"id": "7", "name": "n", "tenant": "t", "state": "parked", "gpus": 1, "placement": []}
    job |= {"asked": "auto", "reason": "parked by its own rule: flat"}
    lines = list(describe_life({"job": job, "spec": {"command": ["x"]}, "history": []}))
    assert "  parked by its own rule: flat; 'commensal resume 7' queues it again" in lines


# --- with a coordinator ----------------------------------------------------------------------


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


def test_a_job_is_ended_by_its_rule(cluster: Cluster) -> None:
    tells = """
import commensal, time
while True:
    commensal.step(loss=0.5)
    time.sleep(0.05)
"""
    script = cluster.world.script(tells)
    options = ("--end-when-flat", "10s:2%", "--name", "flat")
    job = cluster.submit(*options, "--", sys.executable, script)
    ended = cluster.wait(job, "finished", "failed", "lost")
    assert ended["state"] == "finished", cluster.output(job)
    assert "ended by its own rule: its loss has been flat for 10 s" in ended["reason"]
    told = json.loads(cluster.world.commensal("queue", "--all", "--json").stdout)
    assert told["jobs"][0]["reason"] == ended["reason"]


def test_a_job_is_parked_and_resumed_from_its_checkpoint(cluster: Cluster) -> None:
    saves = """
import commensal, os, signal, sys, time
if os.path.exists("checkpoint"):
    print("goes on", flush=True)
    sys.exit(0)
def save(*_):
    open("checkpoint", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while True:
    commensal.step(loss=0.5)
    time.sleep(0.05)
"""
    script = cluster.world.script(saves)
    options = ("--park-when-flat", "10s:2%", "--chdir", str(cluster.world.folder))
    job = cluster.submit(*options, "--", sys.executable, script)
    parked = cluster.wait(job, "parked", *ENDED)
    assert parked["state"] == "parked", cluster.output(job)
    assert "parked by its own rule: its loss has been flat for 10 s" in parked["reason"]
    assert (
        f"'commensal resume {job}' queues it again"
        in cluster.world.commensal("explain", job).stdout
    )
    nodes = json.loads(cluster.world.commensal("nodes", "--json").stdout)["nodes"]
    assert [device["jobs"] for node in nodes for device in node["devices"]] == [[]]
    done = cluster.world.commensal("resume", job)
    assert (done.returncode, done.stdout) == (0, f"job {job}: queued again\n"), done.stderr
    ended = cluster.wait(job, *ENDED)
    assert (ended["state"], ended["attempt"]) == ("finished", 2)
    assert cluster.output(job) == ["goes on"]
    again = cluster.world.commensal("resume", job)
    assert again.returncode == 4
    assert again.stderr == f"commensal: job {job} is not parked: it is finished\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--end-when-flat", "5s"], "'--end-when-flat': shorter than 10 s: '5s'"),
        (["--park-when-flat", "5s"], "'--park-when-flat': shorter than 10 s: '5s'"),
        (["--park-when-flat", "1m:0"], "not a change above 0 % and at most 50 %: '0'"),
        (["--end-when-flat", "1m", "--park-when-flat", "1m"], "exclude each other"),
    ],
)
def test_submit_says_what_is_wrong_with_a_rule(world: World, words: list[str], said: str) -> None:
    done = world.commensal("submit", *words, "--", "true")
    assert done.returncode == 2
    assert said in done.stderr
