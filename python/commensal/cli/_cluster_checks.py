# SPDX-License-Identifier: Apache-2.0
"""The checks of `commensal doctor --cluster`: questions first, then judgements that ask nothing."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from commensal._cluster import Cluster
from commensal._coordinator import Refused, Unreachable
from commensal._quantities import format_bytes, format_seconds

__all__ = ["Finding", "Told", "examine_cluster", "judge"]

State = Literal["ok", "warning", "error"]

_MIB = 1 << 20
_GIB = 1 << 30
_DAY_MS = 86_400_000
_CLOCKS_DIFFER_MS = 2_000  # beyond what asking took
_OLD_BACKUP_MS = 7 * _DAY_MS
_LARGE_LOG = 256 * _MIB  # it is moved into the file at 16 MiB
_LITTLE_DISK, _NO_DISK = 2 * _GIB, 256 * _MIB
_SHOWN = 5  # names in a sentence
_PATIENCE = 10.0  # seconds, of Slurm and of the page


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: a sentence and, unless it is well, what to do."""

    name: str
    state: State
    detail: str
    do: str = ""


@dataclass(frozen=True)
class Told:
    """What a coordinator answered, and when that was by this machine's clock."""

    nodes: dict[str, Any]
    health: dict[str, Any] = field(default_factory=dict)  # empty: it tells none, `no_health` why
    no_health: str = ""
    here_ms: float = 0.0  # in the middle of asking for `health`
    took_ms: float = 0.0
    version: str = ""  # of this command

    @property
    def coordinator(self) -> dict[str, Any]:
        return dict(self.nodes["coordinator"])


def examine_cluster(cluster: Cluster, version: str) -> list[Finding]:
    """Ask a coordinator, and look at what is on this machine if it is here. Changes nothing."""
    try:
        told = ask(cluster, version)
    except (Unreachable, Refused) as error:
        do = (
            "see that it runs there, that the address is its --listen, and that the key is allowed"
            if cluster.remote
            else "'commensal submit' starts one; cluster-INSTANCE.log says why one has ended"
        )
        return [Finding("coordinator", "error", str(error), do)]
    findings = judge(told)
    if cluster.remote is None:
        findings += _looked_at(told)
    return findings


def ask(cluster: Cluster, version: str) -> Told:
    """@raises Unreachable, Refused."""
    nodes = cluster.ask("nodes")
    begin = time.time()
    try:
        health, problem = cluster.ask("health")["health"], ""
    except Refused as error:
        health, problem = {}, str(error)
    end = time.time()
    return Told(nodes, health, problem, (begin + end) * 500, (end - begin) * 1000, version)


# --- judgements: from what was told ---------------------------------------------------------------


def judge(told: Told) -> list[Finding]:
    """Return what the answers alone say. Asks nobody, reads no clock."""
    parts: list[Callable[[Told], Iterable[Finding]]] = [
        *(_coordinator, _clock, _engine, _programs, _limits, _disk, _store, _backup, _logs),
        *(_nodes, _node_versions, _node_clocks),
    ]
    return [finding for part in parts for finding in part(told)]


def _coordinator(told: Told) -> Iterable[Finding]:
    here = told.coordinator
    words = f"pid {here['pid']}, engine {here['engine']}, policy {here['policy']}"
    if not told.health:
        yield Finding(
            "coordinator",
            "warning",
            f"answers ({words}), but not about its health: {told.no_health}",
            "ask with an operator's key, or where it runs; one of an older version knows less",
        )
        return
    version = told.health["version"]
    if version != told.version:
        yield Finding(
            "coordinator",
            "warning",
            f"{words}: its version is {version}, that of this command {told.version}",
            'install one version on all machines (docs/operating.md, "Upgrade")',
        )
        return
    yield Finding("coordinator", "ok", f"version {version}, {words}")


def _clock(told: Told) -> Iterable[Finding]:
    if not told.health:
        return
    apart = abs(told.health["time_ms"] - told.here_ms)
    if apart > _CLOCKS_DIFFER_MS + told.took_ms / 2:
        yield Finding(
            "clock",
            "warning",
            f"the coordinator's clock and this machine's are {format_seconds(apart / 1000)} apart",
            "set both by NTP; times in 'queue' and 'explain' are the coordinator's",
        )
    else:
        yield Finding("clock", "ok", "the coordinator's clock and this machine's agree")


def _engine(told: Told) -> Iterable[Finding]:
    here = told.coordinator
    if here["problem"]:
        do = "nothing is started until it is mended; running jobs go on"
        yield Finding("engine", "error", f"{here['engine']}: {here['problem']}", do)
    else:
        yield Finding("engine", "ok", f"{here['engine']} answers")


