# SPDX-License-Identifier: Apache-2.0
"""One job of a pair that shares a GPU: works while it is told to, and remembers its steps.

    python pair_job.py NAME [--stand-in]

Orders come on stdin, a line each; answers are lines of stdout that begin with "= " and are JSON:

    stall SECONDS      each batch takes so long to load from now on
    go                 begins to work; answers at once
    stop               ends after the step that it is in; answers when the device has done it
    take               steps since the last `take`: begin, end (monotonic clock), seconds to issue
                       it; and `since` when the one under way began
    losses             while it rests: how many of all steps are not those of the first cycle
    react MS TOGGLES   while it rests: pauses its own gate again and again beside ops of MS on the
                       device, and tells when the device was quiet and when the next op was done
    stats              the gate of `commensal.stats()`, and bytes of the job on the slower tier

A step begins when its batch is there and the device has done what came before. It ends when the
device has done it, as an event tells; the job waits for that once it is two steps ahead. Every
CYCLE steps it goes back to the state that it began with, under PyTorch's deterministic settings:
each cycle must have the losses of the first one, whatever runs beside it.

`--stand-in` is for a driver whose kernels do nothing.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pair_modes import MEMORY_GIB
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from workloads import StandIn, images, resnet50, there_and_back

import commensal

CYCLE = 8
MOST_AHEAD = 2  # steps; a loop of large kernels would else queue seconds of work
MOST_LOSSES = 1 << 16
GiB = float(1 << 30)


@dataclass
class Work:
    """What a job repeats."""

    step: Callable[[int], Tensor]  # one of a cycle; returns its loss
    state: list[Tensor]  # what steps change

    def keep(self) -> None:
        self._kept = [part.detach().clone() for part in self.state]

    def restore(self) -> None:
        with torch.no_grad():
            for part, kept in zip(self.state, self._kept, strict=True):
                part.copy_(kept)


Make = Callable[[float, float], Work]  # of the card's memory in bytes, and of the job's in GiB


class Block(nn.Module):
    """GPT-2's layer, with PyTorch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.second(x))


