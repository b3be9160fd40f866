# SPDX-License-Identifier: Apache-2.0
"""The cluster's page and metrics as scripts see them: addresses, refusals, names, files."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from test_submit import COORDINATOR, SHELL, Cluster
from world import World, wait_until

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "coordinator" / "monitoring"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


def page_of(cluster: Cluster) -> tuple[str, str]:
    """The page's address and its token, as `commensal page` prints them."""
    done = cluster.world.commensal("page")
    assert done.returncode == 0, done.stderr
    address, token = done.stdout.strip().split("#token=")
    return address, token


def fetch(address: str, body: Any = None, **headers: str) -> tuple[int, str]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, names)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bcommensal_[a-z_]+\b", text))


@pytest.fixture
def told(cluster: Cluster) -> dict[str, Any]:
    """What a coordinator tells that has run something: each series' name, with its family."""
    job = cluster.submit("--guaranteed", "--", *SHELL, "true")
    cluster.wait(job, "finished")
    address, _ = page_of(cluster)
    fetch(address)  # counted once it is answered

    def families() -> dict[str, Any]:
        status, text = fetch(f"{address}metrics")
        assert status == 200
        return {family.name: family for family in text_string_to_metric_families(text)}

    wait_until("counts", lambda: families()["commensal_http_requests"].samples)
    return {
        family.name + suffix: family
        for family in families().values()
        for suffix in SUFFIXES[family.type]
    }


def test_names_keep_to_the_conventions(told: dict[str, Any]) -> None:
    assert len(told) > 20
    for name, family in told.items():
        assert re.fullmatch(r"commensal_[a-z]+(_[a-z]+)*", name)
        assert family.documentation.endswith("."), name
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
    started = told["commensal_queue_wait_seconds_count"].samples
    assert sum(s.value for s in started if s.name.endswith("_count")) == 1


def test_every_name_in_the_dashboard_is_told(told: dict[str, Any]) -> None:
    dashboard = json.loads((MONITORING / "grafana_dashboard.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    used = names_in(" ".join(expressions))
    assert len(expressions) > 15
    assert not used - told.keys()
    families = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in told}
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in used}
    assert families - shown == {"commensal_build_info", "commensal_engine_problems"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["title"] for panel in dashboard["panels"])


def test_every_name_in_the_alert_rules_is_told(told: dict[str, Any]) -> None:
    [group] = yaml.safe_load((MONITORING / "alert_rules.yml").read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 5
    for rule in rules:
        used = names_in(rule["expr"])
        assert used or rule["expr"].startswith("up{")
        assert not used - told.keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_every_metric_is_in_the_documents(told: dict[str, Any]) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    families = {f.name + ("_total" if f.type == "counter" else "") for f in told.values()}
    assert names_in(page) >= families
    assert not names_in(page) - told.keys() - families


def test_page_prints_the_address_and_the_token(cluster: Cluster) -> None:
    cluster.start()
    address, token = page_of(cluster)
    nodes = json.loads(cluster.world.commensal("nodes", "--json").stdout)["coordinator"]
    assert nodes["page"] == address
    file = Path(nodes["page_token_file"])
    assert file.read_text().strip() == token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    status, text = fetch(f"{address}api/v1/state")
    assert status == 200
    assert json.loads(text)["coordinator"]["pid"] == cluster.pid()


def test_a_change_needs_the_token(cluster: Cluster) -> None:
    cluster.start()
    address, token = page_of(cluster)
    change = {"type": "quota", "tenant": "vision", "quota": 3}
    json_type = {"Content_Type": "application/json"}
    status, text = fetch(f"{address}api/v1/requests", change, **json_type)
    assert (status, json.loads(text)["code"]) == (401, "no_token")
    status, text = fetch(
        f"{address}api/v1/requests", change, **json_type, Authorization=f"Bearer {token}"
    )
    assert (status, json.loads(text)["quota"]) == (200, 3)
    assert "vision" in cluster.world.commensal("tenants").stdout


@pytest.mark.root
def test_another_user_of_the_machine_sees_nothing(cluster: Cluster) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    cluster.start()
    address, token = page_of(cluster)
    script = (
        "import sys, urllib.request, urllib.error\n"
        "for headers in ({}, {'Authorization': 'Bearer ' + sys.argv[2]}):\n"
        "    try:\n"
        "        r = urllib.request.Request(sys.argv[1], None, headers)\n"
        "        print(urllib.request.urlopen(r, timeout=60).status)\n"
        "    except urllib.error.HTTPError as e:\n"
        "        print(e.code)\n"
    )
    for path in ("api/v1/state", "metrics"):
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-I", "-c", script, address + path, token],
            user=65534,
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.split() == ["401", "200"], done.stderr


def test_without_a_page_it_says_so(cluster: Cluster) -> None:
    cluster.start("--http", "off")
    done = cluster.world.commensal("page")
    assert (done.returncode, done.stdout) == (4, "")
    assert "this coordinator has no page: it was started with --http off" in done.stderr
    assert (
        json.loads(cluster.world.commensal("nodes", "--json").stdout)["coordinator"]["page"] == ""
    )


def test_without_a_coordinator_page_says_so(cluster: Cluster) -> None:
    done = cluster.world.commensal("page")
    assert done.returncode == 3
    assert "'commensal submit' starts a coordinator" in done.stderr


def test_a_port_in_use_is_one_sentence_and_code_4(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = cluster.world.run(
            [
                *(str(COORDINATOR), "--runtime-dir", str(cluster.world.runtime_dir)),
                *("--state-dir", str(cluster.world.folder / "state" / "default")),
                *("--http", f"127.0.0.1:{port}"),
            ]
        )
    assert done.returncode == 4
    assert done.stderr == (
        f"commensal-coordinator: cannot serve the page on 127.0.0.1:{port}: Address already in "
        "use; choose another address with --http, or --http off\n"
    )


def test_a_page_stays_where_it_is_after_a_restart(cluster: Cluster) -> None:
    cluster.start()
    before, token = page_of(cluster)
    pid = cluster.pid()
    os.kill(pid, signal.SIGTERM)
    wait_until("is gone", lambda: not psutil.pid_exists(pid))
    cluster.start()
    assert page_of(cluster) == (before, token)