def _programs(told: Told) -> Iterable[Finding]:
    programs = told.health.get("programs", [])
    broken = [program for program in programs if program["problem"]]
    for program in broken:
        where = f" ({program['path']})" if program["path"] else ""
        yield Finding(
            "programs",
            "error",
            f"{program['name']}{where}: {program['problem']}",
            "install it, or name it: --keeper, --commensal, --slurm-bin",
        )
    if programs and not broken:
        names = ", ".join(program["name"] for program in programs)
        yield Finding("programs", "ok", f"can be started: {names}")


def _limits(told: Told) -> Iterable[Finding]:
    if told.coordinator["engine"] != "local" or "limits" not in told.health:
        return
    for problem in told.health["limits"]:
        yield Finding(
            "limits",
            "warning",
            f"of jobs that ask for cores or memory {problem}",
            "give the coordinator control groups of its own (Delegate=yes in its unit)",
        )
    if not told.health["limits"]:
        yield Finding("limits", "ok", "jobs are held to the cores and the memory they ask for")


def _disk(told: Told) -> Iterable[Finding]:
    store = told.health.get("store")
    if not store:
        return
    free, folder = store["free_bytes"], Path(store["file"]).parent
    if free is None:
        yield Finding("disk", "error", f"the disk of {folder} cannot be looked at", "see its mount")
        return
    state: State = "error" if free < _NO_DISK else "warning" if free < _LITTLE_DISK else "ok"
    do = 'make room: docs/operating.md, "What is safe to delete"' if state != "ok" else ""
    yield Finding("disk", state, f"{format_bytes(free)} free for {folder}", do)


def _store(told: Told) -> Iterable[Finding]:
    store = told.health.get("store")
    if not store:
        return
    if not store["bytes"]:
        yield Finding(
            "store",
            "error",
            f"{store['file']} is gone: the coordinator writes into a file without a name",
            "'commensal backup' at once, then put the copy in its place (docs/operating.md)",
        )
    elif (store["log_bytes"] or 0) > _LARGE_LOG:
        yield Finding(
            "store",
            "warning",
            f"the log {store['file']}-wal has {format_bytes(store['log_bytes'])}",
            "a slow or full disk: restart the coordinator, which moves it into the file",
        )
    else:
        size = format_bytes(store["bytes"])
        yield Finding("store", "ok", f"{size}, version {store['tables_version']}: {store['file']}")


def _backup(told: Told) -> Iterable[Finding]:
    store = told.health.get("store")
    if not store:
        return
    newest = store["newest_backup_ms"]
    do = "'commensal backup' each night by cron or a timer (docs/operating.md)"
    if newest is None:
        yield Finding("backup", "warning", "there is no copy of the store", do)
        return
    age = told.health["time_ms"] - newest
    copies = "1 copy" if store["backups"] == 1 else f"{store['backups']} copies"
    words = f"{copies}, the newest is {format_seconds(max(0, age) / 1000)} old"
    if age > _OLD_BACKUP_MS:
        yield Finding("backup", "warning", words, do)
    else:
        yield Finding("backup", "ok", words)


def _logs(told: Told) -> Iterable[Finding]:
    logs = told.health.get("logs")
    if not logs:
        return
    if logs["keep_days"] == 0:
        yield Finding(
            "logs",
            "warning",
            f"what jobs print is kept for ever in {logs['folder']}",
            "--keep-logs DAYS",
        )
    else:
        yield Finding("logs", "ok", f"kept {logs['keep_days']} days after a job's end")


def _names(nodes: Iterable[str]) -> str:
    names = list(nodes)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _with_reason(node: dict[str, Any]) -> str:
    return f"{node['name']} ({node['reason']})" if node["reason"] else str(node["name"])


def _reports(told: Told) -> list[tuple[str, dict[str, Any]]]:
    return [(node["name"], node["report"]) for node in told.nodes["nodes"] if "report" in node]


_OF_STATES: dict[str, str] = {
    "down": "see the machine, and what the engine says of it ('commensal nodes')",
    "drained": "'commensal undrain NODE' when it is to have jobs again",
    "avoided": "look at it: jobs failed there ('commensal explain JOB'); 'commensal undrain NODE'",
}


