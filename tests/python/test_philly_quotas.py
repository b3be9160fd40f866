# SPDX-License-Identifier: Apache-2.0
"""The experiment with Philly's quotas, on its first jobs and a small cluster."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tests" / "simulator" / "philly_quotas.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("philly_quotas", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["philly_quotas"] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


philly = load()


def test_waiting_is_split_and_the_parts_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures_file, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    arguments = ["--jobs", "3000", "--shrink", "16"]
    files = ["--json", str(figures_file), "--picture", str(picture)]
    assert philly.main([*arguments, *files]) == 0
    assert "fragmentation" in capsys.readouterr().out
    assert picture.stat().st_size > 0
    figures = {one["way"]: one for one in json.loads(figures_file.read_text())}
    assert list(figures) == [way.name for way in philly.WAYS]
    for one in figures.values():
        assert one["all"]["jobs"] == 3000 == sum(size["jobs"] for size in one["sizes"])
        for part in ("fair_share", "fragmentation"):
            parts = sum(size[part] * size["jobs"] for size in one["sizes"])
            assert parts == pytest.approx(one["all"][part] * 3000, abs=0.01 * 3000)
    lent, strict, kept, quotas_only = figures.values()
    # Who lends idle GPUs beyond quotas lets fewer wait for them, and it stops some in return.
    assert lent["all"]["fair_share"] < quotas_only["all"]["fair_share"]
    assert quotas_only["preemptions"] == 0
    assert strict["all"] != lent["all"]
    assert kept["preemptions"] == 0 < lent["preemptions"]
    assert kept["all"]["fragmentation"] > lent["all"]["fragmentation"]


def test_quotas_have_room_for_the_largest_job_of_each_tenant() -> None:
    rows = [
        {"cluster": "ed69ec", "num_gpus": "20"},
        {"cluster": "6214e9", "num_gpus": "1"},
        {"cluster": "another", "num_gpus": "2"},
    ]
    cluster = philly.cluster_of(rows, 8)
    quotas = {tenant["name"]: tenant["quota"] for tenant in cluster["tenants"]}
    assert quotas == {"6214e9": 64, "ed69ec": 24, "another": 8}
    assert sum(node["count"] * node["gpus"] for node in cluster["nodes"]) == 96
    assert [node["rack"] for node in cluster["nodes"]] == [0, 1]
