# SPDX-License-Identifier: Apache-2.0
"""docs/operating.md as an operator follows it: back to a copy, an upgrade while jobs run."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from test_submit import COORDINATOR, Cluster
from world import World, wait_until

# Waits without a pipe or a timer of its own: it is there until somebody ends it or says so.
WAIT = "while [ ! -e {0} ]; do sleep 0.2; done; echo done"


class Asked(Cluster):
    """Asks for output from this process, too."""

    def output(self, job: str) -> list[str]:
        return str(self.world.ask("read_log", id=job)["text"]).splitlines()


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Asked(world)
    yield cluster
    cluster.close()


def stop(cluster: Cluster) -> None:
    pid = cluster.pid()
    os.kill(pid, signal.SIGTERM)
    wait_until("the coordinator has left", lambda: not psutil.pid_exists(pid))


def state_of(cluster: Cluster) -> Path:
    return cluster.world.folder / "state" / "default"


def test_back_to_a_copy_after_the_store_was_damaged(cluster: Cluster) -> None:
    world, folder = cluster.world, state_of(cluster)
    flag = world.folder / "go on"
    cluster.start("--devices", "2", "--http", "off")
    over = cluster.submit("--", "/bin/sh", "-c", "echo before")
    cluster.wait(over, "finished")
    running = cluster.submit("--guaranteed", "--", "/bin/sh", "-c", WAIT.format(f"'{flag}'"))
    cluster.wait(running, "running")
    copy = Path(world.commensal("backup").stdout.strip())
    assert copy.parent == folder / "backups"
    later = cluster.submit("--", "/bin/sh", "-c", "true")
    cluster.wait(later, "finished")
    stop(cluster)

    store = folder / "cluster.db"
    with store.open("r+b") as file:
        file.seek(4096 + 200)
        file.write(b"\xff" * 64)
    command = [
        str(COORDINATOR),
        "--runtime-dir",
        str(world.runtime_dir),
        "--state-dir",
        str(folder),
    ]
    refused = world.run(command)
    assert refused.returncode == 4
    assert "is damaged" in refused.stderr and "copy a backup to" in refused.stderr
    assert not store.exists()
    assert list(folder.glob("cluster.db.damaged-*"))
    # Nobody who submits may begin with nothing meanwhile.
    done = world.commensal("submit", "--", "/bin/sh", "-c", "true")
    assert done.returncode == 3
    assert "and nothing is in its place" in done.stderr
    assert not store.exists()

    shutil.copy(copy, store)
    cluster.start("--devices", "2", "--http", "off")
    assert cluster.job(over)["state"] == "finished"
    assert cluster.output(over) == ["before"]
    assert cluster.wait(running, "running")["attempt"] == 1  # adopted, not started again
    flag.touch()
    cluster.wait(running, "finished")
    assert cluster.output(running) == ["done"]
    # What came after the copy is not known, but its output is there: no other job gets its number.
    assert int(cluster.submit("--", "/bin/sh", "-c", "true")) == int(later) + 1


def test_no_state_on_the_way_back_to_a_copy_ends_a_job(cluster: Cluster) -> None:
    world, folder = cluster.world, state_of(cluster)
    store, flag = folder / "cluster.db", world.folder / "go on"
    cluster.start("--devices", "1", "--http", "off")
    running = cluster.submit("--guaranteed", "--", "/bin/sh", "-c", WAIT.format(f"'{flag}'"))
    cluster.wait(running, "running")
    copy = Path(world.commensal("backup").stdout.strip())
    stop(cluster)

    aside = folder / "aside"
    aside.mkdir()
    for file in folder.glob("cluster.db*"):
        file.rename(aside / file.name)
    refused = world.commensal("submit", "--", "/bin/sh", "-c", "true")
    assert refused.returncode == 3
    assert "cluster.db is missing, but" in refused.stderr
    assert not store.exists()  # where the copy is to be put
    store.touch()
    command = [str(COORDINATOR), "--runtime-dir", str(world.runtime_dir)]
    command += ["--state-dir", str(folder)]
    refused = world.run(command)
    assert refused.returncode == 4
    assert "cluster.db is empty, but" in refused.stderr and "--begin-anew" in refused.stderr

    shutil.copy(copy, store)
    cluster.start("--devices", "1", "--http", "off")
    assert cluster.wait(running, "running")["attempt"] == 1
    stop(cluster)
    store.unlink()
    cluster.start("--devices", "1", "--http", "off", "--begin-anew")
    jobs = folder / "local" / "jobs"
    wait_until("the job was ended", lambda: not any(jobs.iterdir()))
    assert cluster.submit("--", "/bin/sh", "-c", "true") != running


def test_a_copy_made_by_hand_of_a_running_store_is_no_copy(cluster: Cluster) -> None:
    cluster.start("--http", "off")
    with pytest.raises(sqlite3.OperationalError):  # locked: other programs are kept out
        sqlite3.connect(state_of(cluster) / "cluster.db", timeout=0).execute("SELECT * FROM job")


def test_the_coordinator_is_replaced_while_a_job_runs(cluster: Cluster) -> None:
    flag = cluster.world.folder / "flag"
    cluster.start("--devices", "1", "--http", "off")
    running = cluster.submit("--guaranteed", "--", "/bin/sh", "-c", WAIT.format(f"'{flag}'"))
    cluster.wait(running, "running")
    waiting = cluster.submit("--guaranteed", "--", "/bin/sh", "-c", "echo next")
    stop(cluster)
    cluster.start("--devices", "1", "--http", "off", "--keep-logs", "7")
    assert cluster.job(running)["state"] == "running"
    assert cluster.job(waiting)["state"] == "queued"
    flag.touch()
    cluster.wait(waiting, "finished")
    assert cluster.job(running)["state"] == "finished"
    assert cluster.output(running) == ["done"]


def test_a_runtime_folder_that_is_removed_is_made_again(cluster: Cluster) -> None:
    world, flag = cluster.world, cluster.world.folder / "flag"
    cluster.start("--devices", "1", "--http", "off")
    running = cluster.submit("--guaranteed", "--", "/bin/sh", "-c", WAIT.format(f"'{flag}'"))
    cluster.wait(running, "running")
    pid = cluster.pid()
    shutil.rmtree(world.runtime_dir)
    wait_until("its socket is there again", (world.runtime_dir / "cluster-default.sock").exists)
    assert cluster.pid() == pid
    flag.touch()
    cluster.wait(running, "finished")


def test_output_is_not_old_before_the_clocks_have_agreed_for_a_day(cluster: Cluster) -> None:
    logs = state_of(cluster) / "local" / "logs"
    flag = cluster.world.folder / "flag"
    cluster.start("--http", "off")
    running = cluster.submit("--", "/bin/sh", "-c", WAIT.format(f"'{flag}'"))
    cluster.wait(running, "running")
    stop(cluster)
    old = time.time() - 40 * 86_400
    for name in ("998-1-0.log", "999-1-0.log", "notes"):
        (logs / name).write_text("line\n")
    for name in ("998-1-0.log", f"{running}-1-0.log", "notes"):
        os.utime(logs / name, (old, old))
    cluster.start("--http", "off", "--keep-logs", "30")
    flag.touch()
    cluster.wait(running, "finished")
    left = {path.name for path in logs.iterdir()}
    assert left == {f"{running}-1-0.log", "998-1-0.log", "999-1-0.log", "notes"}


def test_a_keeper_is_found_from_where_the_command_was_typed(cluster: Cluster) -> None:
    world = cluster.world
    (world.folder / "keeper").symlink_to(COORDINATOR.parent / "commensal-keeper")
    cluster.start("--keeper", "keeper", "--http", "off")  # started in that folder
    job = cluster.submit("--", "/bin/sh", "-c", "echo here")
    cluster.wait(job, "finished")
    assert cluster.output(job) == ["here"]


@pytest.mark.parametrize("check", [[], ["--check-config"]])
def test_a_keeper_that_is_not_there_is_refused(world: World, check: list[str]) -> None:
    command = [str(COORDINATOR), "--runtime-dir", str(world.runtime_dir), "--keeper", "absent"]
    done = world.run([*command, *check])
    assert done.returncode == 2
    assert done.stderr == (
        f"commensal-coordinator: --keeper cannot be started: {world.folder}/absent: "
        "No such file or directory\n"
    )
    assert not world.runtime_dir.exists()
