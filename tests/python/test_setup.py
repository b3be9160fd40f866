# SPDX-License-Identifier: Apache-2.0
"""`scripts/setup` with stand-ins for what it calls: order, progress, what goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from world import DEADLINE

ROOT = Path(__file__).resolve().parents[2]

# Stands in for .venv/bin/python, which runs pip: notes what it is asked, and fails as it is told.
PYTHON = """#!/bin/bash
[ "$1" != -c ] || exit 0
echo "$*" >> "$CALLS"
case "$* " in
  *"requirements.txt "*) what=environment ;;
  *"--force-reinstall"*) what=build ;;
  *) what=other ;;
esac
echo "Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.0 MB)"
if [ -e "$ROOM/hold-$what" ]; then echo > "$ROOM/held"; sleep 600; fi
if [ -e "$ROOM/fail-$what" ]; then cat "$ROOM/fail-$what"; exit 1; fi
if [ "$what" = build ]; then echo "  [1/3] Building CXX object a.o"; echo "  [3/3] Linking"; fi
"""
CMAKE = """#!/bin/bash
if [ "$1" = --version ]; then echo "cmake version ${CMAKE_IS:-3.25.1}"; exit; fi
echo "cmake $*" >> "$CALLS"
"""


@dataclass
class Clone:
    """A clone's scripts in a folder of its own, whose programs are stand-ins."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir()
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        for name in ("allocator", "coordinator", "torch_ext", "python", "examples"):
            (self.folder / name).mkdir()
        for name in ("CMakeLists.txt", "pyproject.toml"):
            (self.folder / name).touch()
        self.program(".venv/bin/python", PYTHON)
        self.program("bin/cmake", CMAKE)
        self.program("bin/ninja", "#!/bin/bash\n")
        self.program("bin/dpkg-query", "#!/bin/bash\necho installed\n")

    def program(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *options: str, **environ: str) -> subprocess.Popen[str]:
        surroundings = {k: v for k, v in os.environ.items() if k != "COMMENSAL_STAGES"}
        variables = surroundings | {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "CALLS": str(self.folder / "calls"),
            "ROOM": str(self.folder),
        }
        return subprocess.Popen(
            [str(self.folder / "scripts" / "setup"), *options],
            env=variables | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def set_up(self, *options: str, **environ: str) -> tuple[int, str]:
        process = self.start(*options, **environ)
        output, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, output

    def calls(self, word: str) -> list[str]:
        """Return the calls with this word since the last look."""
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if word in line]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "my folder, größer")


def test_it_sets_up_once_and_shows_how_far_it_is(clone: Clone) -> None:
    code, said = clone.set_up()
    assert code == 0, said
    assert "Downloading torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (530.0 MB)" in said
    assert "== build: 3 of 3, about 0 s left" in said
    assert len(clone.calls("--force-reinstall")) == 1
    code, said = clone.set_up()
    assert code == 0
    assert said.count("\n") == 1 and said.startswith("== ready after ")
    assert clone.calls("") == []


def test_the_demo_has_its_part_and_the_rest_follows(clone: Clone) -> None:
    assert clone.set_up("--demo")[0] == 0
    assert any("-DCOMMENSAL_CLUSTER=OFF" in call for call in clone.calls("cmake"))
    assert clone.set_up("--demo")[0] == 0
    assert clone.calls("pip") == []
    assert clone.set_up()[0] == 0
    assert len(clone.calls("--force-reinstall")) == 1
    assert clone.set_up("--demo")[0] == 0, "all of it is enough for the demo"
    assert clone.calls("pip") == []


