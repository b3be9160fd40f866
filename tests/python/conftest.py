# SPDX-License-Identifier: Apache-2.0
"""What the tests of package and command line share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from world import World


@pytest.fixture
def world() -> Iterator[World]:
    # Not tmp_path: a socket's path may have 107 bytes.
    made = World(Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp")))
    yield made
    made.close()
