# SPDX-License-Identifier: Apache-2.0
"""`commensal explain`: what is told in words, in JSON and as a timeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from world import World, read_line, wait_until

from commensal._timeline import to_trace
from commensal.cli import main
from commensal.cli.explain import describe

NOON = datetime(2026, 1, 1, 12, 0, 0)
TRAIN = """
import sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.randn(4096, 64), batch_size=4)
print("ready", flush=True)
while True:
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


def told(**more: Any) -> dict[str, Any]:
    """Return an explanation of an opportunistic job beside a guaranteed one."""
    share = {"now": 0.2, "min": 0.0, "max": 1.0, "reason": "guaranteed step 0.4 %: held"}
    samples = [
        {
            "seconds_ago": 60.0 - second,
            "closed_seconds_total": 0.5 * second,
            "op_seconds_total": 0.3 * second,
            "core_seconds_total": 0.4 * second,
            "waited_seconds_total": 0.0,
            "steps": 20 * second,
            "share": 0.2,
            "slowdown": None,
        }
        for second in range(3)
    ]
    return {
        "schema": 1,
        "seconds": 60.0,
        "asked_seconds": 60.0,
        "job": {
            "id": "sweep-1",
            "name": "sweep",
            "class": "opportunistic",
            "law": "gap",
            "paused": False,
            "idle_class": True,
            "share": share,
            "closed_by": [
                {"reason": "guaranteed job busy", "seconds": 31.0},
                {"reason": "op does not fit in what is left of the gap", "seconds": 9.0},
            ],
            "closed_seconds": 40.0,
            "op_seconds": 17.0,
            "core_seconds": 18.0,
            "waited_seconds": 0.0,
            "steps": 340,
        },
        "device": {
            "seconds": 10.0,
            "guaranteed_share": 0.62,
            "opportunistic_share": 0.25,
            "oracle_share": 0.39,
            "efficiency": 0.64,
        },
        "window_seconds_total": 1.5,
        "guaranteed": [
            {
                "id": "prod-1",
                "name": "prod",
                "slo": 0.01,
                "slowdown": 0.031,
                "slowdown_error": 0.004,
                "baseline_seconds": 0.04,
                "baseline_steps": 41,
                "steps": 1400,
                "lost_seconds": 1.8,
                "parts": {"memory": 0.021, "scheduling": 0.01, "io": 0.0, "unknown": 0.0},
                "evidence": {
                    "quiet": {"seconds": 8.0, "running": 0.6, "waiting_for_a_core": 0.001},
                    "shared": {"seconds": 50.0, "running": 0.61, "waiting_for_a_core": 0.011},
                },
                "ops": {
                    "window_seconds": 1.2,
                    "samples": 140,
                    "busy": 0.61,
                    "op_seconds": 0.732,
                    "compute": 0.8,
                    "memory": 0.2,
                    "on_core": 0.95,
                    "top": [
                        {"name": "aten::addmm", "seconds": 0.366},
                        {"name": "aten::add_", "seconds": 0.0732},
                    ],
                },
            }
        ],
        "opportunistic": [],
        "decisions": [
            {"seconds_ago": 30.0, "job": "sweep-1", "kind": "share", "text": "40 % -> 20 %: why"}
        ],
        "series": [
            {"id": "prod-1", "name": "prod", "class": "guaranteed", "samples": []},
            {"id": "sweep-1", "name": "sweep", "class": "opportunistic", "samples": samples},
        ],
        **more,
    }


def words(explanation: dict[str, Any]) -> str:
    return "\n".join(describe(explanation, NOON))


def test_says_who_was_throttled_why_and_what_it_cost() -> None:
    text = words(told())
    assert text.startswith("sweep (opportunistic, law gap): the last 60 s\n")
    assert "waited at the gate for 40 s (67 % of the time)" in text
    assert "340 steps" in text
    assert text.index("31 s  guaranteed job busy") < text.index("9.0 s  op does not fit")
    assert "may use 20 %: guaranteed step 0.4 %: held" in text
    assert "prod (guaranteed): +3.1 % (+-0.4), above its SLO of 1 %; about 1.8 s of 60 s" in text
    assert "+2.1 %  the same work took longer on a core" in text
    assert "+1.0 %  ready, and waiting for a core" in text
    assert "in 8.0 s alone and 50 s beside others" in text
    assert "waited for one for 0.1 and 1.1 %" in text
    assert "too short" not in text
    assert "guaranteed jobs used 62 % of the core time, opportunistic ones 25 %" in text
    assert "39 % were to be had (64 % of that was taken)" in text
    assert "11:59:30  sweep-1  share: 40 % -> 20 %: why" in text


