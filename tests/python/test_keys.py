# SPDX-License-Identifier: Apache-2.0
"""A coordinator that other machines ask over TCP with keys, by real programs."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from training import TELL, TRAIN
from world import COMMENSAL, World, read_line, wait_until

from commensal._cluster import cluster_of
from commensal._coordinator import Coordinator

COORDINATOR = COMMENSAL.parent / "commensal-coordinator"
ENDED = ("finished", "failed", "cancelled", "lost")
KEY = re.compile(r"[0-9a-f]{64}\n")


class Site:
    """A coordinator with its key folder, and users elsewhere who have folders of their own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.own = world.folder / "coordinator-keys"
        self.address = ""

    def start(self, *options: str, listen: str = "tcp://127.0.0.1:0") -> None:
        command = [str(COORDINATOR), "--runtime-dir", str(self.world.runtime_dir), "--grace", "2"]
        command += ["--state-dir", str(self.world.folder / "state" / "default")]
        command += ["--keys-dir", str(self.own), "--listen", listen, *options]
        done = self.world.run(command)
        assert done.returncode == 0, done.stderr
        self.address = self.coordinator()["address"]

    def coordinator(self) -> dict[str, Any]:
        return dict(self.world.ask("nodes")["coordinator"])

    def here(self, *words: str) -> str:
        """Run a command as the owner of the coordinator; return what it prints."""
        done = self.world.commensal(*words, COMMENSAL_KEYS_DIR=str(self.own))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def user(self, name: str, *role: str) -> User:
        """Make a user elsewhere whose key is allowed."""
        user = User(self, name)
        self.here("keys", "allow", name, user.key, *role)
        return user

    def close(self) -> None:
        for process in psutil.process_iter(["name", "cmdline"]):
            words = process.info["cmdline"] or []
            ours = any(str(self.world.folder) in word for word in words)
            if ours and process.info["name"].startswith("commensal-"):
                for child in (*process.children(recursive=True), process):
                    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
                        child.kill()


