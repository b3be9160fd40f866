# SPDX-License-Identifier: Apache-2.0
"""Trains while its memory limit falls and rises, and prints what happened, a line at a time.

Memory is lowered by another thread in the middle of a step, as a coordinator does it. The page
docs/how-memory-shrinks.md walks through the output.

    commensal run --guaranteed -- python examples/shrink.py
"""

import argparse
import threading
import time

import torch

import commensal

MIB = 1 << 20


def resident_mib() -> float:
    """Return the memory of this process that is not in files, in MiB."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


class Watcher(threading.Thread):
    """Prints a line whenever the job's memory has changed, until it is stopped."""

    def __init__(self, begin: float) -> None:
        super().__init__(daemon=True)
        self.begin = begin
        self.ended = threading.Event()
        self.last: tuple[float, ...] = ()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.look()

    def look(self) -> None:
        stats = commensal.stats()
        memory = stats["memory"]
        shown = tuple(
            round(memory[name] / MIB)
            for name in ("device_bytes", "host_bytes", "moved_ahead_bytes_total")
        )
        limit = memory["limit_bytes"]
        if (shown, limit) == self.last:
            return
        self.last = (shown, limit)
        device, host, ahead = shown
        print(
            f"{time.monotonic() - self.begin:6.2f} s  step {stats['step']['number']:3d}"
            f"  limit {'none' if limit is None else round(limit / MIB):>5}"
            f"  in memory {device:5d}  on disk {host:5d}  moved while it ran {ahead:5d}"
            f"  process {resident_mib():5.0f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    width = arguments.width
    # Half of the layers train; the other half are frozen, as in fine-tuning, and rest.
    layers = [torch.nn.Linear(width, width) for _ in range(arguments.layers)]
    frozen = [torch.nn.Linear(width, width).requires_grad_(False) for _ in layers]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = torch.randn(64, width)

    def step() -> float:
        optimizer.zero_grad()
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    begin = time.monotonic()
    for _ in range(3):
        step()  # the optimizer's state is made in the first one
    held = commensal.stats()["memory"]["peak_device_bytes"]
    resting = sum(weight.nbytes for part in frozen for weight in part.parameters())
    watcher = Watcher(begin)
    watcher.look()
    watcher.start()
    seconds = []
    for number in range(arguments.steps):
        if number == arguments.steps // 3:
            low = threading.Thread(target=commensal.set_memory_limit, args=(held - resting,))
            low.start()
        if number == 2 * arguments.steps // 3:
            high = threading.Thread(target=commensal.set_memory_limit, args=(held * 2,))
            high.start()
        since = time.monotonic()
        loss = step()
        seconds.append(time.monotonic() - since)
    watcher.ended.set()
    watcher.join()
    watcher.look()
    third = arguments.steps // 3
    parts = [sorted(seconds[i : i + third])[third // 2] for i in (0, third, 2 * third)]
    pause = commensal.stats()["memory"]["longest_pause_seconds"]
    print(
        "median step before, below and after the limit: "
        + ", ".join(f"{part * 1e3:.0f} ms" for part in parts)
        + f"; longest stop of all threads: {pause * 1e3:.1f} ms; loss {loss:.6f}"
    )


if __name__ == "__main__":
    main()
