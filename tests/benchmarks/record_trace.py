# SPDX-License-Identifier: Apache-2.0
"""Records what training jobs allocate, by PyTorch's own profiler, into tests/data/traces.

    python tests/benchmarks/record_trace.py            all jobs
    python tests/benchmarks/record_trace.py digits_cnn

The profiler reports every block of PyTorch's CPU allocator with size, address, thread and time. A
trace of which anything is missing (a block that is freed without having been allocated, an address
handed out twice) is refused.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile, record_function
from traces import FOLDER, Allocate, Event, Free, StepEnd, save

ROOT = Path(__file__).resolve().parents[2]
MARK = "commensal: a step ends"
JOBS = {
    "digits_cnn": (
        *("examples/digits_cnn.py", "--steps", "24", "--double-at", "14", "--read-rate", "0"),
        *("--evaluate-every", "8", "--checkpoint-every", "10"),
    ),
    "char_transformer": ("examples/char_transformer.py", "--steps", "20"),
    "gpt": ("tests/benchmarks/jobs.py", "gpt", "--steps", "20"),
    "resnet18": ("tests/benchmarks/jobs.py", "resnet18", "--steps", "20"),
    "loader": ("tests/benchmarks/jobs.py", "loader", "--steps", "24"),
}


def profiled(job: str) -> Iterator[Any]:
    """Run a job under the profiler; yield its events in the order in which they happened."""
    path, *arguments = JOBS[job]
    sys.path.insert(0, str((ROOT / path).parent))
    script = importlib.import_module(Path(path).stem)

    def mark(*_: object) -> None:
        with record_function(MARK):
            pass

    hook = register_optimizer_step_post_hook(mark)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as run:
        script.main(arguments)
    hook.remove()
    found = []
    left = list(run.profiler.kineto_results.experimental_event_tree())
    while left:
        event = left.pop()
        left.extend(event.children)
        if event.tag.name == "Allocation" or event.name == MARK:
            found.append(event)
    yield from sorted(found, key=lambda event: event.start_time_ns)


def events_of(job: str) -> Iterator[Event]:
    live: dict[int, tuple[int, int]] = {}
    threads: dict[int, int] = {}
    allocations = 0
    for event in profiled(job):
        if event.name == MARK:
            yield StepEnd()
            continue
        block = event.extra_fields
        thread = threads.setdefault(event.start_tid, len(threads))
        if block.alloc_size > 0:
            if block.ptr in live:
                raise SystemExit(f"{job}: {block.ptr:#x} was handed out twice")
            live[block.ptr] = (allocations, block.alloc_size)
            allocations += 1
            yield Allocate(block.alloc_size, thread)
        else:
            number, size = live.pop(block.ptr, (-1, 0))
            if size != -block.alloc_size:
                raise SystemExit(f"{job}: {block.ptr:#x} was freed and not allocated")
            yield Free(number, thread)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("job", nargs="*", choices=[[], *JOBS], help="default: all")
    for job in parser.parse_args().job or JOBS:
        events = list(events_of(job))
        about = (
            " ".join(JOBS[job]),
            f"torch {torch.__version__}, Python {platform.python_version()}, "
            f"{torch.get_num_threads()} threads, {platform.machine()}",
        )
        path = FOLDER / f"{job}.trace.xz"
        save(path, events, about)
        print(f"{path}: {len(events)} events, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
