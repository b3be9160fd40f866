# SPDX-License-Identifier: Apache-2.0
"""Bad inputs: what a process knows and says of them, and how jobs hear of each other's."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_submit import Cluster
from world import World

import commensal
from commensal import _inputs
from commensal._coordinator import Refused, Unreachable
from commensal._inputs import InputList

JOB = {
    "COMMENSAL_CLUSTER_JOB": "7",
    "COMMENSAL_CLUSTER_ATTEMPT": "2",
    "COMMENSAL_TENANT": "vision",
}


class Coordinator:
    """Answers as the cluster's coordinator does, two records at a time, and counts."""

    def __init__(self) -> None:
        self.records: list[str] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.said: list[str] = []
        self.now = 0.0

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        self.asked.append((request, fields))
        if self.error is not None:
            raise self.error
        if request == "report_input":
            self.records.append(fields["record"])
            return {"listed": not fields["failing"]}
        version = f"v{len(self.records)}"
        if fields.get("known") == version:
            return {"version": version, "unchanged": True}
        names = sorted(self.records)
        rest = [name for name in names if "after" not in fields or name > fields["after"][1]]
        found = [{"dataset": fields["dataset"], "record": name} for name in rest[:2]]
        return {"version": version, "unchanged": False, "inputs": found, "more": len(rest) > 2}

    def list(self, **environ: str) -> InputList:
        return InputList(JOB | environ, self.ask, lambda: self.now, self.said.append)

    def count(self, request: str) -> int:
        return sum(name == request for name, _ in self.asked)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def test_asks_for_all_parts_and_not_again_for_a_while(coordinator: Coordinator) -> None:
    coordinator.records = ["a", "b", "c", "d", "e"]
    known = coordinator.list()
    assert known.names("d", 30) == frozenset("abcde")
    assert coordinator.asked[0] == ("inputs", {"tenant": "vision", "dataset": "d", "known": ""})
    asked = len(coordinator.asked)
    assert asked == 3
    coordinator.now = 29.9
    known.names("d", 30)
    assert len(coordinator.asked) == asked
    coordinator.now = 30.0
    assert known.names("d", 30) == frozenset("abcde")
    assert len(coordinator.asked) == asked + 1, "it has not changed: one short answer"
    coordinator.records.append("f")
    assert known.names("d", 0) == frozenset("abcdef")


def test_a_report_says_who_and_what(coordinator: Coordinator) -> None:
    known = coordinator.list()
    assert known.report("r", "bad\x1b[31m\nmagic", "d", failing=False)
    request, fields = coordinator.asked[0]
    assert request == "report_input"
    assert fields == {
        "id": "7",
        "attempt": 2,
        "dataset": "d",
        "record": "r",
        "reason": "bad[31m magic",
        "failing": False,
    }
    assert "r" in known.names("d", 30)


def test_a_long_reason_is_cut_between_characters(coordinator: Coordinator) -> None:
    coordinator.list().report("r", "ü" * 800, "d", failing=False)
    assert coordinator.asked[0][1]["reason"] == "ü" * 500


def test_what_could_not_be_told_is_told_with_the_next_call(coordinator: Coordinator) -> None:
    known = coordinator.list()
    coordinator.error = Unreachable("nobody there")
    assert not known.report("r", "", "d", failing=False)
    assert not known.report("s", "", "d", failing=False)
    assert known.names("d", 30) == {"r", "s"}, "this process leaves them out in any case"
    assert coordinator.said == ["a bad input is not reported yet: nobody there"]
    coordinator.error = None
    coordinator.now = 100.0
    assert known.names("d", 30) == {"r", "s"}
    assert coordinator.records == ["r", "s"]


def test_what_is_kept_to_be_told_is_bounded(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_inputs, "_MOST_UNSENT", 5)
    known = coordinator.list()
    coordinator.error = Unreachable("nobody there")
    for number in range(20):
        known.report(f"r{number}", "", "d", failing=False)
    coordinator.error = None
    assert known.report("last", "", "d", failing=False)
    assert coordinator.records == ["r15", "r16", "r17", "r18", "r19", "last"]


def test_a_refusal_is_said_and_not_repeated(coordinator: Coordinator) -> None:
    known = coordinator.list()
    coordinator.error = Refused("attempt 2 is over")
    assert not known.report("r", "", "d", failing=True)
    assert coordinator.said == ["a bad input was not reported: attempt 2 is over"]
    coordinator.error = None
    known.names("d", 0)
    assert coordinator.count("report_input") == 1


def test_a_silent_coordinator_leaves_what_the_job_was_given(
    coordinator: Coordinator, tmp_path: Path
) -> None:
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"tenant": "vision", "datasets": {"d": ["a", "b"]}}))
    coordinator.error = Unreachable("nobody there")
    known = coordinator.list(COMMENSAL_BAD_INPUTS=str(file))
    assert known.names("d", 30) == {"a", "b"}
    assert known.names("e", 30) == frozenset()
    assert coordinator.said == ["what others found in the input is not known: nobody there"]


