#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which tests a change can reach.

    scripts/reach.py tests [COMMIT]   the tests for what has changed since COMMIT (default: HEAD)
    scripts/reach.py list             for every source: seconds of its tests, and how many
    scripts/reach.py record           run all tests once, and write tests/reach.txt anew

`record` takes an hour: it builds the preset `coverage`, and notes which sources each test
runs, a C++ test program as a whole, a Python test by itself. A source that is not in the file, as
it is new, is taken to reach what those of its folder do; a header, what the sources that include it
do; anything else, the tests that name it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "reach.txt"
DURATIONS = ROOT / "tests" / "durations.txt"
BUILD = ROOT / "build" / "coverage"
PYTHON = ROOT / ".venv" / "bin" / "python"
SOURCES = ("allocator/", "coordinator/", "torch_ext/", "python/")
REACH_ALL = (
    "CMakeLists.txt",
    "CMakePresets.json",
    "tests/conftest.py",
    "tests/python/conftest.py",
)
SHORT = 0.2  # seconds of a test that is not in tests/durations.txt


# What was recorded: a line for each source, "PATH: 3-17 40", of the tests whose numbers these are.


def write(reached: Mapping[str, Iterable[str]]) -> None:
    """Write which tests each source reaches."""
    tests = sorted({test for all_of_it in reached.values() for test in all_of_it})
    number = {test: index for index, test in enumerate(tests)}
    with FILE.open("w", encoding="utf-8") as file:
        file.write(
            "# Which tests run which sources, by scripts/reach.py: the tests, then the sources.\n"
        )
        file.writelines(f"{test}\n" for test in tests)
        for source, of_it in sorted(reached.items()):
            file.write(f"{source}: {ranges(sorted(number[test] for test in of_it))}\n")


def ranges(numbers: list[int]) -> str:
    """Return numbers in order as "1-3 7"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in found)


def read() -> dict[str, set[str]]:
    """Return which tests each source reaches."""
    tests: list[str] = []
    reached: dict[str, set[str]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines()[1:]:
        source, colon, numbers = line.partition(": ")
        if not colon:
            tests.append(line)
            continue
        of_it = reached.setdefault(source, set())
        for part in numbers.split():
            first, _, last = part.partition("-")
            of_it.update(tests[int(first) : int(last or first) + 1])
    return reached


# What a change reaches.


def tracked() -> list[str]:
    """Return the paths of all files of the tree, those that are new as well."""
    return git("ls-files", "--cached", "--others", "--exclude-standard")


def git(*arguments: str) -> list[str]:
    """Return the lines of a command of git's."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"commensal: git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def text_of(path: str) -> str:
    """Return a file's text; empty for what is none, or is no longer there."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


class Reach:
    """Which tests each file of the tree reaches."""

    def __init__(self) -> None:
        self._recorded = read()
        self._files = tracked()
        self._folders: dict[str, set[str]] = defaultdict(set)
        for source, tests in self._recorded.items():
            self._folders[os.path.dirname(source)] |= tests

    @functools.cached_property
    def _includers(self) -> dict[str, set[str]]:
        """The files that include each header themselves."""
        found: dict[str, set[str]] = defaultdict(set)
        for path in self._files:
            if path.endswith((".h", ".cpp")):
                for header in re.findall(r'^#include "([^"]+)"', text_of(path), re.M):
                    found[header].add(path)
                    found[os.path.join(os.path.dirname(path), header)].add(path)
        return found

    def _sources_with(self, header: str) -> set[str]:
        """Return the sources that include a header, by others as well."""
        seen, waiting = {header}, [header]
        while waiting:
            more = self._includers[waiting.pop()] - seen
            seen |= more
            waiting += more
        return {path for path in seen if path.endswith(".cpp")}

    @functools.cached_property
    def _programs(self) -> str:
        """All that says which programs there are."""
        made_by = (f for f in self._files if f.startswith("tests/") and "cmake" in f.lower())
        return "".join(map(text_of, made_by))

    def is_there(self, test: str) -> bool:
        """Tell whether a test that was recorded is still there."""
        file, python, name = test.partition("::")
        if python:
            return f"def {name.rpartition('::')[2]}(" in text_of(file)
        return re.search(rf"\(\s*{test}\s", self._programs) is not None

    def of(self, path: str) -> set[str] | None:
        """Return the tests that a file reaches; None: all."""
        name = os.path.basename(path)
        if path in REACH_ALL or name == "CMakeLists.txt" or path.endswith(".cmake"):
            return None
        if path in self._recorded:
            return self._recorded[path]
        if path.endswith(".h"):
            found: set[str] = set()
            for source in self._sources_with(path):
                found |= self.of(source) or set()
            return found
        if re.fullmatch(r"tests/.*/test_\w+\.py", path):
            return {path}
        if path.endswith((".cpp", ".py")) and (folder := self._folders.get(os.path.dirname(path))):
            return folder
        return {test for test in self._files if is_python_test(test) and name in text_of(test)}


def is_python_test(path: str) -> bool:
    """Tell whether a file has tests in Python."""
    return re.fullmatch(r"tests/.*/test_\w+\.py", path) is not None


def changed(commit: str) -> list[str]:
    """Return the paths that differ from a commit."""
    since = git("diff", "--name-only", commit)
    return sorted({*since, *git("ls-files", "--others", "--exclude-standard")})


def tests(commit: str) -> int:
    """Print the tests that a change reaches, one a line: C++ programs, then Python's."""
    if not FILE.exists():
        print(f"{FILE.name} is not there: all tests, until `{__file__} record`", file=sys.stderr)
        print("all")
        return 0
    reach, found = Reach(), set[str]()
    for path in changed(commit):
        of_it = reach.of(path)
        if of_it is None:
            print(f"{path} can reach every test", file=sys.stderr)
            print("all")
            return 0
        found |= of_it
    whole = {test for test in found if is_python_test(test)}
    for test in sorted(found):
        if test in whole or (test.partition("::")[0] not in whole and reach.is_there(test)):
            print(test)
    return 0


