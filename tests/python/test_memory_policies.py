# SPDX-License-Identifier: Apache-2.0
"""Memory policies, and a pair of jobs that needs more than there is, under `commensal run`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from training import TELL, TRAIN, facts_of
from world import COMMENSAL, DEADLINE, World, read_line

STEPS = "20"
BUDGET = 192 << 20
OTHERS = 128 << 20  # what the opportunistic job fills
BURST = BUDGET * 3 // 2 - OTHERS

# Fills memory, steps until a file appears, and looks at what it filled.
OTHER = """
import json, os, sys, time, torch, commensal
blocks = [torch.full((2**20,), float(i)) for i in range(SIZE >> 22)]
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
optimizer.step()
print("filled", flush=True)
while not os.path.exists(sys.argv[1]):
    optimizer.step()
    time.sleep(0.005)
whole = all(bool((block == float(i)).all()) for i, block in enumerate(blocks))
print(json.dumps({"whole": whole, "stats": commensal.stats()}), flush=True)
"""

# Bursts: takes SIZE at once, steps, looks where it lies, and frees it.
BURSTS = """
import json, sys, time, torch, commensal
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.0)
optimizer.step()
rounds = []
for number in range(int(sys.argv[1])):
    back = commensal.stats()["memory"]["moved_in_bytes_total"]
    burst = torch.full((SIZE >> 2,), float(number))
    memory = commensal.stats()["memory"]  # some of it may be back already
    overflow = memory["host_bytes"] + memory["moved_in_bytes_total"] - back
    until = time.monotonic() + 60
    while commensal.stats()["memory"]["limit_bytes"] < SIZE and time.monotonic() < until:
        time.sleep(0.01)
    optimizer.step()
    memory = commensal.stats()["memory"]
    rounds.append({
        "fast": memory["host_bytes"] == 0 and memory["device_bytes"] >= SIZE,
        "whole": bool((burst == float(number)).all()), "overflow": overflow,
    })
    del burst
    optimizer.step()
print(json.dumps({"rounds": rounds, "stats": commensal.stats()}), flush=True)
"""


def test_antman_computes_the_same_and_moves_nothing(world: World) -> None:
    script = world.script(TRAIN + TELL)
    alone = facts_of(world.run([sys.executable, script, STEPS]))
    done = world.commensal(
        *("run", "--no-idle-class", "--memory", "4MiB", "--"),
        *(sys.executable, script, STEPS),
        COMMENSAL_MEMORY_POLICY="antman",
    )
    facts = facts_of(done)
    assert facts["digest"] == alone["digest"]
    memory = facts["stats"]["memory"]
    assert memory["policy"] == "antman"
    assert memory["moved_bytes_total"] == 0
    assert ", memory policy antman, coordinator " in done.stderr.splitlines()[0]


def test_live_memory_stays_under_antman_and_overflow_stays_until_it_dies(world: World) -> None:
    script = world.script(
        """
import json, torch, commensal
commensal.init(job_class="guaranteed", memory=":64MiB")
old = torch.ones(8 * 2**20)  # 32 MiB
ticket = commensal.set_memory_limit("16MiB")
new = torch.ones(4 * 2**20)
lowered = commensal.stats()["memory"]
raised = commensal.set_memory_limit("256MiB")
before = commensal.stats()["memory"]
del new
commensal.step()
after = commensal.stats()["memory"]
print(json.dumps({"ticket": vars(ticket), "raised": vars(raised), "lowered": lowered,
                  "before": before, "after": after, "text": commensal.memory_summary()}))
"""
    )
    facts = facts_of(world.run([sys.executable, script], COMMENSAL_MEMORY_POLICY="antman"))
    assert facts["ticket"]["reason"] == "live memory stays: memory policy antman"
    assert facts["ticket"]["deferred_bytes"] >= 16 << 20
    assert facts["lowered"]["host_bytes"] >= 16 << 20
    assert facts["raised"]["reason"] == "live memory stays: memory policy antman"
    assert facts["before"]["host_bytes"] == facts["lowered"]["host_bytes"]
    assert facts["after"]["host_bytes"] == 0
    assert facts["after"]["moved_bytes_total"] == 0
    assert "antman" in facts["text"].splitlines()[1]


class Pair:
    """An opportunistic job that fills most of a small device, and a guaranteed one that bursts."""

    def __init__(self, world: World) -> None:
        self.world = world
        subprocess.run(
            [
                *(str(COMMENSAL.parent / "commensald"), "--memory-budget", str(BUDGET)),
                *("--runtime-dir", str(world.runtime_dir)),
            ],
            check=True,
            timeout=DEADLINE,
        )
        self.stop = world.folder / "stop"
        script = world.script(OTHER.replace("SIZE", str(OTHERS)), "other.py")
        self.other = world.start(
            [
                *(str(COMMENSAL), "run", "--no-idle-class", "--law", "open", "--"),
                *(sys.executable, script, str(self.stop)),
            ]
        )
        read_line(self.other, "filled")

    def burst(self, rounds: int, *options: str, **environ: str) -> dict[str, Any]:
        script = self.world.script(BURSTS.replace("SIZE", str(BURST)), "bursts.py")
        done = self.world.commensal(
            *("run", "--guaranteed", *options, "--", sys.executable, script, str(rounds)), **environ
        )
        return facts_of(done)

    def end(self) -> dict[str, Any]:
        self.stop.touch()
        out, errors = self.other.communicate(timeout=DEADLINE)
        assert self.other.returncode == 0, errors
        facts: dict[str, Any] = json.loads(out.splitlines()[-1])
        return facts


def test_a_pair_that_needs_one_and_a_half_budgets_lives_and_bursts_are_fast(world: World) -> None:
    pair = Pair(world)
    facts = pair.burst(5)
    assert [round_["fast"] for round_ in facts["rounds"]] == [True] * 5
    assert all(round_["whole"] for round_ in facts["rounds"])
    assert facts["stats"]["memory"]["out_of_memory_total"] == 0
    other = pair.end()
    assert other["whole"]
    assert other["stats"]["memory"]["out_of_memory_total"] == 0
    assert other["stats"]["memory"]["given_back_bytes_total"] > 0


def test_without_a_wait_a_burst_overflows_first_and_is_fast_from_the_next_step(
    world: World,
) -> None:
    pair = Pair(world)
    facts = pair.burst(2, "--ask-wait", "0")
    assert facts["rounds"][0]["overflow"] > 0
    assert [round_["fast"] for round_ in facts["rounds"]] == [True] * 2
    assert all(round_["whole"] for round_ in facts["rounds"])
    assert pair.end()["whole"]


def test_out_of_memory_tells_its_story(world: World) -> None:
    script = world.script(
        """
import torch
try:
    torch.empty(2**30, dtype=torch.uint8)
except torch.OutOfMemoryError as error:
    print(str(error).splitlines()[0])
"""
    )
    done = world.commensal(
        *("run", "--no-idle-class", "--memory", "64MiB", "--", sys.executable, script),
        COMMENSAL_HOST_CAP="8MiB",
    )
    assert done.returncode == 0, done.stderr
    story = done.stdout
    assert story.startswith("out of memory: asked 1 GiB, limit 64 MiB, in use ")
    assert "tried: 1. own cache: " in story
    assert "; 2. others: the coordinator refused: needs 1 GiB: it may have 64 MiB (" in story
    assert "; 3. slower tier: slower tier full: 0 B of 8 MiB" in story
