# SPDX-License-Identifier: Apache-2.0
"""The cluster coordinator as the command line sees it: ask it, here or elsewhere; start it."""

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
    settled,
    start_daemon,
)

__all__ = ["Cluster", "Remote", "cluster_of", "key_folder", "state_folder"]

_VERSION = 1
_ANSWER = timedelta(seconds=10)


@dataclass(frozen=True)
class Remote:
    """Names a coordinator on another machine, and the key by which it knows this user."""

    address: str
    key_folder: Path
    key: str

    def frame(self, frame: str, timeout_ms: int) -> str:
        from commensal import _core

        try:
            return _core.remote_frame(
                self.address, str(self.key_folder), self.key, frame, timeout_ms
            )
        except (_core.KeyProblem, _core.KeyRefused) as error:
            raise Refused(str(error)) from error


@dataclass(frozen=True)
class Cluster:
    """Names one cluster coordinator: of this machine by instance and folder, or a remote one."""

    instance: str
    runtime_dir: Path
    remote: Remote | None = None
    patience: timedelta = _ANSWER  # for one answer

    @property
    def _endpoint(self) -> Coordinator:
        # Beside a node coordinator of the same name, with sockets of its own.
        return Coordinator(f"cluster-{self.instance}", self.runtime_dir)

    def listens(self) -> bool:
        """Return whether a process listens on the socket; does not ask it anything.

        Of a remote one only an answer tells: it is taken to listen.
        """
        return self.remote is not None or self._endpoint.listens()

    def ask(self, request: str, /, **fields: Any) -> dict[str, Any]:
        """Ask one thing (docs/cluster.md, "messages"); return the answer.

        @raises Unreachable, Refused.
        """
        from commensal import _core

        frame = json.dumps({"v": _VERSION, "type": request} | fields)
        try:
            answer = json.loads(self._frame(frame, int(self.patience / timedelta(milliseconds=1))))
        except _core.CoordinatorUnreachable as error:
            raise Unreachable(str(error)) from error
        except ValueError as error:
            raise Unreachable(f"the coordinator's answer cannot be read: {error}") from error
        if answer.get("type") == "error":
            raise Refused(answer.get("what", "no reason given"))
        return dict(answer)

    def _frame(self, frame: str, timeout_ms: int) -> str:
        from commensal import _core

        if self.remote is not None:
            return self.remote.frame(frame, timeout_ms)
        return _core.control_frame(str(self._endpoint.socket_path), frame, timeout_ms)

    def knows(self, job: str) -> bool:
        """Return whether a word is the id of a job here. False without a coordinator.

        A remote one knows every number, so that what it says about it is heard; likewise one that
        listens and does not answer.
        """
        if not job.isdecimal() or not self.listens():
            return False
        if self.remote is not None:
            return True
        try:
            self.ask("explain", id=job)
        except Refused:
            return False
        except Unreachable:
            return True
        return True

    def has_ended(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether one ran here, and left its store, and nobody listens now."""
        return not self.listens() and self._has_store(environ)

    def _has_store(self, environ: Mapping[str, str]) -> bool:
        folder = state_folder(self.instance, environ)
        # Also one that is kept aside: the coordinator says what to do about it.
        return folder is not None and any(folder.glob("cluster.db*"))

    def bring_back(self, environ: Mapping[str, str] = os.environ) -> str:
        """Start the coordinator again if it was killed. Returns why it does not run then.

        One that was killed has left its socket; one that was asked to end has not, and whoever did
        that may be at its store. Nor has one of before a restart of the machine.
        """
        if not self.has_ended(environ) or not self._endpoint.socket_path.exists():
            return ""
        return self.ensure_running(environ)

    def ensure_running(self, environ: Mapping[str, str] = os.environ) -> str:
        """Start the coordinator unless one listens. Returns why there is none; empty: there is.

        A remote one is never started.
        """
        if self.listens():
            return ""
        program = find_program("commensal-coordinator")
        if program is None:
            return (
                "commensal-coordinator is not installed beside this command: "
                "./scripts/setup builds it"
            )
        command = [str(program), "--instance", self.instance, "--runtime-dir"]
        command += [str(self.runtime_dir), "--commensal", _own_command()]
        if folder := state_folder(self.instance, environ):
            command += ["--state-dir", str(folder)]
        reason = start_daemon(command, self._endpoint.log_path)
        return settled(reason, self.listens)


def _own_command() -> str:
    """Return the program `commensal` that this process is, or that is installed beside it."""
    own = Path(sys.argv[0])
    if own.name == "commensal" and own.is_file():
        return str(own.absolute())
    found = find_program("commensal")
    return str(found) if found else "commensal"


def state_folder(instance: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return where a coordinator keeps what it must not forget; None without a home."""
    if not (folder := environ.get("COMMENSAL_STATE_DIR")):
        if xdg := environ.get("XDG_STATE_HOME"):
            folder = os.path.join(xdg, "commensal")
        elif home := environ.get("HOME"):
            folder = os.path.join(home, ".local", "state", "commensal")
        else:
            return None
    return Path(folder, instance).absolute()


def key_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's keys. @raises ValueError without a home."""
    from commensal import _core

    return Path(environ.get("COMMENSAL_KEYS_DIR") or _core.default_key_folder()).absolute()


def cluster_of(
    coordinator: Coordinator, address: str | None = None, environ: Mapping[str, str] = os.environ
) -> Cluster:
    """Return the coordinator at an address, else at COMMENSAL_COORDINATOR, else that of here.

    That of here has the name of a node's coordinator. @raises ValueError for what is no address,
    and without a home.
    """
    address = address or environ.get("COMMENSAL_COORDINATOR")
    remote = None
    if address:
        from commensal import _core

        _core.check_address(address)
        remote = Remote(address, key_folder(environ), environ.get("COMMENSAL_KEY") or "client")
    return Cluster(coordinator.instance, coordinator.runtime_dir, remote)
