# SPDX-License-Identifier: Apache-2.0
"""`commensal memory`: a running job says where its memory lies, as text, JSON and a picture."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
from test_memory_stats import MAP, SEGMENT
from world import World, read_line

from commensal._memory_map import MemoryMap
from commensal.cli import main
from commensal.cli.memory import describe_map

JOB = """
import sys, torch, commensal
with commensal.region("weights"):
    model = torch.nn.Linear(1000, 1000)
with commensal.region("cache"):
    cache = torch.ones(1 << 20)
rest = torch.ones(1 << 20)
commensal.park_tag("weights"), commensal.drop_tag("cache")
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(Path(mkdtemp(prefix="cm-", dir="/tmp")))
    command = ("run", "--guaranteed", "--name", "trainer", "--", sys.executable)
    job = made.start([str(Path(sys.executable).parent / "commensal"), *command, made.script(JOB)])
    read_line(job, "ready")
    yield made
    made.close()


def test_tells_tiers_lifetimes_and_tags_as_text(world: World) -> None:
    done = world.commensal("memory", "trainer")
    assert done.returncode == 0, done.stderr
    lines = {line[:26].strip(): line for line in done.stdout.splitlines()}
    assert "4 MiB" in next(line for name, line in lines.items() if name.startswith("tag weights"))
    for kind, letter in (("tag weights", "P"), ("tag cache", "X"), ("outlives its step", "D")):
        strip = done.stdout.split(f"  {kind}, ")[1].splitlines()[1]
        assert set(strip.strip().upper()) == {letter}


def test_tells_every_stretch_as_json(world: World) -> None:
    done = world.commensal("memory", "trainer", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    kinds = MemoryMap.from_json(found).bytes_by_kind()
    assert kinds["tag weights"]["parked"] == 4 << 20
    assert kinds["tag cache"]["dropped"] == 4 << 20
    assert kinds["long"]["device"] >= 4 << 20
    again = world.commensal("memory", "trainer", "--json", "--pid", str(found["pid"]))
    assert json.loads(again.stdout) == found


def test_draws_a_picture(world: World) -> None:
    file = world.folder / "memory.png"
    done = world.commensal("memory", "trainer", "--png", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and f"wrote {file}" in done.stderr
    head = file.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    assert width > 1000 and height > 300


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nobody",), 4, "nobody"),
        (("trainer", "--pid", "1"), 4, "has no process 1"),
        (("trainer", "--png", "no/folder/x.png"), 1, "cannot write no/folder/x.png"),
        (("trainer", "--png", "x.nonsense"), 1, "cannot write x.nonsense"),
        (("trainer", "--instance", "other"), 3, "no coordinator listens"),
    ],
)
def test_says_what_is_wrong(
    world: World, arguments: tuple[str, ...], code: int, words: str
) -> None:
    done = world.commensal("memory", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_strip_gives_each_part_the_letter_of_most_of_it() -> None:
    text = describe_map(MemoryMap.from_json({**MAP, "segments": [SEGMENT]}))
    assert text.splitlines()[-1].strip() == "DDHP"
    chunks = [[i << 21, 2 << 20, "device" if i < 90 else "host", 0] for i in range(120)]
    long = MemoryMap.from_json({**MAP, "segments": [{**SEGMENT, "chunks": chunks, "blocks": []}]})
    text = describe_map(long)
    assert text.splitlines()[-1].strip() == "d" * 45 + "h" * 15
    assert "4 MiB a letter" in text
    empty = describe_map(MemoryMap.from_json({**MAP, "segments": []}))
    assert empty.endswith("nothing was allocated yet")


def test_the_picture_draws_every_tier_and_no_memory_at_all(tmp_path: Path) -> None:
    from commensal._memory_picture import draw

    for name, segments in (("all", MAP["segments"]), ("none", [])):
        draw(MemoryMap.from_json({**MAP, "segments": segments}), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 5_000


def test_a_job_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory"]) == 2
    assert "JOB" in capsys.readouterr().err
