# SPDX-License-Identifier: Apache-2.0
"""A kept run is the run."""

from __future__ import annotations

from pathlib import Path

from commensal.demo import recording
from commensal.demo.figures import Measurement, check, figures_of


def test_nothing_is_lost(measurement: Measurement, tmp_path: Path) -> None:
    path = tmp_path / "recording.json.gz"
    recording.save(path, measurement)
    assert recording.load(path) == measurement


def test_the_same_run_makes_the_same_file(measurement: Measurement, tmp_path: Path) -> None:
    paths = [tmp_path / "first", tmp_path / "second"]
    for path in paths:
        recording.save(path, measurement)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_real_run_passes_its_checks(real_run: Measurement) -> None:
    assert check(real_run, figures_of(real_run)) == []
