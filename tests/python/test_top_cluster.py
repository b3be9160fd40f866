# SPDX-License-Identifier: Apache-2.0
"""`commensal top --cluster`: what it shows of a cluster, in how many lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from test_submit import SHELL, Cluster
from world import COMMENSAL, World, read_line

from commensal.cli._top_cluster import ClusterFrame, draw_cluster

NOW = 10_000.0


def job(number: int, state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": str(number),
        "name": f"train-{number}",
        "tenant": "vision",
        "state": state,
        "reason": "waits for its tenant's quota: 1 of 1 in use, it asks for 1",
        "gpus": 2,
        "submitted_ms": (NOW - 90) * 1000,
        "changed_ms": (NOW - 30) * 1000,
        "placement": [{"node": "n1", "device": 0}, {"node": "n1", "device": 1}],
        "cancelling": False,
        **more,
    }


def frame(*jobs: dict[str, Any], **more: Any) -> ClusterFrame:
    device = {"id": "gpu", "type": "A100", "jobs": [{"id": "1", "class": "guaranteed"}]}
    nodes = [
        {"name": "n1", "state": "up", "reason": "", "devices": [device, device | {"jobs": []}]},
        {"name": "n2", "state": "drained", "reason": "new disk", "devices": []},
    ]
    tenants = [
        {"name": "vision", "quota": 4, "guaranteed_devices": 2, "opportunistic_devices": 1}
        | {"waiting_jobs": 1},
        {"name": "free", "quota": None, "guaranteed_devices": 0, "opportunistic_devices": 0}
        | {"waiting_jobs": 0},
    ]
    coordinator = {"engine": "local", "policy": "antman", "problem": "", "pid": 7}
    return ClusterFrame(
        {"coordinator": coordinator, "nodes": nodes}, list(jobs), tenants, NOW, **more
    )


def drawn(shown: ClusterFrame, height: int | None = None, width: int = 100) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, height=height, color_system=None).print(
        draw_cluster(shown, height)
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_shows_nodes_jobs_queue_and_tenants() -> None:
    running = job(1, "running", **{"class": "guaranteed"})
    text = drawn(frame(running, job(2, "queued"), job(3, "running", cancelling=True)))
    assert text[0] == "commensal cluster  engine local, policy antman, 2 placed, 1 waiting"

    def line(beginning: str) -> list[str]:
        [found] = [one for one in text if one.startswith(beginning)]
        return found.split(None, 6)

    assert line("n1 ")[1:] == ["up", "1", "of", "2", "busy", "1"]
    assert "drained: new disk" in next(one for one in text if one.startswith("n2"))
    assert line("1 ")[1:6] == ["train-1", "vision", "guaranteed", "running", "30"]
    assert "n1:0, n1:1" in next(one for one in text if one.startswith("1 "))
    assert "waits for its tenant's quota: 1 of 1" in next(o for o in text if o.startswith("2 "))
    assert "is being ended" in next(one for one in text if one.startswith("3 "))
    assert line("vision ")[1:4] == ["2", "of", "4"]
    assert line("free ")[1:2] == ["0"]


def test_a_parked_job_is_shown_and_counts_for_nothing() -> None:
    text = drawn(frame(job(1, "parked", placement=[]), job(2, "queued")))
    assert text[0].endswith("0 placed, 1 waiting")
    assert "parked" in next(one for one in text if one.startswith("1 "))


def test_says_what_is_wrong() -> None:
    assert drawn(frame(trouble="no answer for 3 s"))[0].endswith("0 waiting  no answer for 3 s")
    broken = frame()
    broken.nodes["coordinator"]["problem"] = "squeue is missing"
    assert drawn(broken)[0].endswith("squeue is missing")


@pytest.mark.parametrize("height", [24, 30, 60])
def test_fits_the_terminal_and_says_what_is_left_out(height: int) -> None:
    jobs = [job(n, "running", **{"class": "opportunistic"}) for n in range(1, 50)]
    jobs += [job(n, "queued") for n in range(50, 150)]
    text = drawn(frame(*jobs), height)
    assert len(text) <= height
    left_out = [int(one.split()[1]) for one in text if one.startswith("and ")]
    rows = sum(one.split()[0].isdecimal() for one in text if one)
    assert sum(left_out) + rows == 149


def test_words_of_users_are_no_markup() -> None:
    text = "\n".join(drawn(frame(job(1, "queued", name="[red]x[/red]", reason="[bold]"))))
    assert "[red]x[/red]" in text
    assert "[bold]" in text


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


def test_a_real_cluster_as_text_and_as_json(cluster: Cluster) -> None:
    ended = cluster.submit("--name", "quick", "--", *SHELL, "true")
    cluster.wait(ended, "finished")
    go = cluster.world.folder / "go"
    runs = cluster.submit("--name", "long", "--", *SHELL, f"until [ -e {go} ]; do sleep 0.05; done")
    cluster.wait(runs, "running")
    text = cluster.world.commensal("top", "--cluster").stdout
    assert "engine local" in text
    assert "long" in text
    assert "quick" not in text
    lines = cluster.world.start([str(COMMENSAL), "top", "--cluster", "--json", "--interval", "0.1"])
    first, second = (json.loads(read_line(lines, "jobs")) for _ in range(2))
    assert first["schema"] == 1
    assert [one["id"] for one in second["jobs"]] == [runs]
    assert second["time_seconds"] > first["time_seconds"]
    assert second["nodes"][0]["devices"][0]["jobs"][0]["id"] == runs
    go.touch()


def test_without_a_coordinator_it_says_so(cluster: Cluster) -> None:
    done = cluster.world.commensal("top", "--cluster", "--once")
    assert (done.returncode, done.stdout) == (3, "")
    assert "'commensal submit' starts a coordinator" in done.stderr
