# SPDX-License-Identifier: Apache-2.0
"""Allocate and free as recorded jobs did: ours, PyTorch's default, and preloaded mallocs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import traces
from harness import Bar, Bench, BenchmarkError, Result

from allocator import find_program, readable
from commensal.demo.processes import plain_environment
from commensal.demo.statistics import Interval, paired_ratio_interval

PROGRAM = "replay_benchmark"
OURS = "ours"
LIMITED = "ours, with a limit"  # that is never reached
DEFAULT = "PyTorch's default"
# Shared libraries of Debian's packages libmimalloc2.0, libjemalloc2 and libtcmalloc-minimal4.
PRELOADED = {
    "mimalloc": "libmimalloc.so.2",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
}
Kind = Literal["small", "large"]
THREADS = (1, 2, 4)
MOST_BYTES = 6 << 30  # for the blocks of all processes together


@dataclass(frozen=True)
class Group:
    """What is compared: a job's blocks of one class, on some threads."""

    job: str
    kind: Kind
    threads: int

    @property
    def label(self) -> str:
        return f"{self.job}, {'< 1 MiB' if self.kind == 'small' else '>= 1 MiB'}"


@dataclass
class Times:
    """Nanoseconds a pair: for each turn of an allocator, those of its passes."""

    turns: dict[str, list[list[float]]] = field(default_factory=dict)

    def typical(self, name: str) -> float:
        return median(median(turn) for turn in self.turns[name])

    def ratio(self, base: str, name: str = OURS) -> Interval:
        return paired_ratio_interval(list(zip(self.turns[name], self.turns[base], strict=True)))


