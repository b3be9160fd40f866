# SPDX-License-Identifier: Apache-2.0
"""What holds for all Python tests."""

from __future__ import annotations

import signal
from collections import defaultdict
from pathlib import Path

import pytest

# What a shell starts in its background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DURATIONS = Path(__file__).with_name("durations.txt")


def seconds_of_files() -> dict[str, float]:
    """Return what the long tests of each file take together (scripts/durations)."""
    seconds: dict[str, float] = defaultdict(float)
    for line in DURATIONS.read_text(encoding="utf-8").splitlines():
        took, _, name = line.partition(" ")
        if "::" in name:
            seconds[name.partition("::")[0]] += float(took)
    return seconds


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: what comes last then keeps no worker waiting."""
    seconds = seconds_of_files()
    items.sort(key=lambda item: -seconds[item.path.relative_to(config.rootpath).as_posix()])