def test_gaps_are_told_by_phase_and_what_may_be_done_in_them() -> None:
    gap = {
        "phase": "loader",
        "per_minute": 120.0,
        "share": 0.06,
        "median_seconds": 0.03,
        "p90_seconds": 0.04,
    }
    rare = {**gap, "phase": "checkpoint", "share": 0.0}
    rules = {"reason": "every gap may be used; guaranteed step 0.4 %: held"}
    prod = told()["guaranteed"][0] | {"gaps": [gap, rare]}
    text = words(told(guaranteed=[prod], job=told()["job"] | {"gap_rules": rules}))
    assert "in its gaps: every gap may be used; guaranteed step 0.4 %: held" in text
    assert "the gaps that prod leaves, of the last minute" in text
    assert "loader 120 a minute of 30 ms (90 % up to 40 ms), 6.0 % of the time" in text
    assert "checkpoint" not in text
    assert "the gaps that" not in words(told(guaranteed=[prod | {"gaps": []}]))


def test_what_is_not_known_is_said_to_be_so() -> None:
    job = told()["job"]
    for key in ("closed_seconds", "op_seconds", "core_seconds", "waited_seconds", "steps"):
        del job[key]
    prod = told()["guaranteed"][0] | {"slowdown": None, "baseline_steps": 2, "parts": None}
    device = dict.fromkeys(told()["device"])
    text = words(told(job=job, guaranteed=[prod], device=device, decisions=[]))
    assert "nothing is known yet" in text
    assert "slowdown not known; 2 steps alone were seen" in text
    reason = "not known yet: 526.0 % from 3 steps, with a standard error of 885.0 %"
    doubted = words(told(guaranteed=[prod | {"slowdown_reason": reason}]))
    assert f"slowdown {reason}; 2 steps alone were seen" in doubted
    assert "no decision was taken" in text
    assert "device" not in text
    assert "made is not known yet" in words(
        told(guaranteed=[told()["guaranteed"][0] | {"parts": None}])
    )


def test_a_split_from_little_is_said_to_be_so() -> None:
    prod = told()["guaranteed"][0]
    prod["evidence"]["quiet"]["seconds"] = 2.0
    assert "2.0 s alone" in words(told(guaranteed=[prod]))
    assert "too short to go by" in words(told(guaranteed=[prod]))


def test_says_of_what_the_guaranteed_jobs_ops_are() -> None:
    text = words(told())
    assert "its ops, from 140 samples in 1.2 s: they ran for at least 61 % of the time" in text
    assert "95 % of that on a core; products and convolutions took 80 %" in text
    assert "memory bounds 20 % (addmm 50 %, add_ 10 %)" in text
    assert "too few to go by" not in text
    prod = told()["guaranteed"][0]
    prod["ops"]["samples"] = 12
    assert "too few to go by" in words(told(guaranteed=[prod]))
    unknown = told()["guaranteed"][0] | {"slowdown": None}
    assert "its ops, from 140 samples" in words(told(guaranteed=[unknown]))
    assert "its ops, from" not in words(told(guaranteed=[prod | {"ops": None}]))


def test_another_law_takes_no_share_from_the_coordinator() -> None:
    assert "it may use" not in words(told(job=told()["job"] | {"law": "rate_aimd"}))


def test_of_an_ended_job_its_end_is_told() -> None:
    over = {"ended_seconds_ago": 90.0, "exit_reason": "killed or crashed"}
    prod = told()["guaranteed"][0] | {"ended_seconds_ago": 30.0}
    text = words(told(job=told()["job"] | over, guaranteed=[prod]))
    assert text.startswith(
        "sweep (opportunistic, law gap, killed or crashed 90 s ago): the last 60 s of its life\n"
    )
    assert "it might use 20 %" in text
    assert "prod (guaranteed, ended 30 s ago): +3.1 %" in text


