# SPDX-License-Identifier: Apache-2.0
"""`commensal profile` with real scripts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

# Waits 30 ms for each batch, computes about 10 ms, and keeps 64 MiB that it never touches again.
WAITS = """
import sys, time, torch
torch.set_num_threads(1)
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000
    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.randn(64)
cold = torch.ones(16 << 20)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
print("training", flush=True)
for step, x in enumerate(torch.utils.data.DataLoader(Slow(), batch_size=1), 1):
    begin = time.thread_time()
    while time.thread_time() - begin < 0.01:
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == int(sys.argv[1]):
        break
print(sys.stdin.read(), "trained", int(cold[0]))
print("the script's own trouble", file=sys.stderr)
sys.exit(7)
"""


def figures(world: World) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((world.folder / "profile-report/profile.json").read_text())
    return told


def test_says_what_a_neighbour_could_take(world: World) -> None:
    command = [sys.executable, world.script(WAITS), "90"]
    profile = [str(COMMENSAL), "profile", "--json", "more/p.json", "--", *command]
    done = world.run(profile, stdin="from outside")
    assert done.returncode == 7  # the script's own
    assert done.stdout == "training\nfrom outside trained 1\n"
    assert done.stderr.startswith("the script's own trouble\n")
    told = figures(world)
    assert told == json.loads((world.folder / "more/p.json").read_text())
    assert told["reason"] == "" or "NOT quiet" in told["reason"], done.stderr
    assert told["job"]["exit_code"] == 7
    assert told["window"]["steps"] >= 80
    device, gaps = told["device"], told["gaps"]
    assert 0 < device["busy_share"] < 0.6
    assert device["neighbour_share"] == pytest.approx(1 - device["busy_share"] / 1.01)
    assert gaps["phases"]["data"]["share"] > 0.1
    assert gaps["phases"]["data"]["share"] > gaps["phases"]["step"]["share"]
    parts = ("busy_share", "gap_share", "short_gap_share", "beside_share")
    assert sum(device[part] for part in parts) == pytest.approx(1, abs=1e-6)
    memory = told["memory"]
    assert memory["what"] == "tensors", memory
    assert memory["cold_bytes"] >= 60 << 20
    assert told["statistics"]["peak_live_bytes"] >= 64 << 20
    assert "a neighbour could use" in done.stderr
    assert "memory can shrink to" in done.stderr
    picture = world.folder / "profile-report/profile.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture.relative_to(world.folder)) in done.stderr
    # Nothing of it stays: no coordinator, no folder, and the usual one was not started.
    wait_until("nothing is left", lambda: not list(world.folder.glob("commensal-profile-*")))
    assert not world.daemons()


def test_steps_end_the_script_when_they_are_done(world: World) -> None:
    command = [sys.executable, world.script(WAITS), "100000"]
    done = world.commensal("profile", "--steps", "30", "--", *command)
    assert done.returncode == 0, done.stderr
    told = figures(world)
    assert told["job"]["ended_by"] == "--steps"
    assert "ended by --steps" in done.stderr
    assert (told["window"] or {"steps": 30})["steps"] >= 25


def test_a_short_script_gets_a_clear_answer(world: World) -> None:
    done = world.commensal("profile", "--", sys.executable, world.script(WAITS), "5")
    assert done.returncode == 7
    assert "cannot say what a neighbour could take: only " in done.stderr
    assert figures(world)["judged"] is False
    assert not (world.folder / "profile-report/profile.png").exists()


def test_a_script_without_steps_gets_a_clear_answer(world: World) -> None:
    script = world.script("import time, torch\ntime.sleep(0.6)\nprint('done')")
    done = world.commensal("profile", "--", sys.executable, script)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "no step was seen: steps are seen where an optimizer runs" in done.stderr


def test_a_command_without_pytorch_gets_a_clear_answer(world: World) -> None:
    done = world.commensal("profile", "--", "sh", "-c", "sleep 0.3; exit 3")
    assert done.returncode == 3
    assert "the script did not import PyTorch" in done.stderr
    assert figures(world)["device"] is None


def test_a_command_that_cannot_start_has_the_shells_codes(world: World) -> None:
    assert world.commensal("profile", "--", "no-such-command").returncode == 127
    assert world.commensal("profile", "--", str(world.folder)).returncode == 126
    assert not list(world.folder.glob("commensal-profile-*"))


def test_a_folder_that_cannot_be_written_is_told_before_the_script_runs(world: World) -> None:
    (world.folder / "file").touch()
    done = world.commensal("profile", "--out", "file", "--", "touch", "ran")
    assert done.returncode == 1
    assert done.stderr == "commensal: cannot write the report: file: File exists\n"
    assert not (world.folder / "ran").exists()


def test_a_signal_is_the_scripts_and_the_report_still_comes(world: World) -> None:
    process = world.start(
        [str(COMMENSAL), "profile", "--", sys.executable, world.script(WAITS), "100000"]
    )
    read_line(process, "training")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGTERM
    assert "profile of script" in errors


def test_a_killed_profile_leaves_the_script_and_nothing_else(world: World) -> None:
    process = world.start(
        [str(COMMENSAL), "profile", "--", sys.executable, world.script(WAITS), "100000"]
    )
    [script] = _children_when_training(process)
    [folder] = world.folder.glob("commensal-profile-*")
    coordinators = [p for p in psutil.process_iter(["cmdline"]) if _serves(p, folder)]
    assert len(coordinators) == 1
    process.kill()
    process.wait(DEADLINE)
    wait_until("its coordinator has ended", lambda: not coordinators[0].is_running())
    wait_until("its folder is gone", lambda: not folder.exists())
    assert script.is_running()
    script.kill()


def _children_when_training(process: subprocess.Popen[str]) -> list[psutil.Process]:
    read_line(process, "training")
    return psutil.Process(process.pid).children()


def _serves(process: psutil.Process, folder: Path) -> bool:
    return f"{folder}/run" in (process.info["cmdline"] or [])
