# SPDX-License-Identifier: Apache-2.0
"""`commensal doctor --cluster`: each finding, from answers that are made up; then a real one."""

from __future__ import annotations

import copy
import fcntl
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_submit import Cluster
from world import World

from commensal.cli._cluster_checks import (
    Finding,
    Told,
    judge,
    judge_slurm,
    look_at_keys,
    look_at_lock,
    look_at_page,
)

NOW = 1_700_000_000_000
DAY = 86_400_000


def report(**fields: Any) -> dict[str, Any]:
    return {"state": "up", "silent_seconds": 0.5, "version": "1", "time_ms": NOW - 500} | fields


def node(name: str, state: str = "up", reason: str = "", **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "reason": reason} | fields


COORDINATOR = {"pid": 7, "engine": "local", "policy": "antman", "problem": "", "page": ""}
HEALTH = {
    "version": "1",
    "time_ms": NOW,
    "store": {
        "file": "/state/cluster.db",
        "bytes": 40960,
        "log_bytes": 4096,
        "tables_version": 1,
        "free_bytes": 100 << 30,
        "disk_bytes": 200 << 30,
        "backups": 2,
        "newest_backup_ms": NOW - DAY,
    },
    "logs": {"folder": "/state/local/logs", "keep_days": 90},
    "programs": [{"name": "commensal-keeper", "path": "/bin/keeper", "problem": ""}],
    "limits": [],
}


class Answers:
    """What a coordinator that is well answers; a test spoils some of it."""

    def __init__(self) -> None:
        self.coordinator: dict[str, Any] = copy.deepcopy(COORDINATOR)
        self.health: dict[str, Any] = copy.deepcopy(HEALTH)
        self.nodes = [node("n1", report=report()), node("n2")]
        self.no_health = ""
        self.here_ms, self.took_ms, self.version = float(NOW), 10.0, "1"

    @property
    def told(self) -> Told:
        nodes = {"coordinator": self.coordinator, "nodes": self.nodes}
        return Told(nodes, self.health, self.no_health, self.here_ms, self.took_ms, self.version)

    def found(self, name: str) -> Finding:
        [finding] = [finding for finding in judge(self.told) if finding.name == name]
        return finding

    def expect(self, name: str, state: str, *words: str) -> None:
        finding = self.found(name)
        assert finding.state == state, finding
        for word in words:
            assert word in finding.detail
        assert (finding.do == "") == (state == "ok"), finding


@pytest.fixture
def answers() -> Answers:
    return Answers()


def test_a_cluster_that_is_well_has_no_complaint(answers: Answers) -> None:
    findings = judge(answers.told)
    assert [finding for finding in findings if finding.state != "ok" or finding.do] == []
    names = {finding.name for finding in findings}
    assert {"coordinator", "clock", "engine", "store", "backup", "disk", "nodes"} <= names


def test_another_version_is_named(answers: Answers) -> None:
    answers.version = "2"
    answers.expect("coordinator", "warning", "version is 1", "this command 2")


def test_without_health_the_rest_is_judged(answers: Answers) -> None:
    answers.health, answers.no_health = {}, "'health' is for operators"
    answers.nodes.append(node("n3", "down", "broken disk"))
    answers.expect("coordinator", "warning", "'health' is for operators")
    answers.expect("nodes down", "warning", "n3 (broken disk)")
    assert {f.name for f in judge(answers.told)} == {
        *("coordinator", "engine", "nodes", "nodes down")
    }


@pytest.mark.parametrize("sign", [1, -1])
def test_clocks_may_differ_by_what_asking_took(answers: Answers, sign: int) -> None:
    answers.took_ms = 1000
    answers.here_ms = NOW + sign * 2500
    answers.expect("clock", "ok")
    answers.here_ms = NOW + sign * 2600
    answers.expect("clock", "warning", "2.6 s apart")


def test_an_engine_that_cannot_be_asked_is_an_error(answers: Answers) -> None:
    answers.coordinator["problem"] = "sinfo: not found"
    answers.expect("engine", "error", "local: sinfo: not found")


def test_each_program_that_is_missing_is_an_error(answers: Answers) -> None:
    answers.health["programs"] += [
        {"name": "sbatch", "path": "", "problem": "it is not in the PATH"},
        {"name": "sinfo", "path": "/slurm/sinfo", "problem": "Permission denied"},
    ]
    broken = [finding for finding in judge(answers.told) if finding.name == "programs"]
    assert [finding.state for finding in broken] == ["error", "error"]
    assert broken[0].detail == "sbatch: it is not in the PATH"
    assert broken[1].detail == "sinfo (/slurm/sinfo): Permission denied"


