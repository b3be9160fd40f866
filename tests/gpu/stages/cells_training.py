# SPDX-License-Identifier: Apache-2.0
"""Training steps: what commensal adds to them, and what they are with less memory on the card.

On the simulated driver stand-ins are trained, since there are no matrix products.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from contents import Contents, mix
from parkers import brought_back, device_bytes
from stage_report import on_simulated_driver
from torch import Tensor, nn
from torch.nn import functional
from workloads import StandIn, images, resnet50

Handler = Callable[[dict[str, Any]], dict[str, Any]]
BATCH = 64
SIDE = 224
MATRIX = 8192
STOP_PATIENCE = 40.0


def timed(step: Callable[[], object], seconds: float, most: int) -> list[float]:
    """Take steps for so long; return what each took, the device's work included."""
    end = time.perf_counter() + seconds
    found: list[float] = []
    while len(found) < most and (not found or time.perf_counter() < end):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found


def steps(_settings: dict[str, Any]) -> Handler:
    """Steps whose time is the host's (many small ops) and the device's (large products)."""
    made: dict[str, Callable[[], object]] = {}

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        kind = order["do"]
        if kind not in made:
            made[kind] = host_bound() if kind == "host_bound" else device_bound()
            timed(made[kind], order["seconds"], order["most"])  # fills caches
        return {"seconds": timed(made[kind], order["seconds"], order["most"])}

    return handle


def host_bound() -> Callable[[], object]:
    model = StandIn(width=256, layers=20 if on_simulated_driver() else 120).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(8, 256).cuda()

    def step() -> None:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()

    return step


def device_bound() -> Callable[[], object]:
    if on_simulated_driver():
        return host_bound()
    weights = [nn.Parameter(torch.randn(MATRIX, MATRIX, device="cuda") / 90) for _ in range(2)]
    optimizer = torch.optim.SGD(weights, lr=0.0)
    x = torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        optimizer.zero_grad()
        y = x
        for weight in weights:
            y = functional.relu(y @ weight.to(torch.bfloat16))
        y.float().sum().backward()
        optimizer.step()

    return step


def resnet(_settings: dict[str, Any]) -> Handler:
    """ResNet-50, or its stand-in: `train` with all memory, or with a part of its own peak."""
    torch.manual_seed(3)
    model: nn.Module
    if on_simulated_driver():
        model = StandIn(width=1 << 18, layers=8).cuda()
        x = torch.randn(2, 1 << 18).cuda()

        def loss_of() -> Tensor:
            return model(x)
    else:
        model = resnet50().cuda().to(memory_format=torch.channels_last)
        x, y = (part.cuda() for part in images(BATCH, SIDE))
        x = x.to(memory_format=torch.channels_last)

        def loss_of() -> Tensor:
            return functional.cross_entropy(model(x), y)

    # Of rate 0, so that weights are what they were: their content can be checked.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    contents = Contents()
    weights = [weight for weight in model.parameters() if weight.nbytes % 8 == 0]
    expected = contents.checksum(weights)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=not on_simulated_driver()):
            loss = loss_of()
        loss.backward()
        optimizer.step()

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        import commensal

        timed(step, order["seconds"] / 3, order["most"])
        if part := order.get("part"):
            peak = commensal.stats()["memory"]["peak_device_bytes"]
            commensal.set_memory_limit(max(2 << 20, int(peak * part)))
            timed(step, order["seconds"] / 2, order["most"])  # finds out what rests
        seconds = timed(step, order["seconds"], order["most"])
        memory = commensal.stats()["memory"]
        names = ("limit_bytes", "device_bytes", "host_bytes", "peak_device_bytes")
        return {
            "seconds": seconds,
            "memory": {name: memory[name] for name in names},
            "same": contents.checksum(weights) == expected,
        }

    return handle


class AdamJob:
    """Mixed precision by size: 16 bytes a parameter, with gradients, and a window in each step in
    which neither weights nor optimizer state are written.
    """

    def __init__(self, size: int, window: float) -> None:
        self.window = window
        count = size // 16
        self.weights = [
            nn.Parameter(torch.empty(part // 4, device="cuda")) for part in mix(4 * count)
        ]
        self.contents = Contents()
        for weight in self.weights:
            if on_simulated_driver():
                self.contents.fill([weight])
            else:
                weight.data.normal_()
            weight.grad = torch.zeros_like(weight)
        # Of rate 0: what it writes is what was there, and that can be checked.
        self.optimizer = torch.optim.Adam(self.weights, lr=0.0, fused=True)
        self.side = None if on_simulated_driver() else torch.randn(4096, 4096, device="cuda")
        self.step()
        self.expected = self.contents.checksum(self.weights)

    def step(self) -> None:
        self.compute()
        for weight in self.weights:
            assert weight.grad is not None
            weight.grad.add_(1e-3)
        self.optimizer.step()
        torch.cuda.synchronize()

    def compute(self) -> None:
        """Work on other memory for the window's length."""
        end = time.perf_counter() + self.window
        while time.perf_counter() < end:
            if self.side is None:
                time.sleep(0.001)
            else:
                torch.mm(self.side, self.side)
                torch.cuda.synchronize()

    def same(self) -> bool:
        return self.contents.checksum(self.weights) == self.expected


def adam(settings: dict[str, Any]) -> Handler:
    """An Adam job that loses memory between its steps (`stop`), or lives with less (`slow`)."""
    job = AdamJob(settings["bytes"], settings["window"])
    full = torch.cuda.get_device_properties(0).total_memory

    def alone(count: int) -> list[float]:
        return timed(job.step, 1e9, count)

    def stop(order: dict[str, Any]) -> dict[str, Any]:
        import commensal

        usual = sorted(alone(order["steps"]))
        typical = usual[len(usual) // 2]
        torch.cuda.empty_cache()
        limit = max(2 << 20, device_bytes() - order["bytes"])
        before = commensal.stats()["memory"]
        order_given = threading.Thread(target=commensal.set_memory_limit, args=(limit,))
        order_given.start()
        begin, taken = time.monotonic(), []
        while not taken or (device_bytes() > limit and time.monotonic() - begin < STOP_PATIENCE):
            taken += alone(1)
        order_given.join()
        after = commensal.stats()["memory"]
        told = {
            "usual": usual,
            "taken": taken,
            "stopped_seconds": sum(max(0.0, one - typical) for one in taken),
            "moved_bytes": after["moved_out_bytes_total"] - before["moved_out_bytes_total"],
            "ahead_bytes": after["moved_ahead_bytes_total"] - before["moved_ahead_bytes_total"],
            "above_limit_bytes": max(0, device_bytes() - limit),
        }
        told["reason"] = brought_back(full)
        return told | {"same": job.same()}

    def slow(order: dict[str, Any]) -> dict[str, Any]:
        import commensal

        job.window = order["window"]
        usual = alone(order["steps"])
        torch.cuda.empty_cache()
        limit = max(2 << 20, int(device_bytes() * (1 - order["part"])))
        ticket = commensal.set_memory_limit(limit)
        alone(2)
        limited = alone(order["steps"])
        host = commensal.stats()["memory"]["host_bytes"]
        reason = brought_back(full)
        return {
            "usual": usual,
            "limited": limited,
            "host_bytes": host,
            "deferred": ticket.reason,
            "reason": reason,
            "same": job.same(),
        }

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        return stop(order) if order["do"] == "stop" else slow(order)

    return handle
