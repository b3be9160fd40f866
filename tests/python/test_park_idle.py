# SPDX-License-Identifier: Apache-2.0
"""`--park-idle`: PyTorch's tensors are saved while nothing runs, and back at the next op."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from training import facts_of
from world import COMMENSAL, DEADLINE, World, read_line, wait_until

# A notebook: cells that come when somebody types. Prints one JSON line after each.
NOTEBOOK = """
import hashlib, json, sys, time
import torch, commensal
START
torch.manual_seed(7)
weights = torch.randn(2048, 2048)
def digest():
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()
first = digest()
print(json.dumps(commensal.stats()), flush=True)
for line in sys.stdin:
    began = commensal.stats()
    exec(line)
    after = commensal.stats()
    facts = {"began": began, "after": after, "same": digest() == first}
    print(json.dumps(facts), flush=True)
"""

CELLS = {
    "an op": "value = weights.sum().item()",
    "an op in place of a view": "weights[3].add_(0)",
    "two ops": "torch.mm(weights, weights).mean()",
    "NumPy": "weights.numpy()[:, :] += 0",
}


def parked(world: World, moved: int) -> dict[str, Any]:
    """Return the job's record once it is parked after `moved` bytes had gone out; else nothing."""
    jobs = world.status().get("jobs", [])
    if not jobs or jobs[0]["activity"]["state"] != "parked":
        return {}
    record: dict[str, Any] = jobs[0]
    return record if record["memory"]["moved_out_bytes_total"] > moved else {}


def test_a_notebook_that_rests_holds_no_memory_and_goes_on_where_it_was(world: World) -> None:
    job = world.start(
        [
            *(str(COMMENSAL), "run", "--no-idle-class", "--park-idle", "1s", "--memory", "256MiB"),
            *("--", sys.executable, world.script(NOTEBOOK.replace("START", ""))),
        ]
    )
    assert job.stdin is not None and job.stdout is not None
    started: dict[str, Any] = json.loads(read_line(job, "schema"))
    assert started["memory"]["device_bytes"] >= 16 << 20
    moved = 0
    for name, cell in CELLS.items():
        record: dict[str, Any] = {}

        def parked_again() -> bool:
            record.update(parked(world, moved))  # noqa: B023
            return bool(record)  # noqa: B023

        wait_until(f"parked before {name}", parked_again)
        assert record["memory"]["device_bytes"] == 0, name
        assert record["memory"]["parked_bytes"] >= 16 << 20, name
        assert record["memory"]["wanted_bytes"] == 0, name
        table = world.commensal("status").stdout
        assert " parked " in table
        job.stdin.write(cell + "\n")
        job.stdin.flush()
        facts = json.loads(read_line(job, "began"))
        assert facts["began"]["activity"]["state"] == "parked", "asking is no op"
        assert facts["same"], name
        moved = facts["after"]["memory"]["moved_out_bytes_total"]
        if name != "NumPy":  # the op waited until its memory was back
            assert facts["after"]["activity"]["state"] != "parked", name
            assert facts["after"]["memory"]["device_bytes"] >= 16 << 20, name
    out, errors = job.communicate(timeout=DEADLINE)
    assert job.returncode == 0, errors
    assert out == ""
    assert errors.count("commensal: idle for ") >= len(CELLS)
    assert " saved to the slower tier" in errors
    assert errors.count("commensal: back from parking: ") >= len(CELLS) - 1


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_init_parks_too(world: World, by: str) -> None:
    argument = "park_idle=1, " if by == "argument" else ""
    script = world.script(
        f"""
import json, time, torch, commensal
commensal.init({argument}job_class="guaranteed", memory="256MiB")
tensor = torch.full((2**20,), 3.0)
until = time.monotonic() + 60
while commensal.stats()["activity"]["state"] != "parked" and time.monotonic() < until:
    time.sleep(0.1)
parked = commensal.stats()["memory"]
total = tensor.sum().item()
print(json.dumps({{"parked": parked, "total": total, "after": commensal.stats()["memory"]}}))
"""
    )
    environ = {"COMMENSAL_PARK_IDLE": "1s"} if by == "environment" else {}
    facts = facts_of(world.run([sys.executable, script], **environ))
    assert facts["parked"]["parked_bytes"] >= 4 << 20
    assert facts["parked"]["device_bytes"] == 0
    assert facts["total"] == 3.0 * 2**20
    assert facts["after"]["device_bytes"] >= 4 << 20


def test_a_job_that_does_not_ask_for_it_is_never_parked(world: World) -> None:
    script = world.script(
        """
import json, time, torch, commensal
commensal.init(job_class="guaranteed", memory="256MiB")
tensor = torch.ones(2**20)
time.sleep(3)
print(json.dumps(commensal.stats()))
"""
    )
    stats = facts_of(world.run([sys.executable, script]))
    assert stats["memory"]["parked_bytes"] == 0
    assert stats["memory"]["device_bytes"] >= 4 << 20
