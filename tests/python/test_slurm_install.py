# SPDX-License-Identifier: Apache-2.0
"""commensal-slurm-install: what it puts beside slurm.conf, and what it leaves to the administrator.

That what it installs works is shown by tests/python/test_slurm.py: its cluster is set up by it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[2] / "coordinator" / "engines" / "slurm" / "files"
WHOLE = """\
ClusterName=x
GresTypes=gpu,seat
NodeName=n[1-4] Gres=gpu:2,seat:2
PartitionName=guaranteed Nodes=ALL
PartitionName=opportunistic Nodes=ALL
"""


class Etc:
    """A folder with a slurm.conf and a stand-in for the built plugin."""

    def __init__(self, folder: Path, conf: str) -> None:
        self.path = folder / "etc"
        self.path.mkdir()
        (self.path / "slurm.conf").write_text(conf)
        self.plugin = folder / "plugin.so"
        self.plugin.write_bytes(b"\x7fELF")

    def install(self, *words: str, plugin: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(FILES / "install.sh"), "--etc", str(self.path)]
        command += ["--plugin", str(plugin or self.plugin), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def texts(self) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in self.path.iterdir()}


def test_everything_is_put_there_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    done = etc.install("--run", "/run/elsewhere")
    assert done.returncode == 0, done.stdout + done.stderr
    texts = etc.texts()
    assert texts["slurm.conf.before-commensal"].decode() == WHOLE
    assert texts["slurm.conf"].decode() == f"{WHOLE}include {etc.path}/commensal.conf\n"
    own = texts["commensal.conf"].decode()
    assert "JobSubmitPlugins=lua" in own and f"Prolog={etc.path}/commensal-prolog.sh" in own
    assert texts["plugstack.conf"].decode() == f"optional {etc.path}/commensal_spank.so\n"
    assert b"/run/elsewhere" in texts["commensal-prolog.sh"]
    assert b"@RUN_DIR@" not in texts["commensal-epilog.sh"]
    again = etc.install("--run", "/run/elsewhere")
    assert again.returncode == 0 and again.stdout == "all is there: nothing to do\n"
    assert etc.texts() == texts


def test_check_says_what_would_be_done_and_does_nothing(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    before = etc.texts()
    done = etc.install("--check")
    assert done.returncode == 1
    for name in ("job_submit.lua", "commensal.conf", "slurm.conf", "commensal_spank.so"):
        assert f"would write {etc.path}/{name}\n" in done.stdout
    assert etc.texts() == before
    assert etc.install().returncode == 0
    assert etc.install("--check").returncode == 0


def test_what_is_the_administrators_is_said_and_left(tmp_path: Path) -> None:
    conf = """\
