# SPDX-License-Identifier: Apache-2.0
"""Corrupt records of input: a job says which they are, and hears which others have found.

A record is named by a text that means the same in every job, such as "shard-17:4711". The cluster's
coordinator keeps the names by tenant and data set. Outside a job of the cluster everything works
within the process alone. Every function may be called from any thread, and in data loader workers.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from commensal._job_variables import attempt_of

__all__ = ["InputList", "bad_inputs", "reading", "report_bad_input"]

DATASET = "default"
_MOST_NAME = 512  # bytes, as the coordinator has it
_MOST_REASON = 1000
_ASK_AGAIN = 30.0  # seconds
_ANSWER = timedelta(seconds=3)

Ask = Callable[..., dict[str, Any]]


def check_name(what: str, name: str, most: int = _MOST_NAME) -> str:
    """Return a name that the coordinator takes. @raises ValueError naming what is wrong with it."""
    if not isinstance(name, str):
        raise ValueError(f"{what} is a text, not {name!r}")
    if not name:
        raise ValueError(f"{what} is not empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is no valid text: {name!r}") from error
    if size > most:
        raise ValueError(f"{what} has at most {most} bytes, not {size}")
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        raise ValueError(f"{what} holds no control characters: {name!r}")
    if not name.strip():
        raise ValueError(f"{what} is not blank: {name!r}")
    return name


def _one_line(reason: str) -> str:
    """Return a reason that the coordinator takes: an exception's text may be anything."""
    line = " ".join(reason.encode(errors="replace").decode().split())
    line = "".join(letter for letter in line if letter.isprintable() or letter == " ")
    return line.encode()[:_MOST_REASON].decode(errors="ignore")


class InputList:
    """What this process knows of bad inputs: what it was given, heard and said itself.

    Its job's environment says who it is (COMMENSAL_CLUSTER_JOB, ..._ATTEMPT, COMMENSAL_TENANT) and
    which file it was given (COMMENSAL_BAD_INPUTS).
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        ask: Ask,
        clock: Callable[[], float],
        complain: Callable[[str], None],
    ) -> None:
        self._job = environ.get("COMMENSAL_CLUSTER_JOB", "")
        self._attempt = attempt_of(environ, complain)
        self._tenant = environ.get("COMMENSAL_TENANT") or "default"
        self._ask = ask
        self._clock = clock
        self._complain = complain
        self._lock = threading.Lock()
        self._heard: dict[str, frozenset[str]] = {}
        self._said: dict[str, set[str]] = {}
        self._unsent: list[dict[str, Any]] = []
        self._version: dict[str, str] = {}
        self._asked: dict[str, float] = {}
        self._quiet = False
        if file := environ.get("COMMENSAL_BAD_INPUTS"):
            self._read(Path(file))

    def _read(self, file: Path) -> None:
        try:
            datasets = json.loads(file.read_text())["datasets"]
            self._heard = {name: frozenset(records) for name, records in datasets.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._complain(f"the list of bad inputs cannot be read: {file}: {error}")

    def names(self, dataset: str, max_age: float) -> frozenset[str]:
        """Return the names that are known, asking if the last answer is older than `max_age`."""
        check_name("the name of a data set", dataset)
        with self._lock:
            now = self._clock()
            asked = self._asked.get(dataset)
            if self._job and (asked is None or now - asked >= max_age):
                self._asked[dataset] = now
                self._refresh(dataset)
            said = self._said.get(dataset)
            heard = self._heard.get(dataset, frozenset())
            return heard | said if said else heard

    def report(self, record: str, reason: str, dataset: str, *, failing: bool) -> bool:
        """Say that a record is corrupt; return whether the coordinator has heard it."""
        check_name("the name of a data set", dataset)
        check_name("the name of a record", record)
        with self._lock:
            if not failing:
                self._said.setdefault(dataset, set()).add(record)
            if not self._job:
                return False
            self._unsent.append(
                {
                    "id": self._job,
                    "attempt": self._attempt,
                    "dataset": dataset,
                    "record": record,
                    "reason": _one_line(reason),
                    "failing": failing,
                }
            )
            return self._send()

    def _send(self) -> bool:
        """Tell what was not told yet, in order. Where nobody answers it is kept for the next time;
        what is refused is said once, and not again."""
        from commensal._coordinator import Refused, Unreachable

        sent = True
        while self._unsent:
            try:
                self._ask("report_input", **self._unsent[0])
                self._quiet = False
            except Refused as error:
                self._complain(f"a bad input was not reported: {error}")
                sent = False
            except Unreachable as error:
                self._say_once(f"a bad input is not reported yet: {error}")
                del self._unsent[:-_MOST_UNSENT]
                return False
            self._unsent.pop(0)
        return sent

    def _refresh(self, dataset: str) -> None:
        from commensal._coordinator import Refused, Unreachable

        self._send()
        try:
            self._heard[dataset] = frozenset(self._fetch(dataset))
        except (Refused, Unreachable) as error:
            self._say_once(f"what others found in the input is not known: {error}")
        else:
            self._quiet = False

    def _fetch(self, dataset: str) -> frozenset[str]:
        """Return the coordinator's list; asks for its parts until there are no more."""
        fields: dict[str, Any] = {"tenant": self._tenant, "dataset": dataset}
        known = self._version.get(dataset, "")
        answer = self._ask("inputs", **fields, known=known)
        if answer["unchanged"]:
            return self._heard.get(dataset, frozenset())
        version = answer["version"]
        names = [entry["record"] for entry in answer["inputs"]]
        while answer["more"]:
            last = answer["inputs"][-1]
            answer = self._ask("inputs", **fields, after=[last["dataset"], last["record"]])
            names += [entry["record"] for entry in answer["inputs"]]
        self._version[dataset] = version
        return frozenset(names)

    def _say_once(self, line: str) -> None:
        if not self._quiet:
            self._complain(line)
        self._quiet = True


