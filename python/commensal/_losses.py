# SPDX-License-Identifier: Apache-2.0
"""The loss of a job whose own rule looks at it (`submit --end-when-flat`, `--park-when-flat`)."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

from commensal._job_variables import attempt_of, loss_interval_of

__all__ = ["LossReporter", "note_loss"]

_MOST_POINTS = 100  # that wait to be told
_AGAIN = 5.0  # seconds, after nobody answered

Ask = Callable[..., dict[str, Any]]


class LossReporter:
    """Tells the cluster's coordinator a loss now and then, on a thread of its own.

    `note` waits for nothing but, once in `interval` seconds, for the number itself: a tensor's
    value is there when its device has computed it.
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
        self._interval = loss_interval_of(environ, complain)
        # Ranks of a gang have the same loss, or each its part of it: the first one's will do.
        first = environ.get("RANK", "0") in ("", "0")
        self.active = bool(self._job) and self._interval > 0 and first
        self._ask = ask
        self._clock = clock
        self._complain = complain
        self._next = -math.inf
        self._points: deque[tuple[float, float]] = deque(maxlen=_MOST_POINTS)
        self._woken = threading.Condition()
        self._thread: threading.Thread | None = None
        self._quiet = False

    def note(self, loss: SupportsFloat) -> None:
        """Take a loss, if it is time for one. @raises TypeError, ValueError: it is no number."""
        now = self._clock()
        if not self.active or now < self._next:
            return
        self._next = now + self._interval
        value = float(loss)
        with self._woken:
            self._points.append((now, value))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="commensal-loss", daemon=True
                )
                self._thread.start()
            self._woken.notify()

    def _work(self) -> None:
        while self.active:
            with self._woken:
                while not self._points:
                    self._woken.wait()
            if not self.tell():
                time.sleep(_AGAIN)

    def tell(self) -> bool:
        """Tell what was noted; return False if nobody answers: it is kept."""
        from commensal._coordinator import Refused, Unreachable

        with self._woken:
            points = list(self._points)
        now = self._clock()
        told = [
            {"age_ms": round((now - at) * 1000), "loss": loss if math.isfinite(loss) else None}
            for at, loss in points
        ]
        try:
            self._ask("report_loss", id=self._job, attempt=self._attempt, points=told)
        except Unreachable as error:
            if not self._quiet:
                self._complain(f"the loss is not reported yet: {error}")
            self._quiet = True
            return False
        except Refused as error:
            self._complain(f"the loss is not reported any more: {error}")
            self.active = False
        self._quiet = False
        with self._woken:
            for _ in points:
                if self._points and self._points[0] in points:
                    self._points.popleft()
        return True


@dataclass
class _Process:
    """This process's reporter; a forked child begins with one of its own."""

    reporter: LossReporter | None = None

    def begin_anew(self) -> None:
        self.reporter = None


_process = _Process()
os.register_at_fork(after_in_child=_process.begin_anew)


def note_loss(loss: SupportsFloat) -> None:
    """Take a loss of this process's job. Without a rule that looks at it, it is not even read."""
    if _process.reporter is None:
        from commensal._inputs import ask_coordinator
        from commensal._say import say

        _process.reporter = LossReporter(os.environ, ask_coordinator, time.monotonic, say)
    _process.reporter.note(loss)