class Replayer:
    """A process that replays one trace when it is told to.

    Raises:
        BenchmarkError: it failed, from any method.
    """

    def __init__(self, name: str, trace: Path, group: Group, library: str = "") -> None:
        self.name = name
        kind = {OURS: "elastic", LIMITED: "limited"}.get(name, "default")
        touch = "touch" if group.kind == "large" else "leave"
        environment = plain_environment() | ({"LD_PRELOAD": library} if library else {})
        self._process = subprocess.Popen(
            [str(find_program(PROGRAM)), kind, str(trace), str(group.threads), touch],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        about = self._answer()
        if library and Path(library).name not in about["malloc"]:
            raise BenchmarkError(f"{library} was preloaded, but {about['malloc']} serves malloc")

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def turn(self, passes: int) -> list[float]:
        """Replay so many times; return nanoseconds a pair of each pass."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{passes}\n")
        self._process.stdin.flush()
        nanoseconds: list[float] = self._answer()["nanoseconds"]
        return nanoseconds

    def passes_in(self, seconds: float) -> int:
        """Replay once; return how often that can be done in so many seconds."""
        begin = time.monotonic()
        self.turn(1)
        return max(1, min(50, int(seconds / (time.monotonic() - begin))))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, errors = self._process.communicate()
            raise BenchmarkError(f"{PROGRAM} with {self.name} failed: {errors[-1000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def run(*, quick: bool) -> Result:
    """Replay each job's small and large blocks on one, two and four threads."""
    result = Result(
        "replay",
        "Allocate and free a block of recorded traces (large: and write each page)",
        ["blocks", "threads", OURS, LIMITED, DEFAULT, *PRELOADED, "ours : default", "ours : best"],
    )
    libraries = find_libraries()
    for name in PRELOADED:
        if name not in libraries:
            result.notes.append(f"{name} is not installed: ./scripts/setup --benchmarks")
    bench = Bench(result, quick=quick)
    kinds: tuple[Kind, ...] = ("small", "large")
    with tempfile.TemporaryDirectory(prefix="commensal-bench-") as folder:
        for job in traces.names()[: 1 if quick else None]:
            events = traces.load(traces.FOLDER / f"{job}.trace.xz")
            if quick:
                events = list(traces.first_steps(events, 2))
            for kind in kinds:
                packed = traces.pack(events, kind)
                path = Path(folder) / f"{job}.{kind}"
                path.write_bytes(packed.words.tobytes())
                for threads in THREADS:
                    group = Group(job, kind, threads)
                    if not fits(packed.peak * threads, replayers=3 + len(libraries)):
                        result.notes.append(f"{group.label}, {threads} thread(s): too large here")
                        continue
                    times = measure(bench, group, path, libraries)
                    report(result, group, times, packed)
    return result


def fits(peak: int, *, replayers: int) -> bool:
    """Tell whether so many processes may each hold blocks of `peak` bytes at once."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return peak * replayers * 5 // 4 <= min(free // 2, MOST_BYTES)


def find_libraries() -> dict[str, str]:
    """Return the mallocs that are installed, by the dynamic linker's own table."""
    listed = subprocess.run(
        ["/sbin/ldconfig", "-p"], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    found = {}
    for name, library in PRELOADED.items():
        if match := re.search(rf"^\s*{re.escape(library)} .*=> (\S+)$", listed, re.MULTILINE):
            found[name] = match[1]
    return found


def compared(group: Group, libraries: Iterable[str]) -> tuple[str, ...]:
    """Name the allocators; a limit can only matter where a pair takes nanoseconds."""
    return (OURS, *((LIMITED,) if group.kind == "small" else ()), DEFAULT, *libraries)


def measure(bench: Bench, group: Group, trace: Path, libraries: Mapping[str, str]) -> Times:
    """Let one process for each allocator replay in turn; whoever was first is last next time."""
    turns, seconds = (2, 0.02) if bench.quick else (9 if group.kind == "small" else 4, 0.15)
    with contextlib.ExitStack() as stack:
        replayers = [
            stack.enter_context(Replayer(name, trace, group, libraries.get(name, "")))
            for name in compared(group, libraries)
        ]

        # A turn is as many passes as fit into its time, at least one.
        passes = {replayer.name: replayer.passes_in(seconds) for replayer in replayers}

        def window() -> Times:
            times = Times({replayer.name: [] for replayer in replayers})
            for number in range(turns):
                for replayer in replayers if number % 2 == 0 else reversed(replayers):
                    times.turns[replayer.name].append(replayer.turn(passes[replayer.name]))
            return times

        return bench.window(f"{group.label}, {group.threads} thread(s)", window)


def report(result: Result, group: Group, times: Times, packed: traces.Packed) -> None:
    """Add a row, bars and figures."""
    typical = {name: times.typical(name) for name in times.turns}
    others = (name for name in typical if name not in (OURS, LIMITED))
    best = min(others, key=lambda name: typical[name])
    over_default = times.ratio(DEFAULT)
    over_best = times.ratio(best)
    columns: Sequence[str] = [OURS, LIMITED, DEFAULT, *PRELOADED]
    result.rows.append(
        (
            group.label,
            str(group.threads),
            *(readable(typical[name]) if name in typical else "-" for name in columns),
            f"{over_default.value:.3f}",
            f"{over_best.value:.2f}",
        )
    )
    result.figures[f"{group.label}, {group.threads} thread(s)"] = {
        "pairs": packed.pairs,
        "bytes": packed.bytes,
        "nanoseconds": typical,
        "spread": {
            name: [min(map(median, turns)), max(map(median, turns))]
            for name, turns in times.turns.items()
        },
        "over_default": [over_default.value, over_default.low, over_default.high],
        "best": best,
        "over_best": [over_best.value, over_best.low, over_best.high],
    }
    what = f"{group.label}, {group.threads} thread(s)"
    if group.kind == "small":
        result.bars += [
            Bar(f"{what}: a pair", typical[OURS], most=100.0, unit=" ns"),
            Bar(f"{what}: over PyTorch's default", over_default.value, most=0.5),
        ]
        limited = times.ratio(OURS, LIMITED)
        result.figures[what]["P18 limited over unlimited"] = [
            *(limited.value, limited.low, limited.high)
        ]
        # No difference can be measured: the interval reaches down to equal times.
        result.bars.append(Bar(f"{what}: P18, with a limit, lower bound", limited.low, most=1.0))
    else:
        result.bars.append(Bar(f"{what}: over the best ({best})", over_best.value, most=1.0))
