# SPDX-License-Identifier: Apache-2.0
"""What manages this process, for whoever asks it for something."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from commensal import _core

__all__ = ["CommensalError", "active_session", "current_session", "is_active"]


class CommensalError(RuntimeError):
    """Says in one sentence what was used at the wrong time (too early, too late, twice)."""


def is_active() -> bool:
    """Return whether commensal manages this process. False in a forked child."""
    return current_session() is not None


def current_session() -> _core.Session | None:
    """Return what manages this process. Nothing can, before `_core` was loaded; another thread may
    be loading it now (for `bad_inputs`), and then it has no `current` yet."""
    current = getattr(sys.modules.get("commensal._core"), "current", None)
    return cast("_core.Session | None", current()) if current is not None else None


def active_session() -> _core.Session:
    """Return what manages this process.

    Raises:
        CommensalError: nothing does.
    """
    session = current_session()
    if session is None:
        raise CommensalError(
            "commensal is not active in this process: start the script with 'commensal run', "
            "or call commensal.init() after 'import torch'"
        )
    return session
