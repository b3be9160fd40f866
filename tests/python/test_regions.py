# SPDX-License-Identifier: Apache-2.0
"""Regions and tags from Python: which tensors have a tag, and what moving one does to them."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from world import World

import commensal
from commensal.memory_saver import torch_memory_saver

EXAMPLE = Path(__file__).parents[2] / "examples" / "memory_saver.py"

JOB = """
import json, threading, warnings
import torch, commensal
from commensal.memory_saver import torch_memory_saver
facts = {}
MIB = 1 << 20

def tags():
    return {tag["name"]: tag for tag in commensal.stats()["memory"]["tags"]}

def live(tag):
    return tags()[tag]["live_bytes"] if tag in tags() else None

def error(call):
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None

def region(tag):
    with commensal.region(tag):
        pass
"""

REGIONS = (
    JOB
    + """
facts["inactive"] = {
    name: error(call) for name, call in {
        "region": lambda: region("a"),
        "park_tag": lambda: commensal.park_tag("a"),
        "drop_tag": lambda: commensal.drop_tag("a"),
        "wake_tag": lambda: commensal.wake_tag("a"),
        "memory_stats": commensal.memory_stats,
        "memory_snapshot": commensal.memory_snapshot,
        "pause": torch_memory_saver.pause,
        "resume": torch_memory_saver.resume,
        "saver region": lambda: torch_memory_saver.region().__enter__(),
        "disable": lambda: torch_memory_saver.disable().__enter__(),
    }.items()
}
facts["enabled"] = [torch_memory_saver.enabled]
commensal.init(job_class="guaranteed", memory="1GiB")
facts["enabled"].append(torch_memory_saver.enabled)
facts["unknown"] = error(lambda: commensal.park_tag("waits"))

# Which tensors have a tag.
with commensal.region("outer", keep=True):
    a = torch.ones(MIB)
    with commensal.region("inner"):
        b = torch.ones(MIB)
        try:
            with commensal.region("failed"):
                c = torch.ones(MIB)
                raise ValueError
        except ValueError:
            d = torch.ones(MIB)
    e = torch.ones(MIB)
    profiler = torch.profiler.profile()
    with commensal.region("around a profiler"):
        profiler.start()
    f = torch.ones(MIB)
    profiler.stop()
    g = torch.ones(MIB)
    with torch_memory_saver.disable():
        nowhere = torch.ones(MIB)
h = torch.ones(MIB)
facts["live_mib"] = {tag: live(tag) / MIB / 4 for tag in tags()}
facts["keep"] = {tag: numbers["keep"] for tag, numbers in tags().items()}

# Threads: those that PyTorch works with for the region, and others.
@torch.jit.script
def forked(n: int):
    return torch.ones(n)

with commensal.region("threads"):
    future = torch.jit.fork(forked, 2 * MIB)
    fork_result = torch.jit.wait(future)
    mine = []
    other = threading.Thread(target=lambda: mine.append(torch.ones(MIB)))
    other.start()
    other.join()
    def enter():
        with commensal.region("of the thread"):
            mine.append(torch.ones(MIB))
    other = threading.Thread(target=enter)
    other.start()
    other.join()
facts["threads_mib"] = [live("threads") / MIB / 4, live("of the thread") / MIB / 4]

# Autograd: the backward pass of what a region began.
weight = torch.ones(MIB, requires_grad=True)
with commensal.region("gradients"):
    (weight * 2).sum().backward()
facts["gradient_mib"] = live("gradients") / MIB / 4

