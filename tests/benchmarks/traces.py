# SPDX-License-Identifier: Apache-2.0
"""Recorded allocation traces: reads and writes tests/data/traces (format: the README there)."""

from __future__ import annotations

import lzma
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).resolve().parents[1] / "data" / "traces"
LARGE = 1 << 20
STEP_ENDS = 0xFFFFFFFF  # instead of a slot
SKIPPED_STEPS = 3  # the first steps make optimizer state and fill caches


class TraceError(ValueError):
    """A trace cannot be read; the message names file and line."""


@dataclass(frozen=True)
class Allocate:
    """A block of `size` bytes; its number is that of the allocation, from 0."""

    size: int
    thread: int


@dataclass(frozen=True)
class Free:
    """The block of allocation `number` is given back by `thread`."""

    number: int
    thread: int


@dataclass(frozen=True)
class StepEnd:
    """An optimizer step of the job has ended."""


Event = Allocate | Free | StepEnd


def encode(events: Iterable[Event], about: Iterable[str]) -> str:
    """Return the text of a trace. Frees count back, so that equal steps give equal lines."""
    lines = [f"# {line}" for line in about]
    allocations = 0
    thread = 0
    for event in events:
        if isinstance(event, StepEnd):
            lines.append("s")
            continue
        if event.thread != thread:
            thread = event.thread
            lines.append(f"t{thread}")
        if isinstance(event, Allocate):
            lines.append(str(event.size))
            allocations += 1
        else:
            lines.append(str(event.number - allocations))
    return "\n".join(lines) + "\n"


def decode(lines: Iterable[str], name: str) -> Iterator[Event]:
    """Yield the events of a trace.

    Raises:
        TraceError: a line is none, or frees what is not there.
    """
    live: set[int] = set()
    allocations = 0
    thread = 0
    for position, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line == "s":
            yield StepEnd()
            continue
        try:
            value = int(line.removeprefix("t"))
        except ValueError as error:
            raise TraceError(f"{name}, line {position}: {line!r}") from error
        if line.startswith("t"):
            thread = value
        elif value > 0:
            live.add(allocations)
            allocations += 1
            yield Allocate(value, thread)
        else:
            number = allocations + value
            if number not in live:
                raise TraceError(f"{name}, line {position}: frees what is not live")
            live.remove(number)
            yield Free(number, thread)


def save(path: Path, events: Iterable[Event], about: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(encode(events, about).encode(), preset=9 | lzma.PRESET_EXTREME))


def load(path: Path) -> list[Event]:
    """Read a trace.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        text = lzma.decompress(path.read_bytes()).decode()
    except (OSError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error
    return list(decode(text.splitlines(), path.name))


def names() -> list[str]:
    """Return the recorded jobs."""
    return sorted(path.name.removesuffix(".trace.xz") for path in FOLDER.glob("*.trace.xz"))


@dataclass(frozen=True)
class Packed:
    """A class of a trace's blocks for the replay program.

    Pairs of 32-bit words: slot, then size (0: free the slot; slot STEP_ENDS: a step ends). Words
    before them: number of slots, first and last timed event, number of events. What is live at the
    end is freed untimed.
    """

    words: array[int]
    pairs: int  # allocations in the timed part
    bytes: int  # of these allocations
    peak: int  # of live bytes of the class


def first_steps(events: Iterable[Event], timed: int) -> Iterator[Event]:
    """Leave out what comes after so many timed steps."""
    left = SKIPPED_STEPS + timed
    for event in events:
        yield event
        left -= isinstance(event, StepEnd)
        if left == 0:
            return


Kind = Literal["small", "large", "all"]


def pack(events: Iterable[Event], kind: Kind) -> Packed:
    """Keep the blocks below 1 MiB, those of 1 MiB and more, or all, in order."""
    slots: dict[int, int] = {}
    sizes: dict[int, int] = {}
    unused: list[int] = []
    most = 0
    body = array("I")
    allocations = 0
    steps = 0
    pairs = 0
    volume = 0
    live = peak = 0
    begin = end = 0
    timed = (0, 0)
    for event in events:
        if isinstance(event, StepEnd):
            steps += 1
            body.extend((STEP_ENDS, 0))
            if steps <= SKIPPED_STEPS:
                begin = len(body) // 2
                pairs = volume = 0
            end, timed = len(body) // 2, (pairs, volume)
        elif isinstance(event, Allocate):
            number = allocations
            allocations += 1
            if kind != "all" and (event.size >= LARGE) != (kind == "large"):
                continue
            if event.size >= 1 << 32:
                raise TraceError(f"a block of {event.size} bytes is too large to replay")
            slot = unused.pop() if unused else most
            most = max(most, slot + 1)
            slots[number] = slot
            sizes[number] = event.size
            live += event.size
            peak = max(peak, live)
            body.extend((slot, event.size))
            pairs += 1
            volume += event.size
        elif event.number in slots:
            slot = slots.pop(event.number)
            unused.append(slot)
            live -= sizes.pop(event.number)
            body.extend((slot, 0))
    for slot in slots.values():
        body.extend((slot, 0))
    return Packed(array("I", (most, begin, end, len(body) // 2)) + body, *timed, peak)