jobsubmitplugins = throttle,lua   # ours
GresTypes=gpu
Prolog=/etc/slurm/own.sh
NodeName=n[1-4] Gres=gpu:2
NodeName=c1 CPUs=4
PartitionName=guaranteed Nodes=ALL
"""
    etc = Etc(tmp_path, conf)
    done = etc.install()
    assert done.returncode == 1
    assert "slurm.conf has GresTypes=gpu: add seat" in done.stdout
    prolog = f"slurm.conf has Prolog=/etc/slurm/own.sh: add {etc.path}/commensal-prolog.sh"
    assert prolog in done.stdout
    assert "node n[1-4] offers gpu and no seat" in done.stdout and "c1" not in done.stdout
    assert "no partition 'opportunistic'" in done.stdout
    assert "no partition 'guaranteed'" not in done.stdout
    own = etc.texts()["commensal.conf"].decode()
    assert "Prolog=" not in own and "JobSubmitPlugins" not in own and "GresTypes" not in own


def test_files_of_others_are_kept(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    (etc.path / "job_submit.lua").write_text("-- the site's own\n")
    (etc.path / "plugstack.conf").write_text("required other.so\n")
    done = etc.install()
    assert done.returncode == 1 and "is your own" in done.stdout
    assert etc.texts()["job_submit.lua"] == b"-- the site's own\n"
    lines = etc.texts()["plugstack.conf"].decode().splitlines()
    assert lines == ["required other.so", f"optional {etc.path}/commensal_spank.so"]
    assert etc.texts()["plugstack.conf.before-commensal"] == b"required other.so\n"


def test_the_program_of_auto_is_named_in_the_rules(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    program = tmp_path / "a b" / "commensal-slurm-auto"
    program.parent.mkdir()
    program.touch(mode=0o755)
    done = etc.install()
    assert done.returncode == 0 and "sbatch --commensal=auto is refused" in done.stdout
    assert b'\nlocal AUTO = ""\n' in etc.texts()["job_submit.lua"]
    done = etc.install("--auto", str(program))
    assert done.returncode == 0 and "refused" not in done.stdout
    assert f'\nlocal AUTO = "{program}"\n'.encode() in etc.texts()["job_submit.lua"]
    before = etc.texts()
    quoted = tmp_path / "it's"
    quoted.touch(mode=0o755)
    for wrong, code, says in (
        ("commensal-slurm-auto", 4, "no program with its whole path: 'commensal-slurm-auto'"),
        (str(tmp_path / "missing"), 4, f"no program with its whole path: '{tmp_path}/missing'"),
        (str(quoted), 2, "has a character that it may not have"),
    ):
        done = etc.install("--auto", wrong)
        assert done.returncode == code and says in done.stderr
        assert etc.texts() == before


def test_the_program_of_auto_is_found_beside_the_installer(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    programs, files = tmp_path / "bin", tmp_path / "share" / "commensal" / "slurm"
    programs.mkdir()
    shutil.copytree(FILES, files, ignore=shutil.ignore_patterns("install.sh"))
    installer = shutil.copy(FILES / "install.sh", programs / "commensal-slurm-install")
    (programs / "commensal-slurm-auto").touch(mode=0o755)
    command = [installer, "--etc", str(etc.path), "--plugin", str(etc.plugin)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    named = f'\nlocal AUTO = "{programs}/commensal-slurm-auto"\n'
    assert named.encode() in etc.texts()["job_submit.lua"]


def test_without_a_plugin_the_rest_is_installed(tmp_path: Path) -> None:
    etc = Etc(tmp_path, WHOLE)
    done = etc.install(plugin=tmp_path / "missing.so")
    assert done.returncode == 1 and f"no SPANK plugin at {tmp_path}/missing.so" in done.stdout
    assert "job_submit.lua" in etc.texts() and "plugstack.conf" not in etc.texts()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "--etc DIR is missing"),
        (["--etc"], 2, "--etc needs a value"),
        (["--nonsense"], 2, "unknown option: '--nonsense'"),
        (["--etc", "/no/such"], 4, "no such folder: '/no/such'"),
        (["--etc", "/proc/self/task"], 4, "cannot read '/proc/self/task/slurm.conf'"),
    ],
)
def test_wrong_words_are_named(words: list[str], code: int, says: str) -> None:
    command = [str(FILES / "install.sh"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and says in done.stderr and done.stdout == ""


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
def test_hooks_never_fail(tmp_path: Path, hook: str) -> None:
    """A prolog that fails takes its node out of service."""
    script = tmp_path / "hook.sh"
    text = (FILES / f"{hook}.sh").read_text()
    for folder in ("/proc/no/such", str(tmp_path / "notes")):
        script.write_text(text.replace("@RUN_DIR@", folder))
        for environ in ({}, {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}):
            command = ["/bin/sh", str(script)]
            done = subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=60, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_the_prolog_notes_the_epilog_takes_back(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    environ = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_PARTITION": "opportunistic",
        "SLURMD_NODENAME": "n1",
        "SPANK_COMMENSAL_CLASS": "opportunistic",
        "PATH": "/usr/bin:/bin",
    }

    def call(hook: str) -> None:
        script = tmp_path / f"{hook}.sh"
        script.write_text((FILES / f"{hook}.sh").read_text().replace("@RUN_DIR@", str(notes)))
        subprocess.run(["/bin/sh", str(script)], env=environ, timeout=60, check=True)

    call("prolog")
    assert (notes / "n1-7").read_text() == (
        "job=7 uid=1000 class=opportunistic partition=opportunistic gpus=none\n"
    )
    call("epilog")
    assert list(notes.iterdir()) == []