def _nodes(told: Told) -> Iterable[Finding]:
    nodes = told.nodes["nodes"]
    up = [node for node in nodes if node["state"] == "up"]
    if not nodes:
        yield Finding("nodes", "error", "the engine knows no node", "see what it says: 'engine'")
        return
    if not up:
        yield Finding("nodes", "error", f"none of {len(nodes)} can be given jobs", "see below")
    else:
        yield Finding("nodes", "ok", f"{len(up)} of {len(nodes)} can be given jobs")
    for state, do in _OF_STATES.items():
        if those := [node for node in nodes if node["state"] == state]:
            words = _names(_with_reason(node) for node in those)
            yield Finding(f"nodes {state}", "warning", words, do)
    if silent := [name for name, report in _reports(told) if report["state"] == "silent"]:
        yield Finding(
            "nodes silent",
            "warning",
            f"their last reports are old: {_names(silent)}",
            "see commensald there, its log, and the network between",
        )


def _node_versions(told: Told) -> Iterable[Finding]:
    if not told.health:
        return
    own = told.health["version"]
    others = [
        f"{name} ({report['version']})"
        for name, report in _reports(told)
        if report.get("version", own) != own
    ]
    if others:
        yield Finding(
            "node versions",
            "warning",
            f"not the coordinator's, {own}: {_names(others)}",
            "upgrade them one by one; their jobs run on (docs/operating.md)",
        )


def _node_clocks(told: Told) -> Iterable[Finding]:
    """A report says when it was sent, and the coordinator for how long it has had it."""
    if not told.health:
        return
    wrong = []
    for name, report in _reports(told):
        if "time_ms" not in report:
            continue  # of an older version
        apart = told.health["time_ms"] - report["silent_seconds"] * 1000 - report["time_ms"]
        if abs(apart) > _CLOCKS_DIFFER_MS + told.took_ms:
            wrong.append(f"{name} ({format_seconds(abs(apart) / 1000)})")
    if wrong:
        yield Finding(
            "node clocks",
            "warning",
            f"they differ from the coordinator's: {_names(wrong)}",
            "set them by NTP",
        )


# --- on the coordinator's own machine -------------------------------------------------------------


def _looked_at(told: Told) -> list[Finding]:
    looks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("lock", lambda: look_at_lock(told)),
        ("keys", lambda: look_at_keys(told)),
        ("page", lambda: look_at_page(told.coordinator)),
        ("slurm", lambda: _slurm(told)),
    ]
    findings: list[Finding] = []
    for name, look in looks:
        try:
            findings += look()
        except Exception as error:
            findings.append(Finding(name, "error", f"the check failed: {error!r}", "report it"))
    return findings


def look_at_lock(told: Told) -> Iterable[Finding]:
    """Look at whether the one who answers is the one who holds the lock."""
    if not told.health:
        return
    path, pid = Path(told.health["lock"]), told.coordinator["pid"]
    do = "stop all coordinators of this instance, then start one"
    try:
        with path.open() as lock:
            holder = lock.read().strip()
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                held = True
            else:
                held = False
    except OSError as error:
        yield Finding("lock", "error", f"{path}: {error.strerror}; a second one could start", do)
        return
    if not held or holder != str(pid):
        whose = f"is that of pid {holder or 'nobody'}" if held else "is not held"
        yield Finding("lock", "error", f"{path} {whose}; pid {pid} answers", do)
    else:
        yield Finding("lock", "ok", f"held by pid {pid}: one coordinator decides")


def look_at_keys(told: Told) -> Iterable[Finding]:
    """Look at the folder of keys of a coordinator that listens on the network."""
    from commensal import _core

    if not told.coordinator.get("address") or not told.health.get("keys_dir"):
        return
    folder = Path(told.health["keys_dir"])
    do = f"chmod 700 {folder}; chmod 600 {folder}/*.key {folder}/allowed.json"
    for path in [folder, *sorted(folder.glob("*.key")), folder / "allowed.json"]:
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding("keys", "error", f"{path} is open to other users", do)
            return
    try:
        entries = _core.keys_list(str(folder))
    except _core.KeyProblem as problem:
        yield Finding("keys", "error", str(problem), "nobody is let in until it is mended")
        return
    allowed = [name for name, *_, revoked in entries if revoked is None]
    if not allowed:
        yield Finding(
            "keys",
            "warning",
            f"it listens on {told.coordinator['address']}, and no key is allowed",
            "commensal keys allow NAME KEY --role user|operator|node",
        )
    else:
        yield Finding("keys", "ok", f"{len(allowed)} keys are allowed: {_names(allowed)}")