@pytest.mark.parametrize("text", ["", "[]", '{"datasets": 3}', "{"])
def test_a_file_that_cannot_be_read_is_said(
    coordinator: Coordinator, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "list.json"
    file.write_text(text)
    coordinator.list(COMMENSAL_BAD_INPUTS=str(file))
    assert len(coordinator.said) == 1
    assert coordinator.said[0].startswith(f"the list of bad inputs cannot be read: {file}: ")


def test_outside_a_job_nobody_is_asked(coordinator: Coordinator) -> None:
    known = InputList({}, coordinator.ask, lambda: 0.0, coordinator.said.append)
    assert not known.report("r", "", "d", failing=False)
    assert known.names("d", 0) == {"r"}
    assert coordinator.asked == []
    assert coordinator.said == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "is not empty"),
        ("x" * 513, "has at most 512 bytes, not 513"),
        ("ü" * 257, "has at most 512 bytes, not 514"),
        ("a\nb", "holds no control characters: 'a\\\\nb'"),
        ("\ud800", "is no valid text"),
        (17, "is a text, not 17"),
    ],
)
def test_what_is_no_name_is_refused(name: Any, problem: str) -> None:
    for call in (commensal.report_bad_input, commensal.bad_inputs):
        with pytest.raises(ValueError, match=problem):
            call(name)
    with pytest.raises(ValueError, match=problem), commensal.reading(name):
        pytest.fail("it was read")


def test_reading_reports_what_fails_and_lets_it_go_on(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = coordinator.list()
    monkeypatch.setattr(_inputs, "_inputs", lambda: known)
    with commensal.reading("good", dataset="d"):
        pass
    with pytest.raises(KeyboardInterrupt), commensal.reading("fine", dataset="d"):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), commensal.reading("r", dataset="d"):
        _ = 1 // 0
    assert [fields["record"] for _, fields in coordinator.asked] == ["r"]
    assert coordinator.asked[0][1]["failing"] is True
    assert coordinator.asked[0][1]["reason"].startswith("ZeroDivisionError: ")
    coordinator.records.clear()
    assert commensal.bad_inputs("d", max_age=0) == frozenset(), "one suspicion lists nothing"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_knows_and_has_a_list_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMMENSAL_CLUSTER_JOB", raising=False)
    monkeypatch.setattr(_inputs._process, "inputs", None)
    commensal.report_bad_input("of the parent")
    with _inputs._process.lock:  # as if another thread held it
        child = os.fork()
        if child == 0:
            commensal.report_bad_input("of the child")
            os._exit(0 if commensal.bad_inputs() == {"of the child"} else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert commensal.bad_inputs() == {"of the parent"}


# --- with a coordinator ----------------------------------------------------------------------


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


def test_what_one_job_found_the_next_one_leaves_out(cluster: Cluster) -> None:
    finds = "import commensal; print(commensal.report_bad_input('s-17:4711', 'bad [crc]'))"
    first = cluster.submit("--", sys.executable, "-c", finds)
    assert cluster.wait(first, "finished", "failed")["state"] == "finished", cluster.output(first)
    assert cluster.output(first) == ["True"]
    shown = cluster.world.commensal("inputs", "list").stdout
    assert "s-17:4711" in shown
    assert "bad [crc]" in shown
    told = cluster.world.commensal("inputs", "list", "--json", "--dataset", "default")
    (entry,) = json.loads(told.stdout)["inputs"]
    assert (entry["record"], entry["listed"], entry["reports"][0]["job"]) == (
        "s-17:4711",
        True,
        first,
    )
    done = cluster.world.commensal("inputs", "add", "a", "b", "--reason", "seen")
    assert done.stdout.splitlines() == ["default: a: listed", "default: b: listed"]
    changed = cluster.world.commensal("inputs", "remove", "b", "c")
    assert changed.returncode == 4
    assert changed.stdout == "default: b: forgotten\n"
    assert 'no record "c" of data set "default" is known of tenant default' in changed.stderr
    knows = (
        "import commensal, json, os; print(sorted(commensal.bad_inputs())); "
        "print(json.load(open(os.environ['COMMENSAL_BAD_INPUTS']))['datasets'])"
    )
    second = cluster.submit("--", sys.executable, "-c", knows)
    cluster.wait(second, "finished", "failed")
    assert cluster.output(second) == ["['a', 's-17:4711']", "{'default': ['a', 's-17:4711']}"]


def test_the_command_says_what_is_wrong(world: World) -> None:
    done = world.commensal("inputs", "add", "")
    assert done.returncode == 2
    assert "the name of a record is not empty" in done.stderr
    done = world.commensal("inputs", "list")
    assert done.returncode == 3
