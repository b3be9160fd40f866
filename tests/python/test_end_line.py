# SPDX-License-Identifier: Apache-2.0
"""The one line at the end of `commensal run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commensal._coordinator import Coordinator
from commensal._end_line import Ending, collect, describe_end
from commensal._environment import JobSettings


class KnowingCoordinator(Coordinator):
    """Answers with fixed jobs."""

    jobs: tuple[dict[str, Any], ...] = ()

    def listens(self) -> bool:
        return True

    def status(self, *_: object, **__: object) -> dict[str, Any]:
        return {"jobs": list(self.jobs)}


def settings(folder: Path) -> JobSettings:
    return JobSettings("train-1", "train", "opportunistic", summary_file=folder / "summary")


def silent(folder: Path) -> Coordinator:
    return Coordinator("default", folder / "nobody")


def report(given_back: int, moves: int, pause: float) -> dict[str, Any]:
    return {
        "memory": {
            "given_back_bytes_total": given_back,
            "moves_total": moves,
            "longest_pause_seconds": pause,
        }
    }


def test_says_what_the_issue_says() -> None:
    ending = Ending(
        active=True,
        shared_seconds=720,
        given_back_bytes=int(3.1 * 2**30),
        moves=4,
        longest_pause_seconds=0.012,
        neighbour_slowdown=0.004,
    )
    assert describe_end(ending) == (
        "shared 12 min, gave back 3.1 GiB in 4 moves, longest pause 12 ms, neighbour +0.4 %"
    )


def test_leaves_out_what_nobody_knows() -> None:
    assert describe_end(Ending(active=True, given_back_bytes=0, moves=0)) == "gave back 0 B"
    assert describe_end(Ending(active=True, shared_seconds=0.0)) == "had no neighbour"
    assert "ended before it could report" in describe_end(Ending(active=True))


def test_says_when_nothing_was_active(tmp_path: Path) -> None:
    ending = collect(settings(tmp_path), silent(tmp_path), 5)
    assert (ending.active, ending.failure) == (False, "")
    line = describe_end(Ending(active=False, failure="the script did not import PyTorch"))
    assert line == "nothing was managed: the script did not import PyTorch"


def test_repeats_why_activation_failed(tmp_path: Path) -> None:
    (tmp_path / "summary.7.failed").write_text("built for PyTorch 9.9")
    assert "built for PyTorch 9.9" in describe_end(collect(settings(tmp_path), silent(tmp_path), 5))


def test_adds_up_the_processes_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "summary.7").write_text(json.dumps(report(10, 1, 0.5)))
    (tmp_path / "summary.8").write_text(json.dumps(report(20, 2, 0.1)))
    (tmp_path / "summary.9").write_text('{"memory": {"given_')  # killed while it wrote
    ending = collect(settings(tmp_path), silent(tmp_path), 5)
    assert (ending.given_back_bytes, ending.moves, ending.longest_pause_seconds) == (30, 3, 0.5)
    assert ending.shared_seconds is None


def test_takes_the_coordinators_record_of_a_killed_job(tmp_path: Path) -> None:
    (tmp_path / "summary.7.active").write_text("opportunistic")
    coordinator = KnowingCoordinator("default", tmp_path)
    own = report(5, 1, 0.1) | {"job": {"id": "train-1", "class": "opportunistic"}}
    other = {
        "job": {"id": "other", "class": "guaranteed"},
        "slowdown": 0.02,
        "started_seconds_ago": 3.0,
    }
    object.__setattr__(coordinator, "jobs", (own, other))
    ending = collect(settings(tmp_path), coordinator, 60)
    assert ending == Ending(
        active=True,
        shared_seconds=3.0,
        given_back_bytes=5,
        moves=1,
        longest_pause_seconds=0.1,
        neighbour_slowdown=0.02,
    )


def stay(started: float, ended: float | None = None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "job": {"id": f"other-{started}", "class": "opportunistic"},
        "started_seconds_ago": started,
        "ended": ended is not None,
    }
    return record if ended is None else record | {"ended_seconds_ago": ended}


@pytest.mark.parametrize(
    ("seconds", "others", "shared"),
    [
        (60.0, [], 0.0),
        (60.0, [stay(10.0)], 10.0),
        (5.0, [stay(10.0)], 5.0),
        (60.0, [stay(500.0, ended=100.0)], 0.0),  # left before this job came
        (60.0, [stay(50.0, ended=30.0), stay(10.0)], 30.0),
        (60.0, [stay(50.0, ended=20.0), stay(40.0, ended=10.0)], 40.0),  # overlap counts once
        (60.0, [stay(50.0) | {"ended": True}], None),  # nobody knows when it left
    ],
)
def test_counts_the_time_with_a_neighbour(
    tmp_path: Path, seconds: float, others: list[dict[str, Any]], shared: float | None
) -> None:
    (tmp_path / "summary.7").write_text(json.dumps(report(0, 0, 0.0)))
    coordinator = KnowingCoordinator("default", tmp_path)
    own = {"job": {"id": "train-1", "class": "opportunistic"}}
    object.__setattr__(coordinator, "jobs", (own, *others))
    assert collect(settings(tmp_path), coordinator, seconds).shared_seconds == shared
