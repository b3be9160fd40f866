# SPDX-License-Identifier: Apache-2.0
"""Sizes, shares and durations as people write them: "4GiB", "512MiB:2GiB", "0.1:0.5", "10m".

Binary units throughout: K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024; KB, MB, GB, TB are
powers of 1000. A bare number counts bytes. Every mistake is a `ValueError` that names the value.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

__all__ = [
    "MemoryRange",
    "ShareRange",
    "format_bytes",
    "format_seconds",
    "parse_bytes",
    "parse_duration_ms",
    "parse_fraction",
    "parse_memory_range",
    "parse_percent",
    "parse_share",
    "parse_share_range",
]

_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[f"{_letter}b"] = 1000**_power
_LARGEST = 2**63 - 1
_DURATION_UNITS = {"ms": 1, "": 1000, "s": 1000, "min": 60_000, "m": 60_000}
_DURATION_UNITS |= {"h": 3_600_000, "d": 86_400_000}
_LONGEST_MS = 365 * 86_400_000
_DURATION_EXAMPLES = "for example 10m, 90s, 1.5h or a count of seconds"
_EXAMPLES = "for example 4GiB, 512MiB, 1.5G or a count of bytes"


@dataclass(frozen=True)
class MemoryRange:
    """MIN[:MAX] of device memory in bytes; `max_bytes` None is the whole device."""

    min_bytes: int = 0
    max_bytes: int | None = None


@dataclass(frozen=True)
class ShareRange:
    """MIN[:MAX] of device time, both 0..1."""

    min_share: float = 0.0
    max_share: float = 1.0


def parse_bytes(text: str | int) -> int:
    """Return a size in bytes. @raises ValueError naming the value."""
    if isinstance(text, bool) or not isinstance(text, (str, int)):
        raise ValueError(f"not a size: {text!r} ({_EXAMPLES})")
    if isinstance(text, int):
        count = text
    else:
        match = _QUANTITY.fullmatch(text.strip())
        unit = _UNITS.get(match["unit"].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"not a size: {text!r} ({_EXAMPLES})")
        count = int(Decimal(match["number"]) * unit)
    if not 0 <= count <= _LARGEST:
        raise ValueError(f"size out of range: {text!r}")
    return count


def parse_duration_ms(text: str | float) -> int:
    """Return a duration in milliseconds. @raises ValueError naming the value."""
    match = None
    if isinstance(text, (str, int, float)) and not isinstance(text, bool):
        match = _QUANTITY.fullmatch(str(text).strip())
    unit = _DURATION_UNITS.get(match["unit"].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"not a duration: {text!r} ({_DURATION_EXAMPLES})")
    milliseconds = int(Decimal(match["number"]) * unit)
    if milliseconds > _LONGEST_MS:
        raise ValueError(f"duration out of range: {text!r}")
    return milliseconds


def parse_share(text: str | float) -> float:
    """Return a share of device time, 0..1. @raises ValueError naming the value."""
    try:
        share = float(text) if not isinstance(text, bool) else math.nan
    except (TypeError, ValueError):
        raise ValueError(f"not a share between 0 and 1: {text!r}") from None
    if not 0.0 <= share <= 1.0:  # also false for nan
        raise ValueError(f"not a share between 0 and 1: {text!r}")
    return share


def parse_fraction(text: str | float, *, most: float, what: str) -> float:
    """Return a number above 0, at most `most`. @raises ValueError with `what` and the value."""
    try:
        number = float(text) if not isinstance(text, bool) else math.nan
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 < number <= most:  # also false for nan
        raise ValueError(f"{what} must be above 0 and at most {most:g}: {text!r}")
    return number


def parse_percent(text: str | float, *, most: float, what: str) -> float:
    """Return a percentage ("3", "0.5 %") above 0, at most `most`. @raises ValueError as above."""
    bare = text.strip().removesuffix("%") if isinstance(text, str) else text
    try:
        return parse_fraction(bare, most=most, what=what)
    except ValueError:
        raise ValueError(f"{what} must be above 0 and at most {most:g} %: {text!r}") from None


def parse_memory_range(text: str | int, *, guaranteed: bool) -> MemoryRange:
    """Read MIN[:MAX]. One value alone is MAX (MIN 0), and both for a guaranteed job.

    @raises ValueError naming the value.
    """
    low: str | int | None
    high: str | int
    low, high = _split_range(text) if isinstance(text, str) else (None, text)
    if low is None:
        low = high if guaranteed else "0"
    bounds = MemoryRange(parse_bytes(low), None if high == "" else parse_bytes(high))
    if bounds.max_bytes is not None and bounds.min_bytes > bounds.max_bytes:
        raise ValueError(f"MIN above MAX: {text!r}")
    if bounds.max_bytes == 0:
        raise ValueError(f"MAX of zero leaves no device memory: {text!r}")
    return bounds


def parse_share_range(text: str | float, *, guaranteed: bool) -> ShareRange:
    """Read MIN[:MAX] of shares, by the rule of `parse_memory_range`.

    @raises ValueError naming the value.
    """
    low: str | float | None
    high: str | float
    low, high = _split_range(text) if isinstance(text, str) else (None, text)
    if low is None:
        low = high if guaranteed else "0"
    bounds = ShareRange(parse_share(low), 1.0 if high == "" else parse_share(high))
    if bounds.min_share > bounds.max_share:
        raise ValueError(f"MIN above MAX: {text!r}")
    return bounds


def _split_range(text: str) -> tuple[str | None, str]:
    """Split MIN:MAX; MIN is None when only one value was given; an empty MAX has no limit."""
    if not text.strip():
        raise ValueError("empty value (expected MIN[:MAX])")
    if ":" not in text:
        return None, text
    low, high = text.split(":", 1)
    return low.strip() or "0", high.strip()


def format_bytes(count: int | None) -> str:
    """Write a size for people, in binary units: "48 MiB", "1.5 GiB"; None is "-"."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{int(size)} {unit}" if size == int(size) else f"{size:.1f} {unit}"


def format_seconds(seconds: float | None) -> str:
    """Write a duration for people: "12 ms", "4.2 s", "12 min", "3.5 h"; None is "-"."""
    if seconds is None:
        return "-"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