class User:
    """Somebody on another machine: neither the socket nor the coordinator's files are theirs."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.folder = site.world.folder / f"keys-of-{name}"
        self.environ = {
            "COMMENSAL_KEYS_DIR": str(self.folder),
            "COMMENSAL_RUNTIME_DIR": str(site.world.folder / "elsewhere"),
            "COMMENSAL_COORDINATOR": site.address,
        }
        made = self.run("keys", "create")
        assert made.returncode == 0, made.stderr
        assert KEY.fullmatch(made.stdout)
        self.key = made.stdout.strip()
        server = self.folder / "coordinator.pub"
        server.write_bytes((site.own / "coordinator.pub").read_bytes())

    def run(self, *words: str) -> Any:
        return self.site.world.commensal(*words, **self.environ)

    def refused(self, *words: str, code: int = 4) -> str:
        done = self.run(*words)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert done.stdout == ""
        return str(done.stderr)

    def ask(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def state(self, job: str) -> str:
        here = Coordinator("default", Path(self.environ["COMMENSAL_RUNTIME_DIR"]))
        jobs = cluster_of(here, environ=self.environ).ask("queue", all=True)["jobs"]
        return str(next(entry for entry in jobs if entry["id"] == job)["state"])

    def wait(self, job: str, *states: str) -> None:
        wait_until(f"job {job} is {states}", lambda: self.state(job) in states)


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    site = Site(world)
    yield site
    site.close()


def test_a_user_elsewhere_submits_reads_and_cancels(site: Site) -> None:
    site.start()
    site.here("quota", "set", "vision", "4")
    ann = site.user("ann", "--role", "user", "--tenant", "vision")
    show = (
        "import sys; print('caf\\u00e9', sys.argv[1], flush=True); "
        "sys.stdout.buffer.write(b'\\xff no text')"
    )
    job = ann.ask("submit", "--tenant", "vision", "--", sys.executable, "-c", show, "a b").strip()
    ann.wait(job, *ENDED)
    assert ann.state(job) == "finished"
    assert ann.ask("logs", job) == "café a b\n\ufffd no text\n"
    assert "finished" in ann.ask("explain", job)
    waits = ann.ask("submit", "--tenant", "vision", "--", "/bin/sleep", "1000").strip()
    ann.wait(waits, "running")
    assert ann.ask("cancel", waits) == f"job {waits}: is asked to end\n"
    ann.wait(waits, "cancelled")


def test_output_is_followed_from_elsewhere(site: Site, world: World) -> None:
    site.start()
    boss = site.user("boss", "--role", "operator")
    go = world.folder / "go"
    script = f"echo one; while [ ! -e {go} ]; do sleep 0.05; done; seq 30000; echo two"
    job = boss.ask("submit", "--", "/bin/sh", "-c", script).strip()
    reader = world.start([str(COMMENSAL), "logs", job, "-f"], **boss.environ)
    assert read_line(reader, "one") == "one\n"
    go.touch()
    assert reader.stdout is not None
    rest = [reader.stdout.readline() for _ in range(30001)]
    assert rest == [*(f"{number}\n" for number in range(1, 30001)), "two\n"]
    assert reader.wait(60) == 0


def test_a_user_acts_for_its_own_tenant_and_steers_nothing(site: Site) -> None:
    site.start()
    for tenant in ("vision", "speech"):
        site.here("quota", "set", tenant, "4")
    ann = site.user("ann", "--role", "user", "--tenant", "vision")
    bob = site.user("bob", "--role", "user", "--tenant", "speech")
    job = ann.ask("submit", "--tenant", "vision", "--", "/bin/sleep", "1000").strip()
    ann.wait(job, "running")
    node = json.loads(site.here("nodes", "--json"))["nodes"][0]["name"]
    for words in (
        ("submit", "--tenant", "vision", "--", "true"),
        ("submit", "--", "true"),
        ("cancel", job),
        ("logs", job),
        ("explain", job),
    ):
        assert "acts for speech, not for tenant" in bob.refused(*words)
    for steering in (("quota", "set", "speech", "99"), ("drain", node), ("undrain", node)):
        assert "is for operators; the key 'bob' has the role user" in bob.refused(*steering)
    assert json.loads(bob.ask("queue", "--all", "--json"))["jobs"] == []
    assert [t["name"] for t in json.loads(bob.ask("tenants", "--json"))["tenants"]] == ["speech"]
    assert ann.state(job) == "running"
    boss = site.user("boss", "--role", "operator")
    boss.ask("drain", node, "--reason", "new disk")
    boss.ask("quota", "set", "speech", "2")
    boss.ask("cancel", job)
    tenants = json.loads(site.here("tenants", "--json"))["tenants"]
    assert {t["name"]: t["quota"] for t in tenants}["speech"] == 2


def test_a_key_is_needed_and_a_revoked_one_is_none(site: Site) -> None:
    site.start()
    boss = site.user("boss", "--role", "operator")
    stranger = User(site, "stranger")
    assert "does not allow this key" in stranger.refused("queue")
    assert stranger.key in stranger.refused("submit", "--", "true")
    boss.ask("queue")
    assert site.here("keys", "revoke", "boss") == "key boss: revoked\n"
    assert "does not allow this key" in boss.refused("queue")
    again = site.world.commensal(
        "keys", "allow", "back", boss.key, "--role", "operator", COMMENSAL_KEYS_DIR=str(site.own)
    )
    assert again.returncode == 4
    assert "was revoked as 'boss'" in again.stderr
    listed = json.loads(site.here("keys", "list", "--json"))["keys"]
    assert [(key["name"], key["revoked_ms"] is None) for key in listed] == [("boss", False)]
    assert "boss" in site.here("keys", "list")


def test_a_node_s_key_does_not_ask(site: Site) -> None:
    site.start()
    machine = site.user("n1", "--role", "node")
    for words in (("queue",), ("nodes",), ("submit", "--", "true")):
        assert "a node only reports" in machine.refused(*words)


def test_what_cannot_be_reached_says_why(site: Site, world: World) -> None:
    site.start()
    boss = site.user("boss", "--role", "operator")
    server = boss.folder / "coordinator.pub"
    real = server.read_text()
    server.write_text(boss.key + "\n")
    said = boss.refused("queue", code=3)
    assert "is not the coordinator of the public key" in said
    assert boss.key in said
    server.unlink()
    assert "coordinator.pub is missing" in boss.refused("queue")
    server.write_text("nonsense")
    assert "not a public key (64 hexadecimal digits): 'nonsense'" in boss.refused("queue")
    server.write_text(real)
    secret = boss.folder / "client.key"
    secret.chmod(0o644)
    assert "open to other users (chmod 600 it)" in boss.refused("queue")
    secret.chmod(0o600)
    assert (
        "no key 'other'" in world.commensal("queue", **boss.environ, COMMENSAL_KEY="other").stderr
    )
    for address in ("127.0.0.1:1", "tcp://here", "tcp://here:x"):
        assert "tcp://HOST:PORT" in boss.refused("queue", "--coordinator", address, code=2)


def test_a_remote_coordinator_is_never_started(site: Site) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        site.address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    site.own.mkdir(mode=0o700)
    site.here("keys", "create", "coordinator")
    nobody = User(site, "nobody")
    said = nobody.refused("submit", "--", "true", code=3)
    assert f"no coordinator listens at {site.address}" in said
    assert "starts a coordinator" not in said
    assert not Path(nobody.environ["COMMENSAL_RUNTIME_DIR"]).exists()
    assert not [
        p for p in psutil.process_iter(["cmdline"]) if str(site.own) in (p.info["cmdline"] or [])
    ]


def test_an_address_in_use_is_named_and_nothing_runs(site: Site, world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        folders = ["--runtime-dir", str(world.runtime_dir), "--state-dir", str(world.folder / "s")]
        command = [str(COORDINATOR), *folders, "--keys-dir", str(site.own), "--listen"]
        done = world.run([*command, address])
        assert done.returncode == 4
        assert f"cannot listen on {address} (Address already in use)" in done.stderr
        assert len(done.stderr.splitlines()) == 1
        site.own.chmod(0o755)
        done = world.run([*command, "tcp://127.0.0.1:0"])
        assert done.returncode == 4
        assert "key folder is open to other users" in done.stderr
        done = world.run([*command, "here"])
        assert done.returncode == 2
        assert "'here'" in done.stderr
    assert world.commensal("queue").returncode == 3


def test_the_key_pair_of_a_coordinator_survives_it(site: Site) -> None:
    site.start()
    boss = site.user("boss", "--role", "operator")
    before = psutil.Process(site.coordinator()["pid"])
    before.kill()
    wait_until("is gone", lambda: not before.is_running())
    site.start(listen=site.address)
    assert json.loads(boss.ask("nodes", "--json"))["coordinator"]["pid"] != before.pid


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "../x"), 4, "'../x'"),
        (("create", "client"), 4, "the name is in use"),
        (("allow", "ann", "12", "--role", "operator"), 4, "not a public key"),
        (
            ("allow", "ann", "KEY", "--role", "king"),
            4,
            "unknown role (user, operator, node): 'king'",
        ),
        (("allow", "ann", "KEY", "--role", "user"), 4, "names the tenants"),
        (
            ("allow", "n1", "KEY", "--role", "node", "--tenant", "t"),
            4,
            "only a user's key has tenants",
        ),
        (("allow", "n1", "/nowhere/n1.pub", "--role", "node"), 4, "/nowhere/n1.pub: no such file"),
        (("allow", "ann", "KEY"), 2, "--role"),
        (("revoke", "nobody"), 4, "'nobody'"),
    ],
)
def test_what_cannot_be_done_with_keys_is_said(
    world: World, words: tuple[str, ...], code: int, said: str
) -> None:
    folder = str(world.folder / "keys")
    key = world.commensal("keys", "create", COMMENSAL_KEYS_DIR=folder).stdout.strip()
    done = world.commensal(
        "keys", *(key if word == "KEY" else word for word in words), COMMENSAL_KEYS_DIR=folder
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""
    listed = world.commensal("keys", "list", "--json", COMMENSAL_KEYS_DIR=folder).stdout
    assert json.loads(listed) == {"keys": []}


def test_a_key_is_allowed_by_the_file_that_it_is_in(world: World) -> None:
    mine, theirs = (str(world.folder / name) for name in ("mine", "theirs"))
    key = world.commensal("keys", "create", "n3", "--keys-dir", theirs).stdout.strip()
    allow = ("keys", "allow", "n3", f"{theirs}/n3.pub", "--role", "node", "--keys-dir", mine)
    assert world.commensal(*allow).stdout == "key n3: allowed as node\n"
    listed = json.loads(world.commensal("keys", "list", "--json", "--keys-dir", mine).stdout)
    assert [(entry["name"], entry["key"], entry["role"]) for entry in listed["keys"]] == [
        ("n3", key, "node")
    ]
    assert world.commensal("keys", "list", "--keys-dir", theirs).stdout == "no keys\n"
    secret = json.loads(Path(theirs, "n3.key").read_text())["secret"]
    assert secret not in Path(mine, "allowed.json").read_text()


class Node:
    """A commensald that reports to the site's coordinator."""

    def __init__(self, site: Site, name: str) -> None:
        self.world, self.name = site.world, name
        self.keys = site.world.folder / f"keys-of-{name}"
        made = site.world.commensal("keys", "create", "node", "--keys-dir", str(self.keys))
        site.here("keys", "allow", name, made.stdout.strip(), "--role", "node")
        server = self.keys / "coordinator.pub"
        server.write_bytes((site.own / "coordinator.pub").read_bytes())
        command = [str(COMMENSAL.parent / "commensald"), "--instance", name]
        command += ["--runtime-dir", str(site.world.runtime_dir), "--keys-dir", str(self.keys)]
        started = site.world.run([*command, "--coordinator", site.address])
        assert started.returncode == 0, started.stderr

    def status(self) -> dict[str, Any]:
        return self.world.status(instance=self.name)

    def process(self) -> psutil.Process:
        return psutil.Process(int((self.world.runtime_dir / f"{self.name}.lock").read_text()))


