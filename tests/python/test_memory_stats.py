# SPDX-License-Identifier: Apache-2.0
"""Memory statistics and snapshots under PyTorch's names, and PyTorch's viewer on them."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from world import World

from commensal._memory_map import MemoryMap
from commensal._memory_stats import torch_memory_stats, torch_snapshot
from commensal._memory_summary import describe_kinds

MIB = 1 << 20
BASE = 0x7F0000000000

# Chunks of 2 MiB: two on the device, a hole, one on the slower tier, one parked.
SEGMENT: dict[str, Any] = {
    "address": BASE,
    "reserved_bytes": 64 * MIB,
    "small": False,
    "lifetime": "long",
    "tag": "",
    "chunks": [
        [0, 4 * MIB, "device", 3 * MIB],
        [6 * MIB, 2 * MIB, "host", 2 * MIB],
        [8 * MIB, 2 * MIB, "parked", 1 * MIB],
    ],
    "blocks": [
        [BASE, 3 * MIB, 3 * MIB - 5],
        [BASE + 3 * MIB, MIB, 0],
        [BASE + 6 * MIB, 3 * MIB, 3 * MIB],
        [BASE + 9 * MIB, MIB, 0],
    ],
}
TAGGED: dict[str, Any] = {
    "address": BASE + 64 * MIB,
    "reserved_bytes": 64 * MIB,
    "small": False,
    "lifetime": "long",
    "tag": "cache",
    "chunks": [[0, 2 * MIB, "dropped", 2 * MIB]],
    "blocks": [[BASE + 64 * MIB, 2 * MIB, 2 * MIB]],
}
STEP = TAGGED | {
    "address": BASE + 128 * MIB,
    "lifetime": "step",
    "tag": "",
    "chunks": [[0, 2 * MIB, "device", 0]],
    "blocks": [],
}
MAP: dict[str, Any] = {"pid": 7, "job": "trainer", "segments": [STEP, SEGMENT, TAGGED]}


def test_a_snapshot_has_a_segment_for_each_stretch_of_addresses() -> None:
    snapshot = torch_snapshot(MemoryMap.from_json({**MAP, "segments": [SEGMENT]}))
    first, second = snapshot["segments"]
    assert (first["address"], first["total_size"]) == (BASE, 4 * MIB)
    assert (second["address"], second["total_size"]) == (BASE + 6 * MIB, 4 * MIB)
    assert (first["allocated_size"], first["requested_size"]) == (3 * MIB, 3 * MIB - 5)
    for segment in (first, second):
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert [block["state"] for block in first["blocks"]] == ["active_allocated", "inactive"]
    assert [block["commensal_tier"] for block in second["blocks"]] == ["mixed", "parked"]
    assert [run["tier"] for run in second["commensal_tiers"]] == ["host", "parked"]


def test_bytes_are_summed_by_kind_and_tier() -> None:
    kinds = MemoryMap.from_json(json.dumps(MAP)).bytes_by_kind()
    assert list(kinds) == ["long", "step", "tag cache"]
    assert kinds["long"] == {
        "device": 4 * MIB,
        "host": 2 * MIB,
        "parked": 2 * MIB,
        "dropped": 0,
        "live": 6 * MIB,
    }
    assert kinds["tag cache"]["dropped"] == 2 * MIB
    table = describe_kinds(MemoryMap.from_json(MAP))
    assert " ".join(table[1].split()) == "outlives its step 4 MiB 2 MiB 2 MiB 0 B 6 MiB"
    assert len({len(line) for line in table}) == 1
    assert describe_kinds(MemoryMap.from_json({**MAP, "segments": []})) == [
        "no chunks: nothing was allocated yet"
    ]


def test_tiers_of_an_address() -> None:
    where = MemoryMap.from_json(MAP)
    assert where.tiers_of(BASE + 7 * MIB, 2 * MIB) == {"host", "parked"}
    assert where.tiers_of(BASE + 7 * MIB, MIB) == {"host"}
    assert where.tiers_of(BASE - 1, 1) == set()


@pytest.mark.parametrize(
    "broken",
    [
        "[]",
        "{}",
        {**MAP, "segments": [{**SEGMENT, "chunks": [[0, 1]]}]},
        {**MAP, "segments": [{**SEGMENT, "chunks": [[0, 1, "attic", 0]]}]},
        {**MAP, "segments": None},
    ],
)
def test_what_is_no_map_is_refused(broken: Any) -> None:
    with pytest.raises(ValueError, match="not a memory map"):
        MemoryMap.from_json(broken)


JOB = """
import json, pickle, sys
import torch, commensal
commensal.init(job_class="guaranteed", memory="1GiB")
with commensal.region("weights", keep=True):
    model = torch.nn.Linear(1000, 1000)
