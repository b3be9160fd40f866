# SPDX-License-Identifier: Apache-2.0
"""When a command that asks the cluster's coordinator starts one again (no process is)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from commensal import _cluster
from commensal._cluster import Cluster, state_folder

REFUSAL = "commensal-coordinator ended with code 4: the store is empty, and jobs run"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"COMMENSAL_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Return the commands that were started; each ends at once, with a reason."""
    commands: list[Sequence[str]] = []

    def start(command: Sequence[str], _: Path) -> str:
        commands.append(command)
        return REFUSAL

    monkeypatch.setattr(_cluster, "start_daemon", start)
    monkeypatch.setattr(_cluster, "find_program", Path)
    return commands


def cluster(tmp_path: Path, *, socket_left: bool, store: str | None) -> Cluster:
    (tmp_path / "run").mkdir()
    if socket_left:
        left = socket.socket(socket.AF_UNIX)  # nobody listens
        left.bind(str(tmp_path / "run" / "cluster-default.sock"))
        left.close()
    if store is not None:
        (tmp_path / "state" / "default").mkdir(parents=True)
        (tmp_path / "state" / "default" / store).touch()
    return Cluster("default", tmp_path / "run")


@pytest.mark.parametrize("store", ["cluster.db", "cluster.db.damaged-20260101T000000Z"])
def test_one_that_was_killed_is_started_at_its_store(
    tmp_path: Path, environ: dict[str, str], started: list[Sequence[str]], store: str
) -> None:
    killed = cluster(tmp_path, socket_left=True, store=store)
    assert killed.has_ended(environ)
    assert killed.bring_back(environ) == REFUSAL
    (command,) = started
    assert command[command.index("--state-dir") + 1] == str(tmp_path / "state" / "default")


@pytest.mark.parametrize(
    ("socket_left", "store"), [(False, "cluster.db"), (True, None), (False, None)]
)
def test_one_that_was_asked_to_end_or_never_was_is_not(
    tmp_path: Path,
    environ: dict[str, str],
    started: list[Sequence[str]],
    socket_left: bool,
    store: str | None,
) -> None:
    gone = cluster(tmp_path, socket_left=socket_left, store=store)
    assert gone.has_ended(environ) == (store is not None)
    assert gone.bring_back(environ) == ""
    assert started == []


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"COMMENSAL_STATE_DIR": "/s", "HOME": "/h"}, Path("/s/default")),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, Path("/x/commensal/default")),
        ({"HOME": "/h"}, Path("/h/.local/state/commensal/default")),
        ({}, None),
    ],
)
def test_the_folder_is_that_of_the_coordinator(
    environ: dict[str, str], folder: Path | None
) -> None:
    assert state_folder("default", environ) == folder