def reported(site: Site, name: str) -> dict[str, Any]:
    """Return a node as the coordinator shows it; empty if it does not."""
    nodes = site.world.ask("nodes")["nodes"]
    return next((dict(node) for node in nodes if node["name"] == name), {})


def test_a_node_reports_its_jobs_and_works_on_without_the_coordinator(
    site: Site, world: World
) -> None:
    site.start()
    node = Node(site, "n7")
    wait_until("n7 is up", lambda: reported(site, "n7").get("state") == "up")
    assert reported(site, "n7")["devices"][0]["id"] == "host"
    assert "n7" in site.here("nodes")
    script = world.script(TRAIN + TELL)
    stop = world.folder / "stop"
    job = world.start(
        [
            *(str(COMMENSAL), "--instance", "n7", "run", "--guaranteed", "--memory", "64MiB"),
            *("--tenant", "vision", "--name", "train", "--"),
            *(sys.executable, script, "5", str(stop)),
        ]
    )
    read_line(job, "training")

    def step(jobs: list[dict[str, Any]]) -> int:
        return int(jobs[0]["step"]["number"]) if jobs else 0

    wait_until("steps are reported", lambda: step(reported(site, "n7")["report"]["jobs"]) > 0)
    told = reported(site, "n7")["report"]["jobs"][0]
    assert (told["name"], told["tenant"], told["class"]) == ("train", "vision", "guaranteed")
    coordinator = psutil.Process(site.coordinator()["pid"])
    coordinator.suspend()
    before = step(node.status()["jobs"])
    wait_until("it goes on alone", lambda: step(node.status()["jobs"]) > before)
    log = world.runtime_dir / "n7.log"
    wait_until("the node says so", lambda: "is silent" in log.read_text())
    coordinator.resume()
    wait_until("it is up again", lambda: reported(site, "n7").get("state") == "up")
    stop.touch()
    job.communicate(timeout=60)
    node.process().kill()
    wait_until("its silence is seen", lambda: reported(site, "n7")["state"] == "down")
    assert reported(site, "n7")["reason"].startswith("silent for ")


def test_a_node_without_its_keys_does_not_start(world: World) -> None:
    daemon = [str(COMMENSAL.parent / "commensald"), "--runtime-dir", str(world.runtime_dir)]
    daemon += ["--keys-dir", str(world.folder / "none"), "--coordinator"]
    done = world.run([*daemon, "tcp://127.0.0.1:1"])
    assert done.returncode == 4
    assert "no key 'node'" in done.stderr
    done = world.run([*daemon, "nowhere"])
    assert done.returncode == 2
    assert "'nowhere'" in done.stderr
    assert not world.daemons()