def test_limits_are_the_local_engines(answers: Answers) -> None:
    answers.health["limits"] = ["no limit of cpu is kept: read-only"]
    answers.expect("limits", "warning", "no limit of cpu is kept: read-only")
    answers.coordinator["engine"] = "slurm"
    assert not [finding for finding in judge(answers.told) if finding.name == "limits"]


@pytest.mark.parametrize(
    ("free", "state"), [(100 << 20, "error"), (1 << 30, "warning"), (2 << 30, "ok"), (0, "error")]
)
def test_a_disk_becomes_full(answers: Answers, free: int, state: str) -> None:
    answers.health["store"]["free_bytes"] = free
    answers.expect("disk", state, "/state")


def test_a_disk_that_cannot_be_looked_at_is_an_error(answers: Answers) -> None:
    answers.health["store"]["free_bytes"] = None
    answers.expect("disk", "error", "cannot be looked at")


def test_a_store_that_was_removed_is_an_error(answers: Answers) -> None:
    answers.health["store"]["bytes"] = 0
    answers.expect("store", "error", "/state/cluster.db is gone")


def test_a_log_of_the_store_that_grows_is_told(answers: Answers) -> None:
    answers.health["store"]["log_bytes"] = 1 << 30
    answers.expect("store", "warning", "cluster.db-wal has 1 GiB")


def test_copies_are_missing_or_old(answers: Answers) -> None:
    answers.health["store"]["newest_backup_ms"] = NOW - 8 * DAY
    answers.expect("backup", "warning", "2 copies")
    answers.health["store"]["backups"] = 1
    answers.expect("backup", "warning", "1 copy, the newest")
    answers.health["store"] |= {"backups": 0, "newest_backup_ms": None}
    answers.expect("backup", "warning", "no copy")


def test_logs_that_are_kept_for_ever_are_told(answers: Answers) -> None:
    answers.health["logs"]["keep_days"] = 0
    answers.expect("logs", "warning", "/state/local/logs")


def test_nodes_that_get_no_jobs_are_named_with_their_reasons(answers: Answers) -> None:
    answers.nodes += [node("d1", "drained", "new disk"), node("a1", "avoided", "3 failures")]
    answers.expect("nodes", "ok", "2 of 4")
    answers.expect("nodes drained", "warning", "d1 (new disk)")
    answers.expect("nodes avoided", "warning", "a1 (3 failures)")


def test_no_node_to_be_used_is_an_error(answers: Answers) -> None:
    answers.nodes = [node("n1", "down", "off")]
    answers.expect("nodes", "error", "none of 1")
    answers.nodes = []
    answers.expect("nodes", "error", "knows no node")


def test_many_names_are_cut_short(answers: Answers) -> None:
    answers.nodes += [node(f"x{i}", "down") for i in range(12)]
    assert answers.found("nodes down").detail == "x0, x1, x2, x3, x4 and 7 more"


def test_old_reports_are_told(answers: Answers) -> None:
    answers.nodes[0]["report"] = report(state="silent", silent_seconds=30.0, time_ms=NOW - 30_000)
    answers.expect("nodes silent", "warning", "n1")
    assert not [f for f in judge(answers.told) if f.name == "node clocks"]  # silent, not wrong


def test_nodes_of_another_version_are_told(answers: Answers) -> None:
    answers.nodes[0]["report"] = report(version="0.9")
    answers.expect("node versions", "warning", "n1 (0.9)", "coordinator's, 1")


@pytest.mark.parametrize("apart", [-60_000, 60_000])
def test_nodes_whose_clock_is_wrong_are_told(answers: Answers, apart: int) -> None:
    answers.nodes[0]["report"] = report(time_ms=NOW - 500 + apart)
    answers.expect("node clocks", "warning", "n1 (60 s)")


def test_a_node_that_does_not_tell_its_time_is_let_be(answers: Answers) -> None:
    told = report()
    del told["time_ms"], told["version"]
    answers.nodes[0]["report"] = told
    assert not [f for f in judge(answers.told) if f.name.startswith("node ")]


# --- on its own machine -----------------------------------------------------------------------