# How long that takes.


def seconds_of_tests() -> dict[str, float]:
    """Return what each C++ program and each Python test takes, without parameters."""
    found: dict[str, float] = defaultdict(float)
    for line in DURATIONS.read_text(encoding="utf-8").splitlines()[1:]:
        took, _, name = line.partition(" ")
        name = re.sub(r"\[.*", "", name) if "::" in name else re.sub(r"\.\d+$", "", name)
        found[name] += float(took)
    return found


def list_all() -> int:
    """Print for every source what its tests take one by one, and how many they are."""
    seconds, recorded, all_of_it = seconds_of_tests(), read(), list[float]()
    for source in sorted(recorded):
        if source.startswith(SOURCES):
            took = sum(seconds.get(test, SHORT) for test in recorded[source])
            all_of_it.append(took)
            print(f"{took:.0f}\t{len(recorded[source])}\t{source}")
    print(f"median of {len(all_of_it)}: {sorted(all_of_it)[len(all_of_it) // 2]:.0f} s of tests")
    return 0


# How it is recorded.

_ARCS = 0x01A10000  # as gcov-io.h of GCC 12 has it: counts of a function


def executed(counts: bytes) -> bool:
    """Tell whether a file of gcov's has counts: where all are zero, their length is negative."""
    position = 16
    while position + 8 <= len(counts):
        tag, length = struct.unpack_from("<Ii", counts, position)
        position += 8
        if tag == _ARCS and length > 0:
            return True
        position += max(length, 0)
    return False


def sources_in(folder: Path) -> set[str]:
    """Return the sources that ran, of the counts in a folder, and remove it."""
    found = set()
    for file in folder.rglob("*.gcda"):
        if executed(file.read_bytes()):
            path = str(file).rpartition("/build/coverage/")[2].replace("__/", "../")
            name = re.sub(r"/CMakeFiles/[^/]+\.dir/", "/", path)
            found.add(os.path.normpath(name.removesuffix(".gcda")))
    shutil.rmtree(folder, ignore_errors=True)
    return found


