# SPDX-License-Identifier: Apache-2.0
"""The demo from end to end, as short as it goes: real jobs, a real coordinator, a real report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commensal.demo import recording
from commensal.demo.figures import figures_of


@pytest.mark.slow
@pytest.mark.alone
def test_a_short_demo_passes_its_own_checks(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "commensal"
    done = subprocess.run(
        [
            str(command),
            *("demo", "--seconds", "1", "--out", str(tmp_path / "out")),
            *("--json", str(tmp_path / "figures.json")),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["bit_identical"] is True
    assert found["judged"] is False
    assert "A shortened run: the figures are not judged." in found["notes"]
    assert found["opportunistic"]["shrinks"] >= 1
    assert found["opportunistic"]["bytes_moved"] >= 64 << 20
    assert all(tracker["agrees"] for tracker in found["step_tracker"])
    assert found["guaranteed"]["slowdown_default"] > -1
    assert found["opportunistic"]["harvest_commensal"] > 0
    assert (tmp_path / "out" / "report.html").stat().st_size > 50_000
    kept = recording.load(tmp_path / "out" / "recording.json.gz")
    assert figures_of(kept).as_json() == found
    assert "window 4 of 4: both under commensal" in done.stderr
    assert "\x1b" not in done.stderr
    assert str(tmp_path / "out" / "report.html") in done.stdout.replace("\n", "")