# Moving.
commensal.park_tag("inner"), commensal.park_tag("inner")
facts["parked"] = [tags()["inner"], b.sum().item() / MIB]
ticket = commensal.park_tag("outer")
facts["park"] = [ticket.done_bytes, ticket.deferred_bytes, ticket.reason]
ticket = commensal.wake_tag("outer")
facts["wake"] = [ticket.done_bytes, ticket.deferred_bytes, ticket.reason]
facts["woken"] = [t.sum().item() / MIB for t in (a, e, f, g)]
ticket = commensal.drop_tag("outer")
facts["drop"] = [ticket.done_bytes, a.sum().item(), tags()["outer"]["dropped_bytes"]]
commensal.wake_tag("outer"), commensal.wake_tag("outer")
a.fill_(3)
facts["fresh"] = a.sum().item() / MIB
del a, b, c, d, e, f, g, h
facts["unknown later"] = error(lambda: commensal.wake_tag("waits"))
facts["names"] = [error(lambda: region("")), error(lambda: region("x" * 500))]
print(json.dumps(facts))
"""
)

SAVER = (
    JOB
    + """
commensal.init(job_class="guaranteed", memory="1GiB")
torch_memory_saver.hook_mode = "torch"
torch_memory_saver.memory_margin_bytes = 1 << 20
facts["settings"] = [error(lambda: setattr(torch_memory_saver, "hook_mode", "x")),
                     error(lambda: setattr(torch_memory_saver, "memory_margin_bytes", -1))]
torch_memory_saver.pause()  # of nothing
with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
    kept = torch.full((MIB,), 7.0)
with torch_memory_saver.region("weights"):
    lost = torch.full((MIB,), 8.0)
with torch_memory_saver.region():
    default = torch.full((MIB,), 9.0)
addresses = [t.data_ptr() for t in (kept, lost, default)]
before = commensal.stats()["memory"]["device_bytes"]
torch_memory_saver.pause("weights"), torch_memory_saver.pause("weights")
facts["paused"] = (before - commensal.stats()["memory"]["device_bytes"]) / MIB
facts["default"] = default[0].item()
facts["backup"] = [torch_memory_saver.get_cpu_backup(kept).sum().item() / MIB,
                   error(lambda: torch_memory_saver.get_cpu_backup(lost))]
torch_memory_saver.resume("weights"), torch_memory_saver.resume("weights")
facts["kept"] = [kept.sum().item() / MIB, torch.equal(kept, torch.full_like(kept, 7.0))]
torch_memory_saver.pause()
facts["all paused"] = commensal.stats()["memory"]["dropped_bytes"] / MIB
torch_memory_saver.resume()
lost.fill_(1)
default.fill_(2)
facts["same"] = addresses == [t.data_ptr() for t in (kept, lost, default)]
facts["sums"] = [lost.sum().item() / MIB, default.sum().item() / MIB, kept[5].item()]
facts["unknown"] = [error(lambda: torch_memory_saver.pause("kv")),
                    error(lambda: torch_memory_saver.resume("kv"))]
