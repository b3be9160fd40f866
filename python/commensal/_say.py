# SPDX-License-Identifier: Apache-2.0
"""Our own lines: on stderr, marked as ours."""

from __future__ import annotations

import sys

__all__ = ["say"]


def say(line: str) -> None:
    """Print one line of ours on stderr, whatever state stderr is in."""
    try:
        print(f"commensal: {line}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # closed or absent: nobody to tell
        return