def look_at_page(coordinator: dict[str, Any]) -> Iterable[Finding]:
    """Fetch the metrics as Prometheus would."""
    page = coordinator.get("page", "")
    if not page:
        yield Finding(
            "page",
            "warning",
            "there is no page, so no metrics",
            "its log says why; or it was started with --http off",
        )
        return
    do = "see its log; --http gives it another address"
    try:
        token = Path(coordinator["page_token_file"]).read_text(encoding="ascii").strip()
        request = urllib.request.Request(
            f"{page}metrics", headers={"Authorization": f"Bearer {token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=_PATIENCE) as answer:
            text = answer.read().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        yield Finding("page", "error", f"{page}metrics: {error}", do)
        return
    if "commensal_build_info" in text:
        yield Finding("page", "ok", f"{page} serves the page and metrics")
    else:
        yield Finding("page", "error", f"{page}metrics is not ours", do)


def _slurm(told: Told) -> Iterable[Finding]:
    if told.coordinator["engine"] != "slurm":
        return
    folder = told.health.get("slurm_programs", "")
    command = [str(Path(folder) / "scontrol") if folder else "scontrol", "show", "config"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        words = f"did not answer within {_PATIENCE:g} s"
        yield Finding("slurm", "error", f"{' '.join(command)}: {words}", "see slurmctld")
        return
    except OSError as error:
        words = error.strerror or str(error)
        yield Finding("slurm", "error", f"{' '.join(command)}: {words}", "see slurmctld")
        return
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        words = said[0] if said else f"ended with {done.returncode}"
        yield Finding("slurm", "error", f"{' '.join(command)}: {words}", "see slurmctld")
        return
    yield from judge_slurm(done.stdout, _text_of)


def _text_of(path: str) -> str | None:
    """Return a file's text; nothing if it cannot be read. What is no text is no reason to fail."""
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return None


_INSTALL = "commensal-slurm-install --etc DIR on each node (docs/slurm.md, step 5)"


def _problems_of_rules(path: str, read: Callable[[str], str | None]) -> list[str]:
    rules = read(path) or ""
    if "commensal" not in rules:
        return [f"{path} is not there or not commensal's"]
    auto = re.search(r'^local AUTO = "(/.*)"$', rules, re.MULTILINE)
    if auto is None:
        return [f"{path} names no program for sbatch --commensal=auto"]
    return [f"{auto[1]} cannot be read"] if read(auto[1]) is None else []


def judge_slurm(config: str, read: Callable[[str], str | None]) -> Iterable[Finding]:
    """Judge what 'scontrol show config' printed, and the files that it names."""
    values: dict[str, str] = {}
    for line in config.splitlines():
        if match := re.match(r"\s*(\w+)(?:\[\d+\])?\s*=\s*(.*?)\s*$", line):
            key, value = match.groups()
            values[key] = f"{values[key]},{value}" if key in values else value
    problems = []
    if "lua" not in values.get("JobSubmitPlugins", "").split(","):
        problems.append("the rules (job_submit.lua) are not in JobSubmitPlugins")
    etc = os.path.dirname(values.get("SLURM_CONF", ""))
    problems += _problems_of_rules(f"{etc}/job_submit.lua", read)
    for hook in ("Prolog", "Epilog"):
        scripts = [name for name in values.get(hook, "").split(",") if "commensal" in name]
        if not scripts:
            problems.append(f"{hook} does not name commensal-{hook.lower()}.sh")
        problems += [f"{name} cannot be read" for name in scripts if read(name) is None]
    stack = values.get("PlugStackConfig", "")
    lines = [
        line.split()
        for line in (read(stack) or "").splitlines()
        if "commensal_spank.so" in line and not line.lstrip().startswith("#")
    ]
    if not lines:
        problems.append(f"no SPANK plugin in {stack or 'PlugStackConfig'}")
    elif read(lines[0][1]) is None:
        problems.append(f"{lines[0][1]} cannot be read")
    kinds = values.get("GresTypes", "").split(",")
    problems += [f"GresTypes has no {kind}" for kind in ("gpu", "seat") if kind not in kinds]
    if problems:
        yield Finding("slurm", "warning", "on this machine: " + "; ".join(problems), _INSTALL)
    elif values.get("CompleteWait", "").startswith("0 "):
        yield Finding(
            "slurm",
            "warning",
            "CompleteWait is 0: Slurm requeues opportunistic jobs of a node where another job ends",
            "CompleteWait=32 and SchedulerParameters=reduce_completing_frag in slurm.conf "
            "(docs/slurm.md, step 4)",
        )
    else:
        yield Finding("slurm", "ok", "rules, prolog, epilog and plugin are installed here")