class Gpt2(nn.Module):
    """GPT-2's shape: next-token loss of a batch of tokens."""

    TOKENS = 50304

    def __init__(self, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(self.TOKENS, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.LayerNorm(width)

    def forward(self, text: Tensor) -> Tensor:
        x = self.last(self.layers(self.tokens(text) + self.positions))
        said = functional.linear(x[:, :-1], self.tokens.weight)
        return functional.cross_entropy(said.flatten(0, 1), text[:, 1:].flatten())


def fitting(wanted: int, gib: float, memory_bytes: float) -> int:
    """Return a batch of which two jobs find room: `wanted` (of so many GiB), or a part of it."""
    batch = wanted
    while batch > 1 and gib * batch / wanted > 0.45 * memory_bytes / GiB:
        batch //= 2
    return batch


def training(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor]
) -> Work:
    def step(_: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for index in range(3):  # what is made at the first steps is part of the state
        step(index)
    states = (value for state in optimizer.state.values() for value in state.values())
    parts = [*model.parameters(), *model.buffers()]
    return Work(step, parts + [value for value in states if isinstance(value, Tensor)])


def resnet(batch: int) -> Make:
    def make(memory: float, gib: float) -> Work:
        x, y = (part.cuda() for part in images(fitting(batch, gib, memory), 224))
        x = x.to(memory_format=torch.channels_last)
        model = resnet50().cuda().to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        return training(model, optimizer, lambda: functional.cross_entropy(model(x), y))

    return make


def gpt2(width: int, layers: int, context: int, batch: int) -> Make:
    def make(memory: float, gib: float) -> Work:
        model = Gpt2(width, layers, width // 64, context).cuda()
        text = torch.randint(Gpt2.TOKENS, (fitting(batch, gib, memory), context)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return training(model, optimizer, lambda: model(text))

    return make


def products(side: int) -> Make:
    """One matrix product a step."""

    def make(memory: float, gib: float) -> Work:
        n = fitting(side, gib, memory)
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)

        def step(_: int) -> Tensor:
            torch.mm(a, b, out=c)
            return c[:: n // 4, :: n // 4].float().sum()

        step(0)
        return Work(step, [])

    return make


def copies(wanted: int) -> Make:
    """One copy from memory of the device to other memory of it a step."""

    def make(memory: float, gib: float) -> Work:
        size = fitting(wanted, gib, memory)
        a = torch.ones(size, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)

        def step(_: int) -> Tensor:
            b.copy_(a)
            return b[:: size // 16].float().sum()

        step(0)
        return Work(step, [])

    return make


# The jobs of the protocol that are here.
JOBS: dict[str, Make] = {
    "G1": resnet(128),
    "G3": gpt2(1024, 24, 1024, 8),
    "O1": resnet(64),
    "O2": gpt2(768, 12, 512, 8),
    "O3": products(16384),
    "O4": copies(8 << 30),
}


def stand_in(_memory: float, _gib: float) -> Work:
    """Copies, allocations and kernels that do nothing; its losses are checksums of its batches."""
    model = StandIn(1 << 12, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = [torch.randn(4, 1 << 12) for _ in range(CYCLE)]

    def step(index: int) -> Tensor:
        x = batches[index].cuda()
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        return torch.tensor(float(int(there_and_back(x)[:6], 16)))

    step(0)
    return Work(step, list(model.parameters()))


class Timeline:
    """When steps began and ended, by the monotonic clock. Thread-safe but for its beginnings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[tuple[float | None, float, torch.cuda.Event]] = []
        self._done: list[tuple[float, float, float]] = []
        self._running: float | None = None
        self._ahead: deque[torch.cuda.Event] = deque()

    def begin(self) -> None:
        """Find out what time it is on the device, which has nothing to do."""
        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        now = time.monotonic()
        with self._lock:
            self._settle()
            self._at, self._last = now, event

    def border(self) -> None:
        """What was issued until now belongs to no step."""
        self._add(None, 0.0)

    def arrived(self, when: float) -> None:
        self._running = when

    def issued(self) -> None:
        assert self._running is not None
        self._ahead.append(self._add(self._running, time.monotonic() - self._running))
        self._running = None
        if len(self._ahead) > MOST_AHEAD:
            self._ahead.popleft().synchronize()

    def take(self) -> dict[str, Any]:
        with self._lock:
            self._settle()
            taken, self._done = self._done, []
            under_way = [arrival for arrival, _, _ in self._pending if arrival is not None]
            if self._running is not None:
                under_way.append(self._running)
            since = max(under_way[0], self._at) if under_way else None
        return {"steps": taken, "since": since}

    def _add(self, arrival: float | None, seconds: float) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        with self._lock:
            self._pending.append((arrival, seconds, event))
        return event

    def _settle(self) -> None:
        while self._pending and self._pending[0][2].query():
            arrival, seconds, event = self._pending.pop(0)
            before = self._at
            self._at += self._last.elapsed_time(event) / 1e3
            self._last = event
            if arrival is not None:
                self._done.append((max(arrival, before), self._at, seconds))


class Losses:
    """Of all steps; they stay on the device until somebody asks."""

    def __init__(self, device: str) -> None:
        self._all = torch.zeros(MOST_LOSSES, device=device)
        self._count = 0

    def note(self, loss: Tensor) -> None:
        if self._count < MOST_LOSSES:
            self._all[self._count].copy_(loss)
            self._count += 1

    def told(self) -> dict[str, Any]:
        seen = [loss.hex() for loss in self._all[: self._count].tolist()]
        first, later = seen[:CYCLE], seen[CYCLE:]
        other = [i for i, loss in enumerate(later) if loss != first[i % CYCLE]]
        told = {"first": first, "compared": len(later), "different": len(other)}
        return told | {"first_different": CYCLE + other[0] if other else None}


class Control:
    """Takes orders from stdin, on a thread of its own; long ones are for the main thread."""

    def __init__(self, timeline: Timeline) -> None:
        self.stall = 0.0
        self.stopped = threading.Event()
        self._orders: queue.Queue[list[str] | None] = queue.Queue()
        self._timeline = timeline
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> list[str] | None:
        """Wait for an order; None: there are no more."""
        return self._orders.get()

    def _listen(self) -> None:
        for line in sys.stdin:
            order = line.split()
            if order[:1] == ["take"]:
                answer(self._timeline.take())
            elif order[:1] == ["stats"]:
                stats = commensal.stats()
                answer(stats["gate"] | {"host_bytes": stats["memory"]["host_bytes"]})
            elif order[:1] == ["stall"]:
                self.stall = float(order[1])
                answer("done")
            elif order[:1] == ["stop"]:
                self.stopped.set()
                self._orders.put(order)
            else:
                self.stopped.clear()
                self._orders.put(order)
        self.stopped.set()
        self._orders.put(None)


def answer(told: object) -> None:
    print(f"= {json.dumps(told)}", flush=True)


class Storage(Dataset[int]):
    """Takes its time for each batch."""

    def __init__(self, control: Control) -> None:
        self._control = control

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> int:
        if self._control.stall > 0.0:
            self._control.stopped.wait(self._control.stall)
        return index


class Job:
    """Runs one of the works by orders."""

    def __init__(self, work: Work, *, stands_in: bool) -> None:
        self._work = work
        self._stands_in = stands_in
        self._step = 0
        self._losses = Losses("cpu" if stands_in else "cuda")
        self._timeline = Timeline()
        work.keep()
        torch.cuda.synchronize()
        self._control = Control(self._timeline)

    def run(self) -> None:
        while (order := self._control.next()) is not None:
            if order == ["go"]:
                answer("done")
                self._train()
            elif order == ["stop"]:
                torch.cuda.synchronize()
                answer("done")
            elif order == ["losses"]:
                answer(self._losses.told())
            elif order[:1] == ["react"]:
                answer(react(float(order[1]), int(order[2]), stands_in=self._stands_in))
            else:
                answer({"error": f"unknown order: {' '.join(order)}"})

    def _train(self) -> None:
        self._timeline.begin()
        for _ in DataLoader(Storage(self._control), batch_size=None):
            if self._control.stopped.is_set():
                return
            if self._step % CYCLE == 0:
                self._work.restore()
                self._timeline.border()
            self._timeline.arrived(time.monotonic())
            loss = self._work.step(self._step % CYCLE)
            self._losses.note(loss)
            self._timeline.issued()
            self._step += 1


def op_of(milliseconds: float) -> Callable[[], object]:
    """Return a product that takes about so long on the device."""
    side = 256
    while True:
        a, b = (torch.randn(side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        took = []
        for _ in range(8):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.mm(a, b, out=c)
            end.record()
            end.synchronize()
            took.append(begin.elapsed_time(end))
        grown = int(side * 1.26) // 64 * 64  # the next one takes twice as long
        if 2.0 * min(took) > milliseconds or grown > 32768:
            return lambda: torch.mm(a, b, out=c)
        side = grown


def react(milliseconds: float, toggles: int, *, stands_in: bool) -> dict[str, Any]:
    """Pause and resume the gate beside a stream of ops.

    Tells of each pause how long the device still worked, and of each resume how long it took until
    the next op was done, in seconds.
    """
    if stands_in:
        small = torch.zeros(64, device="cuda")
        op: Callable[[], object] = lambda: small.add_(1.0)  # noqa: E731
    else:
        op = op_of(milliseconds)
    pauses: list[tuple[float, float]] = []
    rest = max(0.02, 4e-3 * milliseconds)

    def toggle() -> None:
        for index in range(toggles):
            time.sleep(rest * (1.0 + 0.07 * (index % 8)))  # not in step with the ops
            closed = time.monotonic()
            commensal.pause()
            time.sleep(rest)
            opened = time.monotonic()
            commensal.resume()
            pauses.append((closed, opened))
        time.sleep(rest)

    torch.cuda.synchronize()
    base = torch.cuda.Event(enable_timing=True)
    base.record()
    base.synchronize()
    at = time.monotonic()
    ops = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=toggle)
    thread.start()
    while thread.is_alive():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        op()
        end.record()
        ops.append((time.monotonic(), begin, end))
    thread.join()
    sys.setswitchinterval(interval)
    torch.cuda.synchronize()
    done: list[tuple[float, float, float]] = []
    # An op that waited at the gate began after it, whatever stood before it.
    before, last = base, at
    for issued, begin, end in ops:
        began = last + before.elapsed_time(begin) / 1e3
        last = began + begin.elapsed_time(end) / 1e3
        before = end
        done.append((issued, began, last))
    return {"milliseconds": median_of([e - b for _, b, e in done]) * 1e3} | reactions(done, pauses)


def reactions(
    ops: list[tuple[float, float, float]], pauses: list[tuple[float, float]]
) -> dict[str, Any]:
    """Return what pauses did: `quiet` and `first`, seconds of each pause.

    `ops`: when each was issued, and its begin and end on the device; `pauses`: when the gate was
    closed and opened.
    """
    quiet, first = [], []
    for closed, opened in pauses:
        still = [end for issued, _, end in ops if issued <= opened and end > closed]
        quiet.append(max(still, default=closed) - closed)
        # The one that waited had its first mark put before it: its end tells.
        after = [end for issued, _, end in ops if issued > opened and end > opened]
        if after:
            first.append(min(after) - opened)
    return {"ops": len(ops), "quiet": quiet, "first": first}


def median_of(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(JOBS))
    parser.add_argument("--stand-in", action="store_true")
    arguments = parser.parse_args(argv)
    torch.manual_seed(1)
    if not arguments.stand_in:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    device = torch.cuda.get_device_properties(0)
    make = stand_in if arguments.stand_in else JOBS[arguments.name]
    work = make(float(device.total_memory), MEMORY_GIB[arguments.name])
    job = Job(work, stands_in=arguments.stand_in)
    answer({"card": device.name, "uuid": str(device.uuid), "memory": device.total_memory})
    job.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
