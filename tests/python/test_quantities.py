# SPDX-License-Identifier: Apache-2.0
"""Sizes and shares as people write them."""

from __future__ import annotations

import re

import pytest

from commensal._quantities import (
    MemoryRange,
    ShareRange,
    format_bytes,
    format_seconds,
    parse_bytes,
    parse_duration_ms,
    parse_memory_range,
    parse_percent,
    parse_share,
    parse_share_range,
)

GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("4GiB", 4 * GIB),
        ("512MiB", 512 * 1024**2),
        ("1.5G", 3 * GIB // 2),
        ("1.5 gib", 3 * GIB // 2),
        ("2GB", 2 * 10**9),
        ("64k", 65536),
        (".5T", 512 * GIB),
        ("123", 123),
        ("7B", 7),
        (" 0 ", 0),
        (17, 17),
    ],
)
def test_reads_sizes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "4GiBs", "-1", "-4GiB", "nan", "inf", "1e9", "4 5", "1_000", "99999999T", -1, True],
)
def test_names_a_wrong_size(text: str | int) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        parse_bytes(text)
    assert repr(text) in str(caught.value)


def test_one_value_alone_is_max_and_both_for_a_guaranteed_job() -> None:
    assert parse_memory_range("4GiB", guaranteed=False) == MemoryRange(0, 4 * GIB)
    assert parse_memory_range("4GiB", guaranteed=True) == MemoryRange(4 * GIB, 4 * GIB)
    assert parse_share_range("0.5", guaranteed=False) == ShareRange(0.0, 0.5)
    assert parse_share_range("0.5", guaranteed=True) == ShareRange(0.5, 0.5)


def test_an_open_end_is_the_device() -> None:
    assert parse_memory_range("1GiB:", guaranteed=True) == MemoryRange(GIB, None)
    assert parse_memory_range(":2GiB", guaranteed=True) == MemoryRange(0, 2 * GIB)
    assert parse_share_range("0.1:", guaranteed=False) == ShareRange(0.1, 1.0)


@pytest.mark.parametrize(
    "text", ["2GiB:1GiB", "", "  ", "1:2:3", "x", "0", "0:0", "-1:5", "1GiB:nan"]
)
def test_names_a_wrong_memory_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|MIN|MAX"):
        parse_memory_range(text, guaranteed=False)


@pytest.mark.parametrize("text", ["0.9:0.1", "1.5", "-0.1", "nan", "0.1:nan", "", "half", "inf"])
def test_names_a_wrong_share_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"share|MIN"):
        parse_share_range(text, guaranteed=False)


@pytest.mark.parametrize("value", [True, None, [], float("nan"), 2, -1])
def test_names_a_wrong_share(value: object) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        parse_share(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "fraction"), [("3", 0.03), ("0.5 %", 0.005), (50, 0.5), (" 1% ", 0.01)]
)
def test_reads_a_slowdown_in_percent(text: str | float, fraction: float) -> None:
    assert parse_percent(text, most=50, what="slo") / 100 == pytest.approx(fraction)


@pytest.mark.parametrize("text", ["0", "-1", "50.1", "nan", "inf", "much", "", "3 %%", True])
def test_names_a_wrong_slowdown(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_percent(text, most=50, what="slo")


def test_writes_sizes_and_times_for_people() -> None:
    assert format_bytes(48 * 1024**2) == "48 MiB"
    assert format_bytes(3 * GIB // 2) == "1.5 GiB"
    assert format_bytes(0) == "0 B"
    assert format_bytes(None) == "-"
    assert format_seconds(0.012) == "12 ms"
    assert format_seconds(0.0001) == "100 us"
    assert format_seconds(0.9999) == "1.0 s"
    assert format_seconds(45) == "45 s"
    assert format_seconds(720) == "12 min"
    assert format_seconds(9000) == "2.5 h"
    assert format_seconds(None) == "-"


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("10m", 600_000),
        ("10 min", 600_000),
        ("90s", 90_000),
        ("1.5h", 5_400_000),
        ("500ms", 500),
        ("2", 2000),
        (2, 2000),
        (0.25, 250),
        ("1D", 86_400_000),
        ("365d", 31_536_000_000),
        ("0", 0),
    ],
)
def test_reads_durations(text: str | float, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", "s", "-1", "-1s", "1 2", "1:30", "ten", "1y", "366d", 1e400, float("nan"), -3, True, None],
)
def test_names_what_is_no_duration(text: str | float) -> None:
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration_ms(text)
    assert repr(text) in str(caught.value)
