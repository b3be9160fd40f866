# SPDX-License-Identifier: Apache-2.0
"""Units, images and their installer: they name programs and options that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from world import COMMENSAL

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = ROOT / "coordinator" / "deployment"
FILES = DEPLOYMENT / "files"
BIN = COMMENSAL.parent
UNITS = [
    *("commensald.service", "commensal-coordinator.service"),
    *("commensal-backup.service", "commensal-backup.timer"),
]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=False
    )


def packages_of_setup() -> set[str]:
    text = (ROOT / "scripts" / "setup").read_text()
    groups = re.findall(r"^(?:RUNTIME|CLUSTER|SIMULATOR)=\((.*?)\)", text, re.MULTILINE | re.DOTALL)
    assert len(groups) == 3
    return set(" ".join(groups).split())


def check_words(words: list[str]) -> None:
    """Fail unless a program of ours takes these words; it starts nothing."""
    program, *options = words
    name = Path(program).name
    if name == "commensal":
        done = run(BIN / name, *options, "--help")
    else:
        done = run(BIN / name, *options, "--check-config")
    assert done.returncode == 0, done.stderr


# --- units --------------------------------------------------------------------------------------


@dataclass
class Installed:
    """Units as the installer has put them below a folder."""

    root: Path
    output: str = ""
    units: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def install(self, *words: str, bin_dir: Path = BIN) -> subprocess.CompletedProcess[str]:
        command = [FILES / "install.sh", "--root", self.root, "--bin", bin_dir, *words]
        return run(*command)

    def unit(self, name: str) -> dict[str, list[str]]:
        """Return its settings: several values where a name stands several times."""
        settings: dict[str, list[str]] = {}
        for line in (self.root / "etc/systemd/system" / name).read_text().splitlines():
            if line and line[0] not in "#[":
                key, _, value = line.partition("=")
                settings.setdefault(key, []).append(value)
        return settings

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    world = Installed(tmp_path / "root")
    world.root.mkdir()
    done = world.install()
    # 1: this installation may lie in a folder that other accounts cannot enter.
    assert done.returncode in (0, 1), done.stderr
    world.output = done.stdout
    return world


def test_everything_is_put_there_with_paths_filled_in(installed: Installed) -> None:
    files = installed.files()
    assert set(files) == {
        *(f"etc/systemd/system/{unit}" for unit in UNITS),
        "etc/sysusers.d/commensal.conf",
        *("etc/commensal/commensald.ini", "etc/commensal/coordinator.ini"),
    }
    assert not [name for name, text in files.items() if re.search(rb"@[A-Z]+@", text)]
    for name in files:
        assert f"wrote     {installed.root}/{name}" in installed.output


def test_a_second_run_changes_nothing_and_configuration_stays(installed: Installed) -> None:
    (installed.root / "etc/commensal/coordinator.ini").write_text("policy=srtf\n")
    before = installed.files()
    done = installed.install()
    assert "wrote" not in done.stdout
    assert installed.files() == before


def test_check_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    world = Installed(tmp_path)
    done = world.install("--check")
    assert done.returncode == 1
    assert f"would write {tmp_path}/etc/systemd/system/commensald.service" in done.stdout
    assert world.files() == {}


def test_another_account_is_used_and_not_made(tmp_path: Path) -> None:
    world = Installed(tmp_path)
    world.install("--user", "jobs")
    for unit in UNITS[:3]:
        assert world.unit(unit)["User"] == ["jobs"]
    assert "etc/sysusers.d/commensal.conf" not in world.files()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--user", "root"), 2, "not as root"),
        (("--user", "a b"), 2, "not the name of an account: 'a b'"),
        (("--user", "x|y"), 2, "not the name of an account: 'x|y'"),
        (("--bin", "bin"), 2, "absolute path without spaces: 'bin'"),
        (("--bin", "/a b"), 2, "absolute path without spaces: '/a b'"),
        (("--bin", "/no/such"), 4, "not a program: '/no/such/commensal'"),
        (("--root", "/no/such"), 4, "no such folder: '/no/such'"),
        (("--user",), 2, "--user needs a value"),
        (("--force",), 2, "unknown option: '--force'"),
    ],
)
def test_what_cannot_be_is_refused(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    world = Installed(tmp_path)
    done = world.install(*words)
    assert done.returncode == code
    assert said in done.stderr
    assert world.files() == {}


def test_programs_that_the_account_cannot_reach_are_told(tmp_path: Path) -> None:
    programs = tmp_path / "closed" / "bin"
    programs.mkdir(parents=True)
    for name in ("commensal", "commensald", "commensal-coordinator", "commensal-keeper"):
        (programs / name).symlink_to(BIN / name)
    (tmp_path / "closed").chmod(0o700)
    root = tmp_path / "root"
    root.mkdir()
    done = Installed(root).install(bin_dir=programs)
    assert done.returncode == 1
    assert f"{tmp_path}/closed is closed to 'commensal' (mode 700)" in done.stdout


def test_the_installed_script_finds_its_files(tmp_path: Path) -> None:
    script = BIN / "commensal-service-install"
    done = run(script, "--root", tmp_path, "--check")
    assert done.returncode == 1, done.stderr
    assert "would write" in done.stdout
    assert f"commensal-service-install: unknown option: '{script}'" in run(script, script).stderr
    assert "--check" in run(script, "--help").stdout


@pytest.mark.parametrize("name", UNITS[:3])
def test_commands_of_units_are_taken_by_the_programs(installed: Installed, name: str) -> None:
    for command in installed.unit(name)["ExecStart"]:
        words = shlex.split(command)
        if words[0] == "/bin/sh":
            continue
        assert words[0].startswith(f"{BIN}/")
        # Its configuration, where it lies in this test.
        check_words(
            [w.replace("/etc/commensal/", f"{installed.root}/etc/commensal/") for w in words]
        )


def test_the_newest_copies_stay_whatever_the_clock_says(
    installed: Installed, tmp_path: Path
) -> None:
    copies = tmp_path / "backups"
    copies.mkdir()
    for number in range(1, 36):
        copy = copies / f"cluster-20260101T0300{number:02}Z.db"
        copy.touch()
        os.utime(copy, (0, 0))  # as after a jump of the clock
    (copies / "notes").touch()
    words = shlex.split(installed.unit("commensal-backup.service")["ExecStart"][1])
    words = [word.replace("$$", "$") for word in words[:-1]]  # as systemd does
    done = run(*words, copies)
    assert done.returncode == 0, done.stderr
    left = sorted(copy.name for copy in copies.iterdir())
    assert left == [f"cluster-20260101T0300{number:02}Z.db" for number in range(6, 36)] + ["notes"]


def test_an_option_that_is_gone_would_be_found(installed: Installed) -> None:
    configuration = installed.root / "etc/commensal/commensald.ini"
    configuration.write_text(configuration.read_text() + "no-such-option=1\n")
    with pytest.raises(AssertionError, match="no-such-option"):
        check_words(["commensald", "--config", str(configuration)])


@pytest.mark.parametrize("name", ["commensald", "coordinator"])
def test_examples_of_the_configuration_can_be_used(
    installed: Installed, tmp_path: Path, name: str
) -> None:
    text = (installed.root / f"etc/commensal/{name}.ini").read_text()
    whole = tmp_path / "whole.ini"
    whole.write_text(re.sub(r"^#(?=[a-z-]+=)", "", text, flags=re.MULTILINE))
    assert whole.read_text() != text
    program = "commensald" if name == "commensald" else "commensal-coordinator"
    check_words([program, "--config", str(whole)])


def test_units_leave_jobs_running(installed: Installed) -> None:
    coordinator = installed.unit("commensal-coordinator.service")
    daemon = installed.unit("commensald.service")
    for unit in (coordinator, daemon):
        assert unit["KillMode"] == ["process"]
        assert unit["Restart"] == ["on-failure"]
        assert unit["RuntimeDirectoryPreserve"] == ["yes"]
        assert unit["User"] == ["commensal"]
        # Programs and units agree on which codes are for the operator.
        assert {"2", "3"} <= set(unit["RestartPreventExitStatus"][0].split())
    assert coordinator["OOMPolicy"] == ["continue"]
    # After code 4 a damaged store may lie aside: that is for the operator.
    assert "4" in coordinator["RestartPreventExitStatus"][0].split()
    # What a service closes is closed to the jobs that it starts.
    closed = ("Protect", "Private", "Restrict", "NoNew", "Capability", "SystemCall")
    assert not [key for key in coordinator if key.startswith(closed)]
    needed = {"PrivateDevices", "ProtectControlGroups", "ProtectProc", "ProtectClock"}
    assert not needed & set(daemon)


def test_systemd_takes_the_units(installed: Installed) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here")
    folder = installed.root / "etc/systemd/system"

    def verify(*units: Path) -> str:
        done = run("systemd-analyze", "verify", "--man=no", "--generators=no", *units)
        # What it does not know it only mentions; units of the machine may have faults of their own.
        return "\n".join(
            line for line in (done.stdout + done.stderr).splitlines() if "commensal" in line
        )

    assert verify(*(folder / name for name in UNITS)) == ""
    spoilt = folder / "commensald.service"
    spoilt.write_text(spoilt.read_text().replace("KillMode=", "KilMode="))
    assert "KilMode" in verify(spoilt)


# --- images -------------------------------------------------------------------------------------


@dataclass
class Stage:
    """One FROM of a container file, and its instructions."""

    base: str
    lines: list[tuple[str, str]]

    def all(self, word: str) -> list[str]:
        return [rest for name, rest in self.lines if name == word]


def stages() -> dict[str, Stage]:
    text = (DEPLOYMENT / "Containerfile").read_text()
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, Stage] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = Stage(base, [])
        else:
            found[name].lines.append((word, rest))
    return found


def test_each_stage_comes_from_debian_or_a_stage_before() -> None:
    known: set[str] = set()
    for name, stage in stages().items():
        assert stage.base == "docker.io/library/debian:12" or stage.base in known
        for rest in stage.all("COPY"):
            for source in re.findall(r"--from=(\S+)", rest):
                assert source in known
        known.add(name)
    assert {"build", "coordinator", "node"} <= known


def test_what_is_copied_is_there_and_is_what_the_build_needs() -> None:
    copied = set()
    for stage in stages().values():
        for rest in stage.all("COPY"):
            if not rest.startswith("--from"):
                copied |= set(rest.split()[:-1])
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    # scripts/setup builds from these, and no others.
    setup = (ROOT / "scripts" / "setup").read_text()
    digest = re.search(r"^sources=\$\(digest ([^)]+)\)", setup, re.MULTILINE)
    assert digest
    tops = {name.split("/")[0] for name in digest[1].split()}
    assert tops <= copied


def test_the_build_is_that_of_setup_and_images_have_its_packages() -> None:
    assert "./scripts/setup" in stages()["build"].all("RUN")
    base = " ".join(stages()["base"].all("RUN"))
    install = re.search(r"apt-get install (.*?)<", base)
    assert install
    words = {word for word in install[1].split() if not word.startswith("-")}
    assert words <= packages_of_setup()
    assert "python3" in words


@pytest.mark.parametrize("name", ["coordinator", "node"])
def test_entry_points_take_their_options_and_run_as_nobody_special(name: str) -> None:
    stage = stages()[name]
    users = stages()[stage.base].all("USER") + stage.all("USER")
    assert users[-1] == "commensal"
    words = json.loads(stage.all("ENTRYPOINT")[-1]) + json.loads(stage.all("CMD")[-1])
    check_words([word.replace("/opt/commensal/.venv/bin", str(BIN)) for word in words])


def test_variables_of_the_images_are_ours() -> None:
    documented = (ROOT / "docs" / "environment.md").read_text()
    names = re.findall(r"(COMMENSAL_[A-Z_]+)=", " ".join(stages()["base"].all("ENV")))
    assert len(names) == 3
    assert [name for name in names if f"`{name}`" not in documented] == []


def test_packages_of_what_programs_need_are_found() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("there is no dpkg here")
    script = FILES / "runtime-packages.sh"
    done = run(script, BIN / "commensal-coordinator", BIN / "commensald", BIN / "commensal")
    assert done.returncode == 0, done.stderr
    packages = done.stdout.split()
    assert len(packages) == len(set(packages))
    assert {"libc6", "libstdc++6"} <= set(packages)
    assert [name for name in packages if name.startswith("libzmq")]
    assert [name for name in packages if name.startswith("libsqlite3")]


def test_a_file_that_is_not_there_is_refused() -> None:
    script = FILES / "runtime-packages.sh"
    assert run(script).returncode == 2
    done = run(script, "/no/such")
    assert (done.returncode, "no such file: '/no/such'" in done.stderr) == (4, True)
    assert run(script, sys.executable).returncode == 0
