# SPDX-License-Identifier: Apache-2.0
"""What the tests of package and command line share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave what takes too long for each run to `./scripts/soak`."""
    if os.environ.get("COMMENSAL_SLOW_TESTS") == "1":
        return
    for item in items:
        if item.get_closest_marker("soak"):
            item.add_marker(
                pytest.mark.skip(reason="runs in ./scripts/soak (COMMENSAL_SLOW_TESTS=1)")
            )


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    # Not tmp_path: a socket's path may have 107 bytes.
    made = World(Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp")))
    made.fresh = request.node.get_closest_marker("fresh_process") is not None
    yield made
    made.close()