def run_programs() -> Iterator[tuple[str, set[str]]]:
    """Run all C++ tests; give out the sources that each program has run."""
    asked = ["ctest", "--preset", "coverage", "-E", "^torch_python", "--show-only=json-v1"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    counts = BUILD / "reach"
    shutil.rmtree(counts, ignore_errors=True)

    def run(test: Mapping[str, list[str]]) -> str:
        program = Path(test["command"][0]).name
        environ = os.environ | {"GCOV_PREFIX": str(counts / program)}
        done = subprocess.run(
            test["command"], env=environ, capture_output=True, cwd=BUILD, check=False
        )
        if done.returncode:
            print(f"failed: {' '.join(test['command'])}", file=sys.stderr)
        return program

    runnable = [test for test in json.loads(listed)["tests"] if test.get("command")]
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        programs = set(pool.map(run, runnable))
    for program in programs:
        yield program, sources_in(counts / program)


# Of each process that a Python test starts, coverage.py notes what it runs.
_COVERAGE = """[run]
source_pkgs = commensal
parallel = true
patch = _exit
data_file = ${COMMENSAL_REACH}/python
"""


def build() -> None:
    """Build all with --coverage, and install it; the next set-up installs what users have."""
    (ROOT / ".venv" / ".commensal-build").unlink(missing_ok=True)
    flags = {
        "build-dir": "build/coverage",
        "cmake.build-type": "Debug",
        "cmake.define.COMMENSAL_UNITY": "OFF",
        "cmake.define.CMAKE_CXX_FLAGS": "--coverage -fprofile-update=atomic",  # as the preset
    }
    install = [
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--force-reinstall",
    ]
    chosen = [word for name, value in flags.items() for word in ("-C", f"{name}={value}")]
    subprocess.run([str(PYTHON), *install, *chosen, "."], cwd=ROOT, check=True)
    for step in (["--preset", "coverage"], ["--build", "--preset", "coverage"]):
        python = [
            f"-D{name}={PYTHON}" for name in ("COMMENSAL_PYTHON_EXECUTABLE", "Python_EXECUTABLE")
        ]
        chosen = python if step[0] == "--preset" else []
        subprocess.run(["cmake", *step, *chosen], cwd=ROOT, check=True)


def record() -> int:
    """Run all tests once, and write which sources each has run."""
    build()
    reached: dict[str, set[str]] = defaultdict(set)
    for program, sources in run_programs():
        for source in sources:
            reached[source].add(program)
    folder = BUILD / "reach"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coveragerc").write_text(_COVERAGE)
    environ = os.environ | {
        "COMMENSAL_FRESH_PROCESSES": "1",
        "COMMENSAL_TEST_LIBRARY_DIR": str(BUILD / "torch_ext"),
        "COMMENSAL_TEST_CUDA_LIBRARY_DIR": str(BUILD / "torch_ext" / "cuda"),
        "COMMENSAL_REACH": "yes",
        "PYTHONPATH": str(ROOT / "scripts"),
    }
    # Many a test runs nothing of ours in its own process, which coverage.py warns of.
    python = [str(PYTHON), "-m", "pytest", "-q", "-p", "reach", "--disable-warnings"]
    at_a_time = ["-n", str(os.cpu_count() or 1), "--dist", "loadfile"]
    subprocess.run([*python, *at_a_time], cwd=ROOT, env=environ, check=False)
    for file in folder.glob("*.tsv"):
        for line in file.read_text(encoding="utf-8").splitlines():
            test, _, ran = line.partition("\t")
            for source in ran.split():
                reached[source].add(test)
    write(reached)
    return 0


def name_of(item: pytest.Item) -> str:
    """Return a test's name without parameters; its file, where tests share what runs."""
    scopes = {
        found[-1].scope
        for name, found in item._fixtureinfo.name2fixturedefs.items()  # type: ignore[attr-defined]
    }
    file = item.path.relative_to(ROOT).as_posix()
    if {"class", "module"} & scopes:
        return file
    return f"{file}::{item.nodeid.partition('::')[2].partition('[')[0]}"


def python_sources(paths: Iterable[str]) -> set[str]:
    """Return the sources of what is installed."""
    installed = (path.partition("/site-packages/commensal/") for path in paths)
    return {f"python/commensal/{name}" for _, found, name in installed if found}


def measured(data: CoverageData) -> set[str]:
    """Return the files of which a line has run."""
    return {file for file in data.measured_files() if data.lines(file)}


if "COMMENSAL_REACH" in os.environ:  # in pytest
    import coverage
    import pytest
    from coverage import CoverageData

    _folder = BUILD / "reach" / str(os.getpid())
    _own = coverage.Coverage(data_file=None, source_pkgs=["commensal"], config_file=False)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
        """Note what a test runs, in its processes and in ours."""
        os.environ["GCOV_PREFIX"] = os.environ["COMMENSAL_REACH"] = str(_folder)
        os.environ["COVERAGE_PROCESS_START"] = str(BUILD / "reach" / "coveragerc")
        _folder.mkdir(exist_ok=True)
        _own.erase()
        _own.start()
        yield
        _own.stop()
        paths = set[str]()
        with contextlib.suppress(coverage.CoverageException):  # nothing of ours ran
            paths |= measured(_own.get_data())
        for file in _folder.glob("python.*"):
            data = CoverageData(str(file))
            with contextlib.suppress(coverage.CoverageException):  # of a process that was killed
                data.read()
                paths |= measured(data)
        ran = sources_in(_folder) | python_sources(paths)
        with (BUILD / "reach" / f"{os.getpid()}.tsv").open("a", encoding="utf-8") as notes:
            notes.write(f"{name_of(item)}\t{' '.join(sorted(ran))}\n")


def main() -> int:
    """Do what is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked = parser.add_subparsers(dest="what", required=True)
    asked.add_parser("tests").add_argument("commit", nargs="?", default="HEAD")
    asked.add_parser("list")
    asked.add_parser("record")
    given = parser.parse_args()
    if given.what == "tests":
        return tests(given.commit)
    return list_all() if given.what == "list" else record()


if __name__ == "__main__":
    sys.exit(main())