_MOST_UNSENT = 1000


@dataclass
class _Process:
    """What this process knows; a forked child begins with one of its own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    inputs: InputList | None = None

    def begin_anew(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may have held it
        self.inputs = None


_process = _Process()
os.register_at_fork(after_in_child=_process.begin_anew)


def _inputs() -> InputList:
    from commensal._say import say

    with _process.lock:
        if _process.inputs is None:
            _process.inputs = InputList(os.environ, ask_coordinator, time.monotonic, say)
        return _process.inputs


def ask_coordinator(request: str, **fields: Any) -> dict[str, Any]:
    """Ask this job's cluster coordinator. @raises Unreachable, Refused."""
    from commensal._cluster import cluster_of
    from commensal._coordinator import Coordinator, Unreachable
    from commensal._environment import default_instance, default_runtime_dir

    try:
        here = Coordinator(
            default_instance(os.environ), Path(default_runtime_dir(os.environ)).absolute()
        )
        return replace(cluster_of(here), patience=_ANSWER).ask(request, **fields)
    except ValueError as error:  # an address or a name in the environment that is none
        raise Unreachable(str(error)) from error


def bad_inputs(dataset: str = DATASET, *, max_age: float = _ASK_AGAIN) -> frozenset[str]:
    """Return the names of records that jobs of this tenant shall leave out.

    They are what this job was given at its start, what the coordinator says (asked again if its
    last answer is older than `max_age` seconds), and what this process has reported. Where the
    coordinator does not answer, what was known before is returned, and one line on stderr says so.

    Raises:
        ValueError: `dataset` is no name.
    """
    return _inputs().names(dataset, max_age)


def report_bad_input(record: str, reason: str = "", *, dataset: str = DATASET) -> bool:
    """Say that a record is corrupt and that this job leaves it out: other jobs are given its name.

    Return whether the cluster's coordinator has heard it: False outside a job of the cluster, and
    where it does not answer; then it is told with the next call.

    Args:
        record: its name, the same in every job, 512 bytes at most, such as "shard-17:4711".
        reason: for people.
        dataset: which list; names are looked up within one.

    Raises:
        ValueError: `record` or `dataset` is no name.
    """
    return _inputs().report(record, reason, dataset, failing=False)


@contextlib.contextmanager
def reading(record: str, *, dataset: str = DATASET) -> Iterator[None]:
    """Read a record: an exception within becomes a suspicion against it, and goes on.

    Once two attempts of jobs have failed at the same record, and not because of a machine, other
    jobs are given its name. A job that handles the exception and ends well proves nothing.

    Raises:
        ValueError: `record` or `dataset` is no name.
    """
    check_name("the name of a data set", dataset)
    check_name("the name of a record", record)
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _inputs().report(record, reason, dataset, failing=True)
        raise
