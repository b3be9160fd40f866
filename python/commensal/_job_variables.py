# SPDX-License-Identifier: Apache-2.0
"""Numbers that a cluster's coordinator leaves in a job's environment.

The script trains whatever they hold: one that cannot be read is named on stderr, once for each
process, and then it is as if it were not set.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

__all__ = ["attempt_of", "loss_interval_of"]

_LARGEST_ATTEMPT = 2**32 - 1  # as the coordinator counts them
_WHOLE = re.compile(r"[0-9]{1,10}")
_said: set[str] = set()


def attempt_of(environ: Mapping[str, str], complain: Callable[[str], None]) -> int:
    """Return which start of its job this is; 0: nobody says so."""
    text = environ.get("COMMENSAL_CLUSTER_ATTEMPT", "")
    if not text:
        return 0
    number = int(text) if _WHOLE.fullmatch(text) else _LARGEST_ATTEMPT + 1
    if number <= _LARGEST_ATTEMPT:
        return number
    line = f"COMMENSAL_CLUSTER_ATTEMPT: not the number of an attempt: {text!r}; it is not used"
    _say_once(line, complain)
    return 0


def loss_interval_of(environ: Mapping[str, str], complain: Callable[[str], None]) -> float:
    """Return the seconds between two reports of the loss; 0: it is not reported."""
    text = environ.get("COMMENSAL_REPORT_LOSS", "")
    if not text:
        return 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds) and seconds >= 0:
        return seconds
    line = f"COMMENSAL_REPORT_LOSS: not a number of seconds: {text!r}; it is not used"
    _say_once(line, complain)
    return 0.0


def _say_once(line: str, complain: Callable[[str], None]) -> None:
    if line not in _said:
        _said.add(line)
        complain(line)