@pytest.mark.parametrize(
    ("what", "text", "sentence"),
    [
        ("environment", "OSError: [Errno 28] No space left on device", "the disk is full"),
        ("build", "fatal error: error writing to a.o: No space left on device", "the disk is full"),
        (
            "environment",
            "Failed to establish a new connection: [Errno -2] Name or service not known",
            "the package index cannot be reached",
        ),
        ("build", "c++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
    ],
)
def test_what_often_goes_wrong_gets_one_sentence(
    clone: Clone, what: str, text: str, sentence: str
) -> None:
    (clone.folder / f"fail-{what}").write_text(text + "\n")
    code, said = clone.set_up()
    last = said.splitlines()[-1]
    assert code == 1
    assert last.startswith("commensal: ") and sentence in last
    assert "goes on where it was" in last
    clone.calls("")
    (clone.folder / f"fail-{what}").unlink()
    assert clone.set_up()[0] == 0
    # What was done before is not done again.
    assert bool(clone.calls("requirements.txt")) == (what == "environment")


def test_other_failures_show_their_lines_and_where_all_of_it_is(clone: Clone) -> None:
    (clone.folder / "fail-build").write_text("a line\nx.cpp:3:1: error: no such thing\n")
    code, said = clone.set_up()
    assert code == 1
    assert "  | x.cpp:3:1: error: no such thing\n" in said and "a line" not in said
    log = Path(said.splitlines()[-1].rpartition("All of it: ")[2])
    assert "a line" in log.read_text()


def test_one_that_was_killed_goes_on_where_it_was(clone: Clone) -> None:
    (clone.folder / "hold-build").touch()
    process = clone.start()
    end = time.monotonic() + DEADLINE
    while not (clone.folder / "held").exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    clone.calls("")
    (clone.folder / "hold-build").unlink()
    assert clone.set_up()[0] == 0
    calls = clone.calls("pip")
    assert [call for call in calls if "--force-reinstall" in call]
    assert not [call for call in calls if "requirements.txt" in call]


def test_two_at_once_go_one_after_the_other(clone: Clone) -> None:
    (clone.folder / "hold-build").touch()
    first = clone.start()
    end = time.monotonic() + DEADLINE
    while not (clone.folder / "held").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    (clone.folder / "hold-build").unlink()
    second = clone.start()
    assert second.stdout is not None
    assert "another set-up works in this folder" in second.stdout.readline()
    os.killpg(first.pid, signal.SIGTERM)
    first.communicate()
    output, _ = second.communicate(timeout=DEADLINE)
    assert second.returncode == 0, output


def test_an_old_cmake_is_replaced_and_a_missing_compiler_is_named(clone: Clone) -> None:
    assert clone.set_up(CMAKE_IS="3.18.4")[0] == 0
    assert (
        len(clone.calls("install --disable-pip-version-check --progress-bar off -q cmake>=")) == 1
    )
    code, said = clone.set_up(CXX="/no/such/compiler")
    assert code == 1
    assert said.startswith("commensal: there is no C++ compiler /no/such/compiler: install g++ 12")


@pytest.mark.parametrize("options", [["--demos"], ["--torch-index"]])
def test_a_wrong_option_is_named(clone: Clone, options: list[str]) -> None:
    code, said = clone.set_up(*options)
    assert code == 1
    assert options[0] in said and said.count("\n") == 1


def wheel(folder: Path, name: str, version: str) -> None:
    """Make the smallest wheel there can be."""
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        made.writestr(f"{name}/version.py", f"__version__ = '{version}'\n")
        made.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        made.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr(f"{information}/RECORD", "")


class TestTorchFromElsewhere:
    """`--torch-index`, with an environment and a folder of wheels that are made here."""

    @pytest.fixture(scope="class")
    @staticmethod
    def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
        place = tmp_path_factory.mktemp("environment")
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        return place / "bin" / "python"

    def install(self, python: Path, where: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / "scripts" / "install_torch"), str(python), where],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
        )

    def test_a_folder_of_wheels_or_an_index_serves(self, python: Path, tmp_path: Path) -> None:
        index = tmp_path / "index with a space"
        (index / "torch").mkdir(parents=True)
        wheel(index / "torch", "torch", "2.11.0+cpu")
        done = self.install(python, str(index / "torch"))
        assert done.returncode == 0, done.stderr
        shown = subprocess.run(
            [str(python), "-m", "pip", "show", "torch"], capture_output=True, text=True, check=True
        )
        assert "Version: 2.11.0+cpu" in shown.stdout
        # One that is there stays, wherever others may be had.
        again = self.install(python, "https://there.is.no.such.host.invalid/simple")
        assert again.returncode == 0, again.stderr
        assert "already satisfied: torch==2.11.0" in again.stdout

    def test_what_is_neither_is_named(self, python: Path) -> None:
        done = self.install(python, "whl/cpu")
        assert done.returncode == 1
        assert done.stderr == "commensal: --torch-index: neither a folder nor a URL: 'whl/cpu'\n"