def only(findings: Any) -> Finding:
    [finding] = list(findings)
    assert isinstance(finding, Finding)
    return finding


def test_the_lock_is_that_of_the_one_who_answers(answers: Answers, tmp_path: Path) -> None:
    lock = tmp_path / "cluster-default.lock"
    answers.health["lock"] = str(lock)
    assert only(look_at_lock(answers.told)).state == "error"
    lock.write_text("7\n")
    assert "is not held" in only(look_at_lock(answers.told)).detail
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert only(look_at_lock(answers.told)).state == "ok"
        answers.coordinator["pid"] = 8
        finding = only(look_at_lock(answers.told))
    assert finding.state == "error"
    assert "that of pid 7; pid 8 answers" in finding.detail


def test_keys_that_others_can_read_are_an_error(answers: Answers, tmp_path: Path) -> None:
    from commensal import _core

    folder = tmp_path / "keys"
    answers.health["keys_dir"] = str(folder)
    assert list(look_at_keys(answers.told)) == []  # it does not listen
    answers.coordinator["address"] = "tcp://127.0.0.1:7070"
    key = _core.keys_create(str(folder), "client")
    finding = only(look_at_keys(answers.told))
    assert (finding.state, "no key is allowed" in finding.detail) == ("warning", True)
    _core.keys_allow(str(folder), "ann", key, "operator", [])
    finding = only(look_at_keys(answers.told))
    assert (finding.state, finding.detail) == ("ok", "1 keys are allowed: ann")
    for name, mode in (("client.key", 0o640), ("allowed.json", 0o604), (".", 0o755)):
        path, before = folder / name, (folder / name).stat().st_mode
        path.chmod(mode)
        finding = only(look_at_keys(answers.told))
        assert finding.state == "error"
        assert f"{path} is open to other users" == finding.detail
        path.chmod(before)
    (folder / "allowed.json").write_text("{")
    assert only(look_at_keys(answers.told)).state == "error"


