# SPDX-License-Identifier: Apache-2.0
"""The pre-run of a gang (`commensal submit --prerun`): tells when its first step is done."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from commensal._job_variables import attempt_of

__all__ = ["FirstStep", "watch_first_step"]

_LOOK = 0.25  # seconds between two looks at the session's steps
_AGAIN = 5.0  # seconds, after nobody answered

Ask = Callable[..., dict[str, Any]]


class _Steps(Protocol):
    def stats_json(self) -> str: ...


class FirstStep:
    """Tells the cluster's coordinator once that a session has made a step."""

    def __init__(
        self, environ: Mapping[str, str], ask: Ask, complain: Callable[[str], None]
    ) -> None:
        self._job = environ.get("COMMENSAL_CLUSTER_JOB", "")
        self._attempt = attempt_of(environ, complain)
        self._ask = ask
        self._complain = complain
        self._quiet = False
        self.over = not self._job  # there is nothing to be told, or no more

    def look(self, session: _Steps) -> float:
        """Look, and tell if it is time to. Return the seconds until the next look."""
        from commensal._coordinator import Refused, Unreachable
        from commensal._core import SessionError

        try:
            made = int(json.loads(session.stats_json())["step"]["number"])
        except SessionError:  # the session has ended with its script
            self.over = True
            return 0.0
        if made < 1:
            return _LOOK
        try:
            self._ask("first_step", id=self._job, attempt=self._attempt)
        except Unreachable as error:
            if not self._quiet:
                self._complain(f"the first step is not reported yet: {error}")
            self._quiet = True
            return _AGAIN
        except Refused as error:
            self._complain(f"the first step is not reported: {error}")
        self.over = True
        return 0.0


def watch_first_step(session: _Steps) -> None:
    """Look from a thread of its own until the first step was told or the session has ended."""
    from commensal._inputs import ask_coordinator
    from commensal._say import say

    first = FirstStep(os.environ, ask_coordinator, say)

    def work() -> None:
        while not first.over:
            time.sleep(first.look(session))

    if not first.over:
        threading.Thread(target=work, name="commensal-first-step", daemon=True).start()
