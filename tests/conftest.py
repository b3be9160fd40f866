# SPDX-License-Identifier: Apache-2.0
"""What holds for all Python tests."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

# What a shell starts in its background ignores Ctrl-C, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DURATIONS = Path(__file__).with_name("durations.txt")
CHANGED = Path(__file__).parents[1] / "scripts" / "changed"


def seconds_of_files() -> dict[str, float]:
    """Return what the long tests of each file take together (scripts/durations)."""
    seconds: dict[str, float] = defaultdict(float)
    for line in DURATIONS.read_text(encoding="utf-8").splitlines():
        took, _, name = line.partition(" ")
        if "::" in name:
            seconds[name.partition("::")[0]] += float(took)
    return seconds


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what ./scripts/test asks for."""
    parser.addoption(
        "--no-unchanged-tools",
        action="store_true",
        help="leave out tests of tools that have not changed (marker `tool`, ./scripts/changed)",
    )


@functools.cache
def changed(paths: tuple[str, ...]) -> bool:
    """Tell whether one of these has changed, or whether that cannot be told."""
    return subprocess.run([str(CHANGED), *paths], check=False).returncode == 0


def is_unchanged_tool(item: pytest.Item) -> bool:
    """Tell whether this tests a tool of ours that is as it was when it was tested last."""
    mark = item.get_closest_marker("tool")
    return mark is not None and not changed((*mark.args, str(item.path)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest: what comes last then keeps no worker waiting."""
    if config.getoption("--no-unchanged-tools"):
        left_out = [item for item in items if is_unchanged_tool(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    seconds = seconds_of_files()
    items.sort(key=lambda item: -seconds[item.path.relative_to(config.rootpath).as_posix()])