@pytest.fixture
def serving() -> Iterator[Callable[[int, bytes], str]]:
    """Serve one answer; return the address. The requests' headers are in `seen`."""
    servers = []

    def serve(code: int, body: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                right = self.headers["Authorization"] == "Bearer secret"
                self.send_response(code if right else 401)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_page_is_fetched_with_its_token(
    serving: Callable[[int, bytes], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    token = tmp_path / "page-token"
    token.write_text("secret\n")

    def look(page: str) -> Finding:
        return only(look_at_page({"page": page, "page_token_file": str(token)}))

    assert look("").state == "warning"
    assert look(serving(200, b'commensal_build_info{version="1"} 1')).state == "ok"
    assert "is not ours" in look(serving(200, b"hello")).detail
    assert look(serving(503, b"")).state == "error"
    token.write_text("other")
    assert "401" in look(serving(200, b"commensal_build_info")).detail
    token.unlink()
    assert look("http://127.0.0.1:1/").state == "error"


SLURM = {
    "/etc/slurm/job_submit.lua": '-- commensal\nlocal AUTO = "/opt/commensal-slurm-auto"\n',
    "/opt/commensal-slurm-auto": "#!/opt/python3",
    "/etc/slurm/commensal-prolog.sh": "",
    "/etc/slurm/commensal-epilog.sh": "",
    "/etc/slurm/plugstack.conf": "optional /etc/slurm/commensal_spank.so\n",
    "/etc/slurm/commensal_spank.so": "ELF",
}
CONFIG = """\
Configuration data as of 2026-01-01T00:00:00
CompleteWait            = 32 sec
Epilog                  = /etc/slurm/commensal-epilog.sh
GresTypes               = gpu,seat
JobSubmitPlugins        = lua
PlugStackConfig         = /etc/slurm/plugstack.conf
Prolog                  = /etc/slurm/commensal-prolog.sh
SLURM_CONF              = /etc/slurm/slurm.conf
"""


def test_an_installation_for_slurm_that_is_whole_is_well() -> None:
    assert only(judge_slurm(CONFIG, SLURM.get)).state == "ok"
    newer = CONFIG.replace("Prolog  ", "Prolog[0]  ").replace(
        "Epilog  ", "Epilog[0] = /x\nEpilog[1]  "
    )
    assert only(judge_slurm(newer, SLURM.get)).state == "ok"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (("= lua", "= "), "not in JobSubmitPlugins"),
        (("= gpu,seat", "= gpu"), "GresTypes has no seat"),
        (("commensal-prolog.sh", "other.sh"), "Prolog does not name commensal-prolog.sh"),
        (("commensal-epilog.sh", "other.sh"), "Epilog does not name commensal-epilog.sh"),
        (("plugstack.conf", "absent.conf"), "no SPANK plugin in /etc/slurm/absent.conf"),
        (("/etc/slurm/slurm.conf", "/other/slurm.conf"), "/other/job_submit.lua is not there"),
    ],
)
def test_what_an_installation_for_slurm_lacks_is_named(spoil: tuple[str, str], words: str) -> None:
    finding = only(judge_slurm(CONFIG.replace(*spoil), SLURM.get))
    assert finding.state == "warning"
    assert words in finding.detail
    assert "commensal-slurm-install" in finding.do


def test_a_slurm_that_preempts_while_jobs_end_is_named() -> None:
    finding = only(judge_slurm(CONFIG.replace("= 32 sec", "= 0 sec"), SLURM.get))
    assert finding.state == "warning"
    assert "CompleteWait is 0" in finding.detail
    assert "CompleteWait=32" in finding.do


@pytest.mark.parametrize("file", ["commensal-prolog.sh", "commensal_spank.so", "slurm-auto"])
def test_files_that_slurm_names_must_be_there(file: str) -> None:
    files = {name: text for name, text in SLURM.items() if not name.endswith(file)}
    [missing] = SLURM.keys() - files.keys()
    assert f"{missing} cannot be read" in only(judge_slurm(CONFIG, files.get)).detail


@pytest.mark.parametrize("path", ["", "@AUTO@"])
def test_rules_without_the_program_of_auto_are_named(path: str) -> None:
    files = SLURM | {"/etc/slurm/job_submit.lua": f'-- commensal\nlocal AUTO = "{path}"\n'}
    finding = only(judge_slurm(CONFIG, files.get))
    assert "names no program for sbatch --commensal=auto" in finding.detail


def test_a_plugin_that_is_commented_out_is_none() -> None:
    files = SLURM | {"/etc/slurm/plugstack.conf": "# optional /etc/slurm/commensal_spank.so\n"}
    assert "no SPANK plugin" in only(judge_slurm(CONFIG, files.get)).detail


# --- a real one -------------------------------------------------------------------------------


@pytest.fixture
def cluster(world: World) -> Iterator[Cluster]:
    cluster = Cluster(world)
    yield cluster
    cluster.close()


def test_a_real_coordinator_here_and_from_elsewhere(cluster: Cluster) -> None:
    world = cluster.world
    done = world.commensal("doctor", "--cluster")
    assert done.returncode == 1
    assert done.stdout.startswith("error ")
    assert "no coordinator listens" in done.stdout
    keys = str(world.folder / "keys")
    cluster.start("--listen", "tcp://127.0.0.1:0", "--keys-dir", keys)

    def doctor(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
        told = world.commensal("doctor", *words, "--json", COMMENSAL_KEYS_DIR=keys)
        answer = json.loads(told.stdout)
        assert answer["broken"] == (told.returncode == 1)
        return told.returncode, {check["name"]: check for check in answer["checks"]}

    code, checks = doctor("--cluster")
    assert code == 0, checks
    assert {
        checks[name]["state"] for name in ("coordinator", "clock", "store", "lock", "page")
    } == {"ok"}
    assert checks["backup"]["state"] == "warning"
    assert checks["keys"]["state"] == "warning"
    assert world.commensal("backup").returncode == 0

    address = json.loads(world.commensal("nodes", "--json").stdout)["coordinator"]["address"]
    key = world.commensal("keys", "create", COMMENSAL_KEYS_DIR=keys).stdout.strip()
    allow = ("keys", "allow", "ann", key, "--role", "user", "--tenant", "default")
    assert world.commensal(*allow, COMMENSAL_KEYS_DIR=keys).returncode == 0
    code, checks = doctor("--coordinator", address)
    assert code == 0, checks
    assert "is for operators" in checks["coordinator"]["detail"]
    assert "lock" not in checks  # it is another machine's, as far as this command knows

    os.chmod(Path(keys) / "allowed.json", 0o644)
    code, checks = doctor("--cluster")
    assert code == 1
    assert checks["backup"]["state"] == "ok"
    assert checks["keys"]["state"] == "error"
