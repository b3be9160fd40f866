# SPDX-License-Identifier: Apache-2.0
"""What the tests of the demo share."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_proc import FakeProc
from recorded import recorded_measurement

from commensal.demo import recording
from commensal.demo.figures import Measurement


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    folder = tmp_path / "proc"
    folder.mkdir()
    return FakeProc(folder)


@pytest.fixture
def measurement() -> Measurement:
    return recorded_measurement()


@pytest.fixture(scope="session")
def real_run() -> Measurement:
    """What a short run of the demo recorded, on a machine that others used, too."""
    return recording.load(Path(__file__).with_name("data") / "short_run.json.gz")