with commensal.region("cache"):
    cache = torch.ones(1 << 20)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.ones(64, 1000)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
commensal.park_tag("weights"), commensal.drop_tag("cache")
with open(sys.argv[1], "wb") as file:
    pickle.dump(commensal.memory_snapshot(), file)
print(json.dumps({"torch": commensal.memory_stats(), "ours": commensal.stats()["memory"],
                  "address": cache.data_ptr(), "text": commensal.memory_summary()}))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    world = World(tmp_path_factory.mktemp("job"))
    file = world.folder / "snapshot.pickle"
    done = world.run([sys.executable, world.script(JOB), str(file)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), file


def test_statistics_have_pytorchs_keys_and_ours(job: tuple[dict[str, Any], Path]) -> None:
    stats, ours = job[0]["torch"], job[0]["ours"]
    # As in `torch.cuda.memory_stats`: STATISTIC.POOL.METRIC, or a name that begins with num_.
    metrics = {"current", "peak", "allocated", "freed"}
    statistics = {"allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes"}
    for key in (key for key in stats if not key.startswith("commensal.")):
        if key != "num_ooms":
            statistic, pool, metric = key.split(".")
            assert statistic in statistics | {"reserved_bytes"}
            assert pool == "all" and metric in metrics
    assert list(stats) == sorted(stats)
    current = stats["allocation.all.allocated"] - stats["allocation.all.freed"]
    assert stats["allocation.all.current"] == current > 0
    assert stats["allocated_bytes.all.current"] <= stats["allocated_bytes.all.peak"]
    assert stats["reserved_bytes.all.peak"] >= stats["reserved_bytes.all.current"] > 0
    assert stats["commensal.device_bytes"] == ours["device_bytes"]
    assert stats["commensal.dropped_bytes"] == 4 * MIB
    assert stats["commensal.tag.weights.parked_bytes"] == 4 * MIB
    assert stats["commensal.tag.weights.keep"] is True
    assert torch_memory_stats(ours)["commensal.tag.cache.dropped_bytes"] == 4 * MIB


def test_a_real_snapshot_adds_up(job: tuple[dict[str, Any], Path]) -> None:
    facts, file = job
    snapshot = pickle.loads(file.read_bytes())
    tiers: dict[str, int] = {}
    for segment in snapshot["segments"]:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        for run in segment["commensal_tiers"]:
            tiers[run["tier"]] = tiers.get(run["tier"], 0) + run["size"]
    assert tiers["parked"] == facts["ours"]["parked_bytes"] == 4 * MIB
    assert tiers["dropped"] == facts["ours"]["dropped_bytes"]
    live = sum(segment["requested_size"] for segment in snapshot["segments"])
    assert live == pytest.approx(facts["ours"]["live_bytes"], rel=0.01)
    [cache] = [s for s in snapshot["segments"] if s["commensal_tag"] == "cache"]
    assert cache["address"] <= facts["address"] < cache["address"] + cache["total_size"]
    assert {b["commensal_tier"] for b in cache["blocks"]} == {"dropped"}


def test_pytorchs_viewer_reads_a_snapshot(job: tuple[dict[str, Any], Path]) -> None:
    from torch.cuda import _memory_viz

    snapshot = pickle.loads(job[1].read_bytes())
    assert f"segments: {len(snapshot['segments'])}" in _memory_viz.segsum(snapshot)
    assert "Device 0" in _memory_viz.trace(snapshot) or _memory_viz.trace(snapshot) == ""
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<script" in plot(snapshot)


def test_the_summary_tells_tiers_lifetimes_and_tags(job: tuple[dict[str, Any], Path]) -> None:
    lines = {line[:19].strip(): line.split() for line in job[0]["text"].splitlines()}
    assert lines["chunks of"][2:] == ["device", "host", "parked", "dropped", "live"]
    assert lines["tag weights"][6:8] == ["4", "MiB"]
    assert lines["tag cache"][-4:] == ["4", "MiB", "4", "MiB"]
    assert "outlives its step" in lines and "dropped" in lines
