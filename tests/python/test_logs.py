# SPDX-License-Identifier: Apache-2.0
"""`commensal logs`: the lines of a job, found by id or name, followed over a rotation."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from test_run_training import start_job, stop_job
from training import TELL, TRAIN
from world import COMMENSAL, DEADLINE, World, wait_until

from commensal.cli._log_lines import Entry, LogReader, Selection, find_job, registered_jobs

LOG = """\
2026-11-21 16:14:50.123 info commensald 0.1.0 'default' began: pid 7, 2 cores, 8 GiB (80 %)
2026-11-21 16:14:51.000 info job train-1234abcd: registered, guaranteed, limit 1 GiB
2026-11-21 16:14:52.000 info job train-1234abcd2: registered, opportunistic, limit 1 GiB
2026-11-21 16:14:53.000 info job train-1234abcd: limit 512 MiB as revision 4: needed by another
on two lines
2026-11-21 16:14:54.000 warning answers full: no entry left for job 'train-1234abcd': all in use
2026-11-21 16:14:55.000 info job x-train-1234abcd: process 9 is gone
"""


def test_takes_the_lines_that_name_the_job_and_no_other() -> None:
    selection = Selection("train-1234abcd")
    found = [entry for line in LOG.splitlines() if (entry := selection.feed(line))]
    assert [entry.text for entry in found] == [
        "job train-1234abcd: registered, guaranteed, limit 1 GiB",
        "job train-1234abcd: limit 512 MiB as revision 4: needed by another",
        "on two lines",
        "answers full: no entry left for job 'train-1234abcd': all in use",
    ]
    assert found[3].level == "warning"


def test_an_entry_as_json_names_its_zone() -> None:
    entry = Entry.parse(LOG.splitlines()[1])
    assert entry is not None
    told = entry.to_json("train-1234abcd")
    assert told["schema"] == 1
    assert told["level"] == "info"
    assert told["job"] == "train-1234abcd"
    assert told["text"] == "job train-1234abcd: registered, guaranteed, limit 1 GiB"
    time = datetime.fromisoformat(str(told["time"]))
    assert time.utcoffset() is not None
    assert time.replace(tzinfo=None) == datetime(2026, 11, 21, 16, 14, 51)


def test_the_log_tells_which_jobs_there_were() -> None:
    assert registered_jobs(LOG.splitlines()) == {
        "train-1234abcd": "train",
        "train-1234abcd2": "train-1234abcd2",
    }


def test_a_name_is_the_job_that_runs_else_the_last_one() -> None:
    gone = {"a-1": "a", "a-2": "a", "b-1": "b"}
    assert find_job("a", {"a-3": "a"}, gone) == "a-3"
    assert find_job("a", {}, gone) == "a-2"
    assert find_job("a-1", {"a-3": "a"}, gone) == "a-1"
    with pytest.raises(LookupError, match=r"more than one job has the name 'a': a-3, a-4"):
        find_job("a", {"a-3": "a", "a-4": "a"}, gone)
    with pytest.raises(LookupError, match=r"no job is called 'x'; there are: b-1 \(b\)"):
        find_job("x", {}, {"b-1": "b"})
    with pytest.raises(LookupError, match="the log has no job"):
        find_job("x", {}, {})


def test_reads_older_files_and_follows_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "default.log"
    (tmp_path / "default.2.log").write_text("1\n")
    (tmp_path / "default.1.log").write_text("2\n")
    (tmp_path / "default.x.log").write_text("not ours\n")
    (tmp_path / "other.1.log").write_text("not ours\n")
    path.write_text("3\n4")
    with closing(LogReader(path)) as log:
        assert list(log.older()) == ["1", "2"]
        assert log.read() == ["3"]
        with path.open("a") as writer:
            writer.write("4\n5\n")
        assert log.read() == ["44", "5"]
        assert log.read() == []
        path.rename(tmp_path / "default.0.log")
        assert log.read() == []  # the next one is not there yet
        path.write_text("6\n")
        assert log.read() == ["6"]


def test_no_log_says_where_it_was_sought(world: World) -> None:
    done = world.commensal("logs", "anybody")
    assert done.returncode == 3
    assert f"{world.runtime_dir}/default.log" in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_log_that_cannot_be_read_is_named(world: World) -> None:
    done = world.commensal("logs", "anybody", "--log-file", str(world.folder))
    assert done.returncode == 1
    assert str(world.folder) in done.stderr


def test_a_running_and_an_ended_job_have_their_lines(world: World) -> None:
    process = start_job(world, "trainer", "--guaranteed", "--memory", "64MiB:256MiB")
    follower = world.start([str(COMMENSAL), "logs", "trainer", "-f", "--json"])
    assert follower.stdout is not None
    entry = json.loads(follower.stdout.readline())
    assert "registered, guaranteed" in entry["text"]
    assert entry["job"].startswith("trainer-")
    done = world.commensal("set", "trainer", "--memory", "64MiB:128MiB")
    assert done.returncode == 0, done.stderr
    stop_job(world, "trainer", process)
    rest, errors = follower.communicate(timeout=DEADLINE)  # it ends with the job
    assert follower.returncode == 0, errors
    texts = [json.loads(line)["text"] for line in rest.splitlines()]
    assert any("limit 128 MiB" in text for text in texts), texts
    assert texts[-1].endswith("is gone"), texts

    script = world.script(TRAIN + TELL)
    run = ("run", "--quiet", "--no-idle-class", "--name", "trainer", "--", sys.executable, script)
    assert world.commensal(*run, "3").returncode == 0
    wait_until("ended", lambda: "is gone" in world.commensal("logs", "trainer").stdout)
    last = world.commensal("logs", "trainer")
    assert last.returncode == 0
    assert "registered, opportunistic" in last.stdout  # the last of that name
    assert "registered, guaranteed" not in last.stdout
    first = world.commensal("logs", entry["job"])
    assert "registered, guaranteed" in first.stdout

    unknown = world.commensal("logs", "nobody")
    assert unknown.returncode == 4
    assert f"{entry['job']} (trainer)" in unknown.stderr
    assert unknown.stdout == ""

    # Without a coordinator the log tells the same.
    [daemon] = world.daemons()
    daemon.terminate()
    daemon.wait(DEADLINE)
    assert world.commensal("logs", entry["job"]).stdout == first.stdout
    elsewhere = world.folder / "moved.log"
    shutil.move(world.runtime_dir / "default.log", elsewhere)
    moved = world.commensal("logs", entry["job"], "--log-file", str(elsewhere))
    assert moved.stdout == first.stdout
