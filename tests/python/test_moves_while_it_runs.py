# SPDX-License-Identifier: Apache-2.0
"""Memory moves between the steps of a job, and the example that shows it says what happened."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from world import World

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "shrink.py"
# Much rests while one step goes on. The thread that sets a limit moves memory as well as the mover,
# and now and then one of them does it all: several limits, each lower than the last, until the
# mover had its part.
STEP = """
import json, sys, threading, time, torch, commensal
resting = [torch.full((1 << 20,), float(i)) for i in range(48)]  # 4 MiB each
weight = torch.ones(1 << 18, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward(); optimizer.step()
(weight * 2).sum().backward()
now = commensal.stats()["memory"]
for turn in range(20):  # inside of a step
    less = now["device_bytes"] - (8 << 20)
    threading.Thread(target=commensal.set_memory_limit, args=(less,)).start()
    deadline = time.monotonic() + (60 if sys.argv[1] != "off" else 0.2)
    while not now["device_bytes"] <= now["limit_bytes"] == less and time.monotonic() < deadline:
        weight.sum()
        now = commensal.stats()["memory"]
    if now["moved_ahead_bytes_total"] > 0:
        break
optimizer.step()
assert all(bool((block == i).all()) for i, block in enumerate(resting))
print(json.dumps({"inside": now}))
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    yield made
    made.close()


def inside_a_step(world: World, rate: str) -> dict[str, int]:
    done = world.commensal(
        *("run", "--guaranteed", "--", sys.executable, world.script(STEP), rate),
        COMMENSAL_BACKGROUND_RATE=rate,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])["inside"]
    return found


def test_what_rests_moves_out_in_the_middle_of_a_step(world: World) -> None:
    memory = inside_a_step(world, "1GiB")
    assert memory["moved_ahead_bytes_total"] > 0
    assert memory["device_bytes"] <= memory["limit_bytes"]


def test_switched_off_nothing_moves_ahead(world: World) -> None:
    assert inside_a_step(world, "off")["moved_ahead_bytes_total"] == 0


def test_the_example_prints_its_shrink(world: World) -> None:
    done = world.commensal(
        *("run", "--guaranteed", "--", sys.executable, str(EXAMPLE)),
        *("--width", "512", "--layers", "4", "--steps", "9"),
    )
    assert done.returncode == 0, done.stderr
    limits = [int(limit) for limit in re.findall(r"limit +(\d+)", done.stdout)]
    assert min(limits) < limits[0], "the limit fell"
    assert limits[-1] > min(limits), "and rose"
    assert re.search(r"median step before, below and after the limit: \d+ ms", done.stdout)


# A network of two million parameters with Adam: weights, state, and activations while it steps.
DEFERRED = """
import json, torch, commensal
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(720, 720) for _ in range(16)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batch = torch.randn(256, 720)
def step():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
for _ in range(4):
    step()
found = []
for part in (25, 50, 90):
    commensal.set_memory_limit("2GiB")
    step()
    step()
    held = commensal.stats()["memory"]["device_bytes"]
    ticket = commensal.set_memory_limit(held * (100 - part) // 100)
    found.append([held * part // 100, ticket.done_bytes, ticket.deferred_bytes, ticket.reason])
    step()
print(json.dumps(found))
"""


def test_at_most_a_twentieth_is_deferred_at_a_safe_point(world: World) -> None:
    done = world.commensal(
        *("run", "--guaranteed", "--", sys.executable, world.script(DEFERRED)),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 3
    for asked, given, deferred, reason in rows:
        assert asked > 16 << 20
        assert deferred <= asked * 0.05, reason
        assert given >= asked * 0.95, reason
