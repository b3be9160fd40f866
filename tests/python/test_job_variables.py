# SPDX-License-Identifier: Apache-2.0
"""Numbers of a job's environment that are none: said once, and the training goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from training import facts_of
from world import World

from commensal import _job_variables
from commensal._inputs import InputList
from commensal._job_variables import attempt_of, loss_interval_of
from commensal._losses import LossReporter

ATTEMPT = "COMMENSAL_CLUSTER_ATTEMPT"
INTERVAL = "COMMENSAL_REPORT_LOSS"
JOB = {"COMMENSAL_CLUSTER_JOB": "7", ATTEMPT: "2", INTERVAL: "10"}

NO_ATTEMPTS = ["two", "1.5", "-1", "nan", "inf", "1e1", "0x2", "1_0", " ", "٣", "4294967296"]
NO_ATTEMPTS.append("9" * 5000)  # more digits than Python reads
NO_INTERVALS = ["often", "nan", "-nan", "-1", "-0.5", "inf", "-inf", "1e400", "10s", " ", "10,5"]


@pytest.fixture(autouse=True)
def nothing_said() -> Iterator[None]:
    _job_variables._said.clear()
    yield
    _job_variables._said.clear()


@pytest.fixture
def said() -> list[str]:
    return []


def nobody(request: str, **fields: Any) -> dict[str, Any]:
    raise AssertionError(f"{request} was asked: {fields}")


@pytest.mark.parametrize(("text", "number"), [("1", 1), ("0", 0), ("4294967295", 2**32 - 1)])
def test_an_attempt_is_read(said: list[str], text: str, number: int) -> None:
    assert attempt_of({ATTEMPT: text}, said.append) == number
    assert not said


@pytest.mark.parametrize(("text", "seconds"), [("10", 10.0), ("0.5", 0.5), ("0", 0.0)])
def test_an_interval_is_read(said: list[str], text: str, seconds: float) -> None:
    assert loss_interval_of({INTERVAL: text}, said.append) == seconds
    assert not said


@pytest.mark.parametrize("environ", [{}, {ATTEMPT: "", INTERVAL: ""}])
def test_what_is_absent_or_empty_is_nobodys_mistake(
    said: list[str], environ: dict[str, str]
) -> None:
    assert attempt_of(environ, said.append) == 0
    assert loss_interval_of(environ, said.append) == 0.0
    assert not said


@pytest.mark.parametrize("text", NO_ATTEMPTS, ids=lambda text: repr(text)[:20])
def test_what_is_no_attempt_is_named_and_as_if_absent(said: list[str], text: str) -> None:
    assert attempt_of({ATTEMPT: text}, said.append) == attempt_of({}, said.append)
    assert said == [f"{ATTEMPT}: not the number of an attempt: {text!r}; it is not used"]


@pytest.mark.parametrize("text", NO_INTERVALS)
def test_what_is_no_interval_is_named_and_as_if_absent(said: list[str], text: str) -> None:
    assert loss_interval_of({INTERVAL: text}, said.append) == loss_interval_of({}, said.append)
    assert said == [f"{INTERVAL}: not a number of seconds: {text!r}; it is not used"]


def test_a_value_is_said_once_and_another_one_again(said: list[str]) -> None:
    for text in ("nan", "nan", "x", "nan", "x"):
        assert loss_interval_of({INTERVAL: text}, said.append) == 0.0
    assert [line.split("'")[1] for line in said] == ["nan", "x"]


def test_losses_and_inputs_say_it_of_the_same_variable_once(said: list[str]) -> None:
    environ = JOB | {ATTEMPT: "second"}
    LossReporter(environ, nobody, lambda: 0.0, said.append)
    InputList(environ, nobody, lambda: 0.0, said.append)
    assert said == [f"{ATTEMPT}: not the number of an attempt: 'second'; it is not used"]


@pytest.mark.parametrize("text", NO_INTERVALS)
def test_a_loss_is_not_even_read_where_the_interval_is_none(said: list[str], text: str) -> None:
    reporter = LossReporter(JOB | {INTERVAL: text}, nobody, lambda: 0.0, said.append)
    assert not reporter.active
    reporter.note(object())  # type: ignore[arg-type]
    assert len(said) == 1


def test_what_is_told_without_an_attempt_is_told_as_of_none() -> None:
    told: list[dict[str, Any]] = []

    def ask(request: str, **fields: Any) -> dict[str, Any]:
        told.append({"request": request} | fields)
        return {}

    for attempt in ("second", ""):
        inputs = InputList(JOB | {ATTEMPT: attempt}, ask, lambda: 0.0, lambda _: None)
        inputs.report("r", "", "d", failing=False)
    assert [message["attempt"] for message in told] == [0, 0]


def test_a_child_does_not_repeat_what_its_parent_said(said: list[str]) -> None:
    attempt_of({ATTEMPT: "x"}, said.append)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        attempt_of({ATTEMPT: "x"}, said.append)
        os.write(write, str(len(said)).encode())
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert os.read(read, 10) == b"1"
    os.close(read)


def test_a_script_trains_on_and_its_user_reads_each_line_once(world: World) -> None:
    script = world.script(
        """
import json, torch, commensal
for _ in range(3):
    commensal.step(loss=torch.ones(()))
    commensal.report_bad_input("record")
    with commensal.reading("other"):
        pass
print(json.dumps({"known": sorted(commensal.bad_inputs())}))
"""
    )
    done = world.run([sys.executable, script], **{ATTEMPT: "nan", INTERVAL: "nan"})
    assert facts_of(done) == {"known": ["record"]}
    ours = sorted(line for line in done.stderr.splitlines() if line.startswith("commensal:"))
    assert ours == [
        f"commensal: {ATTEMPT}: not the number of an attempt: 'nan'; it is not used",
        f"commensal: {INTERVAL}: not a number of seconds: 'nan'; it is not used",
    ]
