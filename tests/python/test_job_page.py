# SPDX-License-Identifier: Apache-2.0
"""What `commensal profile` reads on a job's page is what the session of that job says."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from training import facts_of
from world import World

from commensal._core import GAP_PHASES, JobPage
from commensal.profiling.job_page import Activity, activity_of, find_job_page

SCRIPT = """
import json, os, time, torch, commensal
from commensal.profiling.job_page import Activity, find_job_page
before = find_job_page(os.getpid())
commensal.init(job_class="guaranteed")
kept = torch.ones(1 << 20)
for _ in range(7):
    commensal.step()
page = find_job_page(os.getpid())
end = time.monotonic() + 60  # it is published every now and then
while page.device_bytes < kept.nbytes and time.monotonic() < end:
    time.sleep(0.01)
stats = commensal.stats()
between = page.activity  # no optimizer: it has answered a request, and waits for the next one
torch.ones(10)
print(json.dumps({
    "before": before is not None,
    "steps": [page.step_number, stats["step"]["number"]],
    "device": [page.device_bytes, stats["memory"]["device_bytes"]],
    "waiting": between == Activity.WAITING,
    "busy": page.activity == Activity.BUSY,
}))
"""


def test_a_page_says_what_its_session_says(world: World) -> None:
    facts = facts_of(world.run([sys.executable, world.script(SCRIPT)]))
    assert not facts["before"]
    assert facts["steps"] == [7, 7]
    assert facts["device"][0] == facts["device"][1] >= 4 << 20
    assert facts["waiting"]
    assert facts["busy"]


@dataclass
class Page:
    """As much of a page as tells what a job does."""

    activity: int
    wait_phase: int
    device_works: bool = False


def test_waiting_for_data_is_told_from_what_follows_a_step() -> None:
    def seen(activity: int, phase: str) -> int:
        return activity_of(cast(JobPage, Page(activity, GAP_PHASES.index(phase))))

    for phase in ("unknown", "loader", "evaluation", "requests"):
        assert seen(Activity.WAITING, phase) == Activity.WAITING
    still_works = Page(Activity.WAITING, GAP_PHASES.index("loader"), device_works=True)
    assert activity_of(cast(JobPage, still_works)) == Activity.BUSY
    for phase in ("boundary", "checkpoint", "synchronisation"):
        assert seen(Activity.WAITING, phase) == Activity.BUSY
        assert seen(Activity.PAUSED, phase) == Activity.PAUSED
    assert activity_of(None) == Activity.UNKNOWN


def test_the_activities_are_four() -> None:
    activities = {Activity.UNKNOWN, Activity.BUSY, Activity.WAITING, Activity.PAUSED}
    assert len(activities) == 4


def test_what_is_no_page_is_refused_with_a_reason(tmp_path: Path) -> None:
    assert find_job_page(os.getpid()) is None
    (tmp_path / "file").write_bytes(bytes(16384))
    with pytest.raises(ValueError, match="page is not a sealed memfd"):
        JobPage(str(tmp_path / "file"))
    with pytest.raises(ValueError, match="page"):
        JobPage(str(tmp_path / "missing"))
    # Sealed and large enough, but nothing is on it.
    memfd = os.memfd_create("commensal-job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memfd, 16384)

        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with pytest.raises(ValueError, match="magic"):
            JobPage(f"/proc/self/fd/{memfd}")
        assert find_job_page(os.getpid()) is None
    finally:
        os.close(memfd)
