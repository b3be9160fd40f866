# SPDX-License-Identifier: Apache-2.0
"""What the command line says of nodes that report, and asks of them; nobody runs here."""

from __future__ import annotations

from typing import Any

import pytest

from commensal._cluster import Cluster, Refused
from commensal.cli import control, main
from commensal.cli.cluster import device_memory

GIB = 2**30


def node(state: str, *devices: dict[str, Any]) -> dict[str, Any]:
    return {"report": {"state": state, "devices": list(devices)}}


def device(name: str, capacity: Any, held: Any, outside: Any = 0) -> dict[str, Any]:
    return {
        "id": name,
        "capacity_bytes": capacity,
        "held_bytes": held,
        "outside_bytes": outside,
    }


def test_memory_of_a_device_is_what_its_node_reports() -> None:
    told = node("up", device("GPU-0", 80 * GIB, 2 * GIB, GIB), device("GPU-1", 80 * GIB, 0))
    assert device_memory(told, "GPU-0", None) == "3.0 of 80.0 GiB"
    assert device_memory(told, "GPU-1", None) == "0.0 of 80.0 GiB"
    assert device_memory(told, "GPU-0", 79 * GIB) == "3.0 of 79.0 GiB", "the engine's word"
    assert device_memory(told, "GPU-2", None) == ""


def test_what_is_not_known_or_old_is_not_shown() -> None:
    old = node("silent", device("GPU-0", 80 * GIB, 2 * GIB))
    assert device_memory(old, "GPU-0", None) == "80.0 GiB"
    assert device_memory({}, "host", None) == ""
    assert device_memory({}, "GPU-0", 24 * GIB) == "24.0 GiB"
    for odd in ("x", None, [], {}, 1.5):
        assert device_memory(node("up", device("GPU-0", odd, odd)), "GPU-0", None) == ""
    assert device_memory(node("up", {"id": "GPU-0"}), "GPU-0", None) == ""


def ask_by(answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Let the cluster's coordinator answer so, and return what it is asked."""
    asked: list[dict[str, Any]] = []

    def ask(_: Cluster, request: str, /, **fields: Any) -> Any:
        asked.append({"type": request, **fields})
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Cluster, "ask", ask)
    monkeypatch.setattr(control.time, "sleep", lambda _: None)
    return asked


def test_the_table_of_nodes_has_a_column_of_memory(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = {
        "name": "gpu-node-0017",
        "state": "up",
        "cores": 96,
        "reason": "",
        "devices": [{"id": "GPU-0", "type": "H100", "jobs": [{"id": "7", "class": "guaranteed"}]}],
        **node("up", device("GPU-0", 80 * GIB, 3 * GIB)),
    }
    ask_by([{"coordinator": {"problem": ""}, "nodes": [shown]}], monkeypatch)
    assert main(["nodes"]) == 0
    table = capsys.readouterr().out
    assert "MEMORY" in table.splitlines()[0]
    assert "3.0" in table
    assert "80.0" in table
    assert max(map(len, table.splitlines())) <= 80


def test_an_order_is_asked_for_until_its_node_has_answered(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = {"outcome": "deferred", "reason": "node n3 is told with its heartbeats"}
    done = {"outcome": "applied", "reason": "it has its floor"}
    asked = ask_by([later, later, done], monkeypatch)
    assert main(["set", "train", "--class", "guaranteed", "--node", "n3"]) == 0
    assert capsys.readouterr().out == "train: applied: it has its floor\n"
    wanted = {"type": "set_class", "node": "n3", "job": "train", "class": "guaranteed"}
    assert asked == [wanted] * 3


def test_an_order_that_is_refused_says_why(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["set", "train", "--class", "opportunistic", "--node", "n3"]
    ask_by([{"outcome": "refused", "reason": "8 GiB never fit"}], monkeypatch)
    assert main(words) == 4
    assert "train: refused: 8 GiB never fit" in capsys.readouterr().err
    ask_by([Refused("node n3 does not report")], monkeypatch)
    assert main(words) == 4
    assert "node n3 does not report" in capsys.readouterr().err


def test_a_node_that_does_not_decide_is_not_waited_for_for_ever(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_by([{"outcome": "deferred", "reason": "waits for 2 GiB"}], monkeypatch)
    seconds = iter(range(100))
    monkeypatch.setattr(control.time, "monotonic", lambda: float(next(seconds)))
    assert main(["set", "train", "--class", "guaranteed", "--node", "n3"]) == 0
    assert capsys.readouterr().out == "train: deferred: waits for 2 GiB\n"


@pytest.mark.parametrize(
    "words", [["--share", "0.5"], ["--class", "guaranteed", "--memory", "2GiB"], ["--class", "x"]]
)
def test_only_a_class_is_changed_through_the_cluster(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask_by([{"outcome": "applied", "reason": ""}], monkeypatch)
    assert main(["set", "train", "--node", "n3", *words]) == 2
    assert "--node" in (told := capsys.readouterr().err) or "--class" in told
    assert asked == []
