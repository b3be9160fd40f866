# SPDX-License-Identifier: Apache-2.0
"""The cluster coordinator as the command line sees it: ask it, start it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from commensal._coordinator import (
    Coordinator,
    Refused,
    Unreachable,
    find_program,
    start_daemon,
)

__all__ = ["Cluster", "cluster_of"]

_VERSION = 1
_ANSWER = timedelta(seconds=10)


@dataclass(frozen=True)
class Cluster:
    """Names one cluster coordinator of this machine by its instance and its folder."""

    instance: str
    runtime_dir: Path

    @property
    def _endpoint(self) -> Coordinator:
        # Beside a node coordinator of the same name, with sockets of its own.
        return Coordinator(f"cluster-{self.instance}", self.runtime_dir)

    def listens(self) -> bool:
        """Return whether a process listens on the socket; does not ask it anything."""
        return self._endpoint.listens()

    def ask(self, request: str, /, **fields: Any) -> dict[str, Any]:
        """Ask one thing (docs/cluster.md, "messages"); return the answer.

        @raises Unreachable, Refused.
        """
        from commensal import _core

        frame = json.dumps({"v": _VERSION, "type": request} | fields)
        try:
            text = _core.control_frame(
                str(self._endpoint.socket_path), frame, int(_ANSWER / timedelta(milliseconds=1))
            )
            answer = json.loads(text)
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except ValueError as error:
            raise Unreachable(f"the coordinator's answer cannot be read: {error}") from error
        if answer.get("type") == "error":
            raise Refused(answer.get("what", "no reason given"))
        return dict(answer)

    def knows(self, job: str) -> bool:
        """Return whether a word is the id of a job here. False without a coordinator."""
        if not job.isdecimal() or not self.listens():
            return False
        try:
            self.ask("explain", id=job)
        except (Unreachable, Refused):
            return False
        return True

    def ensure_running(self, environ: Mapping[str, str] = os.environ) -> str:
        """Start the coordinator unless one listens. Returns why there is none; empty: there is."""
        if self.listens():
            return ""
        program = find_program("commensal-coordinator")
        if program is None:
            return "commensal-coordinator is not installed beside this command"
        command = [str(program), "--instance", self.instance, "--runtime-dir"]
        command += [str(self.runtime_dir), "--commensal", _own_command()]
        if state := environ.get("COMMENSAL_STATE_DIR"):
            command += ["--state-dir", str(Path(state, self.instance).absolute())]
        reason = start_daemon(command, self._endpoint.log_path)
        return "" if self.listens() else reason  # another one may have been quicker


def _own_command() -> str:
    """Return the program `commensal` that this process is, or that is installed beside it."""
    own = Path(sys.argv[0])
    if own.name == "commensal" and own.is_file():
        return str(own.absolute())
    found = find_program("commensal")
    return str(found) if found else "commensal"


def cluster_of(coordinator: Coordinator) -> Cluster:
    """Return the cluster coordinator that has the name of a node's."""
    return Cluster(coordinator.instance, coordinator.runtime_dir)