with commensal.memory_saver.configure_subprocess():
    pass
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    facts["graph"] = error(lambda: torch_memory_saver.cuda_graph(None).__enter__())
facts["warned"] = [str(w.message) for w in caught if w.category is RuntimeWarning]
print(json.dumps(facts))
"""
)


def run(folder: World, text: str) -> dict[str, Any]:
    done = folder.run([sys.executable, folder.script(text)])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def own_world() -> Iterator[World]:
    made = World(Path(tempfile.mkdtemp(prefix="cm-", dir="/tmp")))
    yield made
    made.close()


@pytest.fixture(scope="module")
def regions(own_world: World) -> dict[str, Any]:
    return run(own_world, REGIONS)


@pytest.fixture(scope="module")
def saver(own_world: World) -> dict[str, Any]:
    return run(own_world, SAVER)


def test_without_activation_each_function_says_how_to_activate(regions: dict[str, Any]) -> None:
    assert len(regions["inactive"]) == 10
    for name, text in regions["inactive"].items():
        assert text is not None and text.startswith("CommensalError: commensal is not active"), name
        assert "commensal run" in text and "commensal.init()" in text, name
    assert regions["enabled"] == [False, True]


def test_p14_the_innermost_region_counts_and_ends_by_an_exception(regions: dict[str, Any]) -> None:
    assert regions["live_mib"] == {
        "outer": 4,  # a, e, f and g
        "inner": 2,  # b and d
        "failed": 1,
        "around a profiler": 0,
    }
    assert [tag for tag, keep in regions["keep"].items() if keep] == ["outer"]


def test_p14_a_region_follows_pytorchs_threads_and_no_others(regions: dict[str, Any]) -> None:
    assert regions["threads_mib"] == [2, 1]


def test_p14_a_region_holds_for_the_backward_pass(regions: dict[str, Any]) -> None:
    assert regions["gradient_mib"] == 1


def test_p6_a_tag_is_parked_twice_and_comes_back(regions: dict[str, Any]) -> None:
    numbers, mean = regions["parked"]
    assert numbers["parked"] and numbers["parked_bytes"] >= 8 << 20
    assert numbers["device_bytes"] == 0
    assert mean == 1
    done, deferred, reason = regions["park"]
    assert done >= 16 << 20 and (deferred, reason) == (0, "")
    assert regions["wake"] == [done, 0, ""]
    assert regions["woken"] == [1, 1, 1, 1]


def test_p29_only_an_explicit_drop_gives_content_up(regions: dict[str, Any]) -> None:
    done, total, dropped = regions["drop"]
    assert done == dropped >= 16 << 20
    assert total == 0
    assert regions["fresh"] == 3


def test_unknown_tags_are_named_with_those_that_there_are(regions: dict[str, Any]) -> None:
    assert regions["unknown"] == "ValueError: unknown tag: 'waits' (there are none)"
    assert regions["unknown later"].startswith(
        "ValueError: unknown tag: 'waits' (there are 'outer'"
    )
    assert all("1 to 128 bytes" in text for text in regions["names"])


def test_the_saver_pauses_and_resumes_by_tag(saver: dict[str, Any]) -> None:
    assert saver["paused"] == 8
    assert saver["default"] == 9
    assert saver["kept"] == [7, True]
    assert saver["all paused"] == 8
    assert saver["same"]
    assert saver["sums"] == [1, 2, 7]


def test_the_saver_reads_a_backup_where_there_is_one(saver: dict[str, Any]) -> None:
    assert saver["backup"][0] == 7
    assert "without enable_cpu_backup" in saver["backup"][1]


def test_the_saver_names_unknown_tags(saver: dict[str, Any]) -> None:
    for text in saver["unknown"]:
        assert text == "CommensalError: unknown tag: 'kv' (there are 'weights', 'default')"


def test_the_saver_checks_its_settings_and_says_what_has_no_effect(saver: dict[str, Any]) -> None:
    assert saver["settings"] == [
        "ValueError: not a hook mode (preload, torch): 'x'",
        "ValueError: a margin below zero: -1",
    ]
    assert len(saver["warned"]) == 1 and "no effect" in saver["warned"][0]
    assert saver["graph"] is not None  # there is no CUDA here, as PyTorch says


def test_the_module_stands_for_the_package() -> None:
    from commensal import memory_saver

    assert memory_saver is commensal.memory_saver
    assert memory_saver.memory_saver is torch_memory_saver
    assert isinstance(torch_memory_saver, memory_saver.TorchMemorySaver)
    for name in ("region", "pause", "resume", "disable", "cuda_graph", "get_cpu_backup"):
        assert getattr(memory_saver, name) == getattr(torch_memory_saver, name)


def test_the_example_gives_its_memory_back(world: World) -> None:
    done = world.commensal(
        "run",
        "--guaranteed",
        "--",
        sys.executable,
        str(EXAMPLE),
        "--rounds",
        "2",
        "--cache-mib",
        "96",
    )
    assert done.returncode == 0, done.stderr
    assert "weights are as they were" in done.stdout
    rounds = re.findall(r"round \d: (\d+) MiB, paused (\d+) MiB", done.stdout)
    assert len(rounds) == 2
    for full, paused in rounds:
        assert int(full) - int(paused) > 140  # 96 of the cache, 64 of the weights
