# SPDX-License-Identifier: Apache-2.0
"""The phases of a real job's gaps, and what is told before a batch is used."""

from __future__ import annotations

import queue
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from training import facts_of
from world import World

from commensal import _gaps
from commensal.cli._gaps import describe_gaps

JOB = """
import io, json, os, time, torch, commensal
from commensal._core import GAP_PHASES
from commensal.profiling.job_page import Activity, find_job_page
commensal.init(job_class="guaranteed")
page = find_job_page(os.getpid())
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((8,), float(index))

def train(loader):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

def gaps():
    every = commensal.stats()["activity"]["gaps"]
    return {gap["phase"]: gap for gap in every if gap["waits_total"]}

def phase():
    return GAP_PHASES[page.wait_phase]
"""

TRAINING = """
train(torch.utils.data.DataLoader(Slow(), batch_size=2))
time.sleep(0.01)  # boundaries that follow each other at once are not all looked at
optimizer.step()
after_step = [phase(), page.activity == Activity.WAITING]
time.sleep(0.05)
torch.ones(4)
busy = page.activity == Activity.BUSY
with torch.no_grad():
    for batch in torch.utils.data.DataLoader(Slow(), batch_size=1):
        model(batch)
found = gaps()
print(json.dumps({"gaps": found, "after_step": after_step, "busy": busy}))
"""


def test_loader_evaluation_and_boundary_are_told_apart(world: World) -> None:
    facts = facts_of(world.run([sys.executable, world.script(JOB + TRAINING)]))
    assert facts["after_step"] == ["boundary", True]
    assert facts["busy"]
    gaps = facts["gaps"]
    assert gaps["evaluation"]["waits_total"] >= 10  # of twelve batches, and the end of the loader
    assert gaps["loader"]["waits_total"] >= 6
    assert gaps["loader"]["median_seconds"] >= 0.04  # two items of 20 ms each
    assert gaps["evaluation"]["median_seconds"] >= 0.02
    assert gaps["boundary"]["seconds_total"] >= 0.05
    assert set(gaps) == {"loader", "evaluation", "boundary"}


CHECKPOINT = """
train(torch.utils.data.DataLoader(Slow(), batch_size=4))
time.sleep(0.01)
optimizer.step()
seen = []
class Looks(io.BytesIO):
    def write(self, data):
        seen.append([phase(), page.activity == Activity.WAITING])
        return super().write(data)
file = Looks()
torch.save(model.state_dict(), file)
after = page.activity == Activity.WAITING
file.seek(0)
loaded = torch.load(file)
same = all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
try:
    torch.save(model, "/none/such")
    raised = ""
except Exception as error:
    raised = type(error).__name__
optimizer.zero_grad()
model(torch.ones(8)).sum().backward()
print(json.dumps({"seen": seen, "after": after, "same": same, "raised": raised,
                  "busy": page.activity == Activity.BUSY, "gaps": gaps(),
                  "name": torch.save.__qualname__, "doc": bool(torch.save.__doc__),
                  "one": torch.save is torch.serialization.save}))
"""


def test_a_checkpoint_is_a_gap_and_saves_what_it_saved(world: World) -> None:
    facts = facts_of(world.run([sys.executable, world.script(JOB + CHECKPOINT)]))
    assert facts["seen"] and all(phase == ["checkpoint", True] for phase in facts["seen"])
    assert facts["after"], "what follows a checkpoint is not work yet"
    assert facts["same"]
    assert facts["raised"] == "RuntimeError"
    assert facts["busy"], "nor does one that fails leave the job waiting"
    assert facts["gaps"]["checkpoint"]["waits_total"] == 2
    assert facts["name"] == "save" and facts["doc"] and facts["one"]


AHEAD = """
from torch.utils.data import _utils
unpacked = []
class Batch:
    def __init__(self, tensor):
        self.tensor = tensor
    def __reduce__(self):
        return rebuild, (self.tensor,)

def rebuild(tensor):  # runs where the batch is unpacked: between the poll and the fetch's end
    if os.getpid() == parent:
        unpacked.append(page.activity == Activity.BUSY)
    return tensor

def collate(items):
    return Batch(torch.stack(items))

parent = os.getpid()
torch.ones(4)
loader = torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=2, collate_fn=collate)
batches = [batch.sum().item() for batch in loader]
print(json.dumps({"unpacked": unpacked, "batches": batches, "gaps": gaps()}))
"""


def test_a_batch_of_a_worker_shows_before_it_is_unpacked(world: World) -> None:
    facts = facts_of(world.run([sys.executable, world.script(JOB + AHEAD)]))
    assert facts["batches"] == [8.0 * (4 * batch + 1) for batch in range(6)]
    assert facts["unpacked"] == [True] * 6
    assert facts["gaps"]["loader"]["waits_total"] >= 6


def test_a_batch_that_a_thread_pins_shows_when_it_is_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    for name in ("batch_awaited", "batch_handed_over"):
        monkeypatch.setattr(_gaps._core, name, lambda name=name: calls.append(name))
    pinned: queue.Queue[int] = queue.Queue()
    _gaps._watch(pinned)
    thread = threading.Thread(target=lambda: pinned.put(7, timeout=5))
    thread.start()
    assert pinned.get(timeout=5) == 7
    thread.join()
    assert sorted(calls) == ["batch_awaited", "batch_handed_over"]
    with pytest.raises(queue.Empty):
        pinned.get(block=False)
    assert calls[-1] == "batch_awaited", "it waits on for another one"


def test_what_is_no_queue_is_left_alone() -> None:
    _gaps._watch(None)
    other = SimpleNamespace()
    _gaps._watch(other)
    assert not vars(other)


def test_an_iterator_of_another_make_is_left_alone() -> None:
    _gaps.follow_batches(None)
    _gaps.follow_batches(object())


def test_what_is_polled_for_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(_gaps._core, "batch_awaited", lambda: calls.append("awaited"))
    monkeypatch.setattr(_gaps._core, "batch_arrived", lambda: calls.append("arrived"))

    def poll(*args: float) -> bool:
        calls.append(args)
        if args == (3.0,):
            raise OSError("closed")
        return args == (2.0,)

    look = _gaps._announcing(poll)
    assert not look(1.0)
    assert look(2.0)
    with pytest.raises(OSError, match="closed"):
        look(3.0)
    assert calls == ["awaited", (1.0,), "awaited", (2.0,), "arrived", "awaited", (3.0,)]


def test_gaps_are_written_for_people() -> None:
    gap = {
        "phase": "loader",
        "per_minute": 120.4,
        "share": 0.062,
        "median_seconds": 0.03,
        "p90_seconds": 0.042,
    }
    tiny = {**gap, "phase": "boundary", "share": 0.0001}
    assert describe_gaps([gap, tiny]) == (
        "loader 120 a minute of 30 ms (90 % up to 42 ms), 6.2 % of the time"
    )
    assert describe_gaps([]) == ""
