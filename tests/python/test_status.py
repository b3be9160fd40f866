# SPDX-License-Identifier: Apache-2.0
"""What `commensal status` prints: a table that fits, and all about one job."""

from __future__ import annotations

import json

import pytest
from recorded_status import job, machine

from commensal._coordinator import Coordinator
from commensal.cli import main
from commensal.cli.status import describe_job, describe_machine

THREE = machine(
    job("gone", ended=True, exit_reason="its process ended", ended_seconds_ago=5.0),
    job("digits_cnn", "guaranteed"),
    job("char_transformer", paused=True),
)


def test_says_that_there_are_no_jobs() -> None:
    assert describe_machine(machine(), 80).splitlines() == [
        "coordinator default, pid 42, up 90 s",
        "device host: 2 cores, 8 GiB, granted 1 GiB, free 7 GiB",
        "no jobs",
    ]


def test_tells_who_used_the_device_where_that_is_known() -> None:
    reply = machine()
    use = {"seconds": 10.0, "guaranteed_share": 0.62, "opportunistic_share": 0.25}
    reply["devices"][0]["use"] = use | {"oracle_share": 0.39, "efficiency": 0.64}
    assert (
        "  of its time, the last 10 s: guaranteed 62 %, opportunistic 25 % of the 39 % that can be "
        "had"
    ) in describe_machine(reply, 80).splitlines()
    reply["devices"][0]["use"] = use | {"oracle_share": None, "efficiency": None}
    assert describe_machine(reply, 80).splitlines()[2].endswith("opportunistic 25 %")
    reply["devices"][0]["use"] = dict.fromkeys(use | {"oracle_share": None})
    assert "of its time" not in describe_machine(reply, 80)


def test_tells_what_is_beyond_the_budget_and_what_is_done_for_a_minimum() -> None:
    reply = machine()
    reply["devices"][0] |= {
        "beyond_budget_bytes": 512 << 20,
        "last_resort_reason": "lacks 100 MiB of a guaranteed minimum: no memory is free",
    }
    lines = describe_machine(reply, 80).splitlines()
    assert lines[1].endswith("granted 1 GiB (512 MiB beyond the budget), free 7 GiB")
    assert lines[2] == "  lacks 100 MiB of a guaranteed minimum: no memory is free"


def placed(**fields: object) -> dict[str, object]:
    """Return a job that the cluster has placed here, as a node's coordinator tells of it."""
    return {
        "job": {"id": "job-7.1", "name": "train", "tenant": "vision", "class": "guaranteed"},
        "number": "7",
        "attempt": 1,
        "state": "starting",
        "devices": ["GPU-0123456789"],
        "memory": {"min_bytes": 2**30, "max_bytes": None},
        "claimed": True,
        "told_seconds_ago": 1.0,
        "reason": "its minimum of memory is kept free for it",
        **fields,
    }


def test_tells_which_jobs_are_to_come() -> None:
    reply = machine()
    reply["expected"] = [
        placed(),
        placed(claimed=False, devices=["host"], state="running"),
        placed(memory=None, devices=[], state="reserved"),
    ]
    assert describe_machine(reply, None).splitlines()[-4:] == [
        "  expected: job-7.1 (train), guaranteed, starting, on GPU-01234567, at least 1 GiB kept "
        "free for it",
        "  expected: job-7.1 (train), guaranteed, running, on host, at least 1 GiB",
        "  expected: job-7.1 (train), guaranteed, reserved, on no device",
        "no jobs",
    ]
    assert max(map(len, describe_machine(reply, 60).splitlines()[2:])) <= 60


@pytest.mark.parametrize("words", [["status", "job-7.1"], ["status", "job-7.1", "--json"]])
def test_a_job_that_is_to_come_can_be_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = machine()
    reply["expected"] = [placed()]
    monkeypatch.setattr(Coordinator, "status", lambda _, job: reply)
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "job-7.1" in told
    if "--json" in words:
        assert json.loads(told)["expected"] == [placed()]
    else:
        assert told.startswith("expected: job-7.1 (train), guaranteed")


GAP = {
    "phase": "loader",
    "per_minute": 120.0,
    "share": 0.06,
    "median_seconds": 0.03,
    "p90_seconds": 0.04,
}


def test_tells_the_gaps_that_a_guaranteed_job_leaves() -> None:
    reply = machine(job("prod", "guaranteed", gaps=[GAP]), job("sweep", gaps=[]))
    line = "  gaps of prod: loader 120 a minute of 30 ms (90 % up to 40 ms), 6.0 % of the time"
    assert line in describe_machine(reply, None).splitlines()
    assert line[:57] + "..." in describe_machine(reply, 60).splitlines()
    assert "gaps of sweep" not in describe_machine(reply, None)
    ended = machine(job("prod", "guaranteed", gaps=[GAP], ended=True))
    assert "gaps of" not in describe_machine(ended, None)
    assert "gaps      loader 120 a minute" in describe_job(reply["jobs"][0])


def test_tells_what_may_be_done_in_gaps() -> None:
    rules = {
        "reason": "ops end 0.2 ms before a gap is expected to; guaranteed step 3 %: restricted"
    }
    assert f"gaps      {rules['reason']}" in describe_job(job("sweep", gap_rules=rules))
    assert "gaps" not in describe_job(job("sweep", gap_rules=None))