def test_the_timeline_of_an_ended_job_begins_with_it() -> None:
    later = told()
    later["until_seconds_ago"] = 100.0
    for record in (*later["decisions"], *later["series"][1]["samples"]):
        record["seconds_ago"] += 100.0
    assert to_trace(later) == to_trace(told())


def test_alone_there_is_nobody_to_yield_to() -> None:
    assert "nobody to yield to" in words(told(guaranteed=[]))


def test_a_job_of_several_ranks_tells_of_its_gang() -> None:
    explained = told()
    explained["job"]["gang"] = {
        "gated": False,
        "ranks": 2,
        "reason": "rank 1 has shown no sign of life for 2.1 s",
    }
    assert (
        "  gang: each rank is gated by itself: rank 1 has shown no sign of life for 2.1 s"
    ) in list(describe(explained, NOON))


def test_only_the_newest_decisions_are_shown() -> None:
    many = [
        {"seconds_ago": 60.0 - i, "job": "a", "kind": "share", "text": f"number {i}"}
        for i in range(40)
    ]
    text = words(told(decisions=many))
    assert "the newest 12 of 40" in text
    assert "number 39" in text
    assert "number 27" not in text


def test_a_timeline_has_a_track_for_each_job_and_its_decisions() -> None:
    trace = to_trace(told())
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert set(names.values()) == {"device", "prod (guaranteed)", "sweep (opportunistic)"}
    [decision] = [e for e in events if e["ph"] == "i"]
    assert names[decision["pid"]] == "sweep (opportunistic)"
    assert decision["ts"] == pytest.approx(30e6)
    closed = [e for e in events if e["name"] == "gate closed"]
    assert [e["ts"] for e in closed] == pytest.approx([0.0, 1e6])
    assert [e["args"]["gate closed"] for e in closed] == pytest.approx([0.5, 0.5])
    assert all(e["ts"] >= 0 for e in events if "ts" in e)
    json.dumps(trace)


@pytest.mark.parametrize("last", ["0", "11m", "soon", "-5"])
def test_how_far_back_is_checked(capsys: pytest.CaptureFixture[str], last: str) -> None:
    assert main(["explain", "job", "--last", last]) == 2
    assert last in capsys.readouterr().err


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    script = made.script(TRAIN)
    command = str(Path(sys.executable).parent / "commensal")
    # On a machine that is busy otherwise a job of the idle class would hardly start.
    for name, *options in (("prod", "--guaranteed"), ("sweep", "--no-idle-class")):
        job = made.start([command, "run", *options, "--name", name, "--", sys.executable, script])
        read_line(job, "ready")
    yield made
    made.close()


SERVE = """
import sys, time, torch, commensal
weights = torch.randn(256, 256)
print("ready", flush=True)
while True:
    time.sleep(0.01)
    torch.relu(weights @ weights).sum().item()
    commensal.step()
"""


@contextmanager
def serving(world: World, name: str, text: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run a guaranteed server; yield what returns its status."""
    command = str(Path(sys.executable).parent / "commensal")
    script = world.script(text, f"{name}.py")
    server = world.start(
        [command, "run", "--guaranteed", "--name", name, "--", sys.executable, script]
    )
    read_line(server, "ready")

    def record() -> dict[str, Any]:
        [job] = world.status(name)["jobs"]
        return dict(job)

    wait_until("seen to serve", lambda: bool(record()["serves"]))
    yield record
    server.kill()
    server.wait()


def test_a_job_that_serves_requests_is_seen_to_wait_between_them(world: World) -> None:
    with serving(world, "server", SERVE) as record:
        wait_until("its waits are counted", lambda: record()["activity"]["waits_total"] > 0)
        job = record()
        assert job["slo"] == pytest.approx(0.1)
        assert job["activity"]["wait_seconds_total"] > 0.2 * job["activity"]["waits_total"] * 0.01


SERVE_UNMARKED = """
import socket, threading, time, torch
ours, theirs = socket.socketpair()
def ask():
    while True:
        time.sleep(0.03)
        theirs.send(b"x")
        theirs.recv(1)
threading.Thread(target=ask, daemon=True).start()
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]).eval()
with torch.inference_mode():
    model(torch.randn(1, 64))
    print("ready", flush=True)
    while ours.recv(1):
        for _ in range(20):
            model(torch.randn(4, 64))
        ours.send(b"y")