def test_a_job_on_a_gpu_is_told_whose_memory_serves_there() -> None:
    on_gpu = {"devices": ["GPU-0123456789"]}
    for kind, words in (("native", "PyTorch's own"), ("elastic", "what is in use moves")):
        record = job("sweep", **on_gpu)
        record["memory"]["policy"] = kind
        [line] = [row for row in describe_job(record).splitlines() if row.startswith("  on ")]
        assert f"GPU-0123456789; its memory there is {kind}: " in line
        assert words in line
    assert "its memory there" not in describe_job(job("sweep"))


def test_a_slowdown_that_is_no_figure_is_not_shown_as_one() -> None:
    reason = "not known yet: 526.0 % from 3 steps, with a standard error of 885.0 %"
    told = job("prod", "guaranteed", slowdown=None, slowdown_error=None, slowdown_reason=reason)
    assert f"  slowdown  {reason}" in describe_job(told).splitlines()
    row = next(
        line for line in describe_machine(machine(told), None).splitlines() if "prod" in line
    )
    assert "526" not in row
    known = describe_job(job("prod", "guaranteed", slowdown_reason=""))
    assert "  slowdown  +1.2 % (standard error 0.4 %)" in known.splitlines()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_fits_the_terminal_and_says_where_the_rest_is(width: int) -> None:
    lines = describe_machine(THREE, width).splitlines()
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if line.startswith("job "))
    assert {"job", "state", "device"} <= set(heading.split())
    assert ("id" not in heading.split()) == ("'commensal status JOB' shows the rest" in lines)


def test_a_pipe_gets_every_column() -> None:
    text = describe_machine(THREE, None)
    for word in ("char_transformer-1234abcd", "parked", "gap closed", "+1.2 %", "123456 x 12 ms"):
        assert word in text
    assert "shows the rest" not in text


def test_running_jobs_come_first_and_states_are_told() -> None:
    rows = describe_machine(THREE, None).splitlines()[-3:]
    assert [row.split()[0] for row in rows] == ["digits_cnn", "char_transformer", "gone"]
    assert " busy " in rows[0]
    assert " paused " in rows[1]
    assert " ended (its process ended) " in rows[2]
    assert "1 GiB" not in rows[2]  # what it once held is nobody's


def test_one_job_is_told_with_its_reasons() -> None:
    text = describe_job(job("digits_cnn", "guaranteed"))
    for words in (
        "digits_cnn (guaranteed, digits_cnn-1234abcd, tenant vision)",
        "busy, for 5 min",
        "768 MiB on the device, 1 MiB on the slower tier, 0 B parked; limit 1 GiB",
        "4 KiB: thread x blocks signals",
        "1 GiB granted: opportunistic: its maximum fits",
        "gap closed: a burst",
        "0.02 while a guaranteed job is busy: the objective is kept",
        "+1.2 % (standard error 0.4 %)",
        "helper (pid 7), rank 1 (pid 8)",
        "no slower tier",
    ):
        assert words in text


def test_a_job_that_has_not_reported_yet_is_shown() -> None:
    bare = {"job": {"id": "x-1", "name": "x", "class": "guaranteed"}, "ended": False}
    assert "x-1" in describe_machine(machine(bare), None)
    assert describe_job(bare).startswith("x (guaranteed, x-1")


def test_the_cores_that_a_job_keeps_to_are_told_with_the_reason() -> None:
    kept = job("sweep", "opportunistic")
    kept["cores"] = {"cpus": "2-3", "own": "0-3", "reason": "guaranteed jobs leave CPUs 2-3"}
    assert "cores     CPUs 2-3 of 0-3: guaranteed jobs leave CPUs 2-3" in describe_job(kept)
    kept["cores"] = {"cpus": "0-3", "own": "0-3", "reason": ""}
    assert "cores" not in describe_job(kept)
    kept["group"] = {"low": True, "path": "/x", "reason": "cpu.idle 1 for its control group"}
    assert "group     cpu.idle 1 for its control group" in describe_job(kept)


GANG = {
    "gated": True,
    "epoch": 5,
    "ranks": 2,
    "closed": True,
    "closes_total": 0,
    "closes_together_total": 0,
    "collectives": [],
    "reason": "closed together after collective 42",
}


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({}, "  gang      2 ranks, epoch 5: closed together after collective 42"),
        (
            {"closes_total": 3, "closes_together_total": 2},
            "  gang      2 ranks, epoch 5: closed together after collective 42 "
            "(2 of 3 times together)",
        ),
        (
            {"gated": False, "epoch": 0, "reason": "1 of its 2 ranks are here"},
            "  gang      each rank is gated by itself: 1 of its 2 ranks are here",
        ),
    ],
)
def test_a_job_of_several_ranks_tells_of_its_gang(more: dict[str, object], line: str) -> None:
    assert line in describe_job(job("pair", gang=GANG | more)).splitlines()


def test_a_job_of_one_process_has_no_gang() -> None:
    assert "  gang " not in describe_job(job("single", gang=None))