"""


def test_a_server_that_marks_nothing_is_found_out(world: World) -> None:
    with serving(world, "unmarked", SERVE_UNMARKED) as record:

        def waits() -> dict[str, int]:
            gaps = record()["activity"]["gaps"]
            return {gap["phase"]: int(gap["waits_total"]) for gap in gaps}

        wait_until("enough of them", lambda: waits().get("requests", 0) > 20)
        wait_until("enough steps", lambda: record()["step"]["number"] > 20)
        job = record()
        assert job["measured_by"] == "requests"
        assert job["slo"] == pytest.approx(0.1)
        assert job["step"]["source"] == "found"
        # On a busy machine it is kept waiting in the middle of its work as well, for less.
        typical = lambda: record()["activity"]["wait_typical_seconds"]  # noqa: E731
        wait_until("most waits are those for a request", lambda: typical() > 0.01)
        assert {phase for phase, total in waits().items() if total} == {"requests"}


def explained(world: World) -> dict[str, Any]:
    done = world.commensal("explain", "sweep", "--json")
    assert done.returncode == 0, done.stderr
    explanation: dict[str, Any] = json.loads(done.stdout)
    return explanation


def test_two_running_jobs_are_explained(world: World, tmp_path: Path) -> None:
    def known() -> bool:
        told = explained(world)
        kinds = {decision["kind"] for decision in told["decisions"]}
        return bool(told["job"]["closed_by"]) and "window" in kinds

    wait_until("measured", known)
    explanation = explained(world)
    assert explanation["job"]["closed_seconds"] > 0
    assert sum(e["seconds"] for e in explanation["job"]["closed_by"]) == pytest.approx(
        explanation["job"]["closed_seconds"], rel=0.5, abs=0.5
    )
    assert 0 < explanation["device"]["guaranteed_share"] <= 1.05
    assert explanation["guaranteed"][0].keys() >= {"slowdown"}
    file = tmp_path / "trace.json"
    done = world.commensal("explain", "prod", "--timeline", str(file))
    assert done.returncode == 0, done.stderr
    assert "prod (guaranteed" in done.stdout
    assert str(file) in done.stderr
    counters = {e["name"] for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "C"}
    assert {"gate closed", "cores used", "steps a second"} <= counters


def test_a_job_that_has_ended_is_explained(world: World, tmp_path: Path) -> None:
    script = world.script(
        "import torch\nfor _ in range(200): torch.randn(99, 99).sum()", "short.py"
    )
    done = world.commensal(
        "run", "--no-idle-class", "--name", "short", "--", sys.executable, script
    )
    assert done.returncode == 0, done.stderr

    def over() -> bool:
        done = world.commensal("explain", "short", "--json")
        return done.returncode == 0 and json.loads(done.stdout)["job"]["exit_reason"] != ""

    wait_until("seen to end", over)
    file = tmp_path / "trace.json"
    done = world.commensal("explain", "short", "--last", "5m", "--timeline", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("short (opportunistic, law gap, ended ")
    assert "of its life" in done.stdout
    assert "departure: short ended" in done.stdout
    assert "prod (guaranteed" in done.stdout, "who ran beside it"
    names = [
        e["args"]["name"] for e in json.loads(file.read_text())["traceEvents"] if "M" in e["ph"]
    ]
    assert "short (opportunistic)" in names


def test_what_cannot_be_explained_or_written_is_told(world: World) -> None:
    done = world.commensal("explain", "nobody")
    assert done.returncode == 4
    assert "no job 'nobody' of the last ten minutes; known: prod-" in done.stderr
    done = world.commensal("explain", "sweep", "--timeline", "/nonexistent/t.json")
    assert done.returncode == 1
    assert "/nonexistent/t.json" in done.stderr
