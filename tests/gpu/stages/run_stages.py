# SPDX-License-Identifier: Apache-2.0
"""Everything that only a GPU can answer, in stages, on a machine with PyTorch and one card. Needs
no network, no CUDA toolkit (headers of the wheels beside torch will do) and no CMake.

  tests/gpu/run_all.sh                          all stages, 24 minutes at most
  tests/gpu/run_all.sh probes adaptor           some, 9 minutes each
  tests/gpu/run_all.sh --within 600 pair-e1 figures    some, in 600 s together: each gets at least
                      what it needs, and what is left by what it wants
  tests/gpu/run_all.sh --simulated FOLDER [STAGE...]   a dry run on the simulated driver, whose
                      libraries are in FOLDER (build/release/tests/simulated_cuda)
  OUT=FOLDER   where results go (build/gpu-results)    PYTHON=python3  the one that has torch
  KEPT=FOLDER  what was measured so far (kept, beside OUT): it is not measured again
  BUNDLE=FOLDER  what tests/gpu/bundle.sh collected, for a machine that lacks it
  BUILD=FOLDER   where things are built (build/gpu)
  GTEST_ROOT=FOLDER  GoogleTest's include/ and lib/, where the system has none (stages memory and
                 rules); default: BUNDLE
  PRODUCT=installed  use the commensal that PYTHON has instead of building this tree's

Stage `build` comes first by itself where these sources are not built yet. Stages that only check
(adaptor, memory, rules, scripts) run side by side; those that measure run alone.

After each stage OUT/run.json says what ran and how it ended, and OUT/results.tar.gz has it all: in
another KEPT, unpacked, it is what the next run goes on with.
Exit code: 0 all stages passed, 1 one failed, 2 usage, 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from card import card_name, short_name
from stage_plan import LINKED, STAGES, Stage, TooLittleTime, Unit, shares, units
from stage_process import StageProcess
from stage_results import Results, sources_key
from toolchain import ROOT, NoToolchain, toolchain

STAGES_SH = ROOT / "tests" / "gpu" / "stages.sh"
ALL_SECONDS, NAMED_SECONDS = 1440, 540
POLL_SECONDS = 0.05
END_SECONDS = 5.0  # of a stage's share: to end what hangs, and to pack


class Refusal(Exception):
    """Nothing is run; the exit code and why."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refusal(2, message)


def seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10**6:
        raise argparse.ArgumentTypeError(f"no number of seconds: '{text}'")
    return int(text)


def simulated_driver(text: str) -> Path:
    if not (Path(text) / "libcuda.so.1").exists():
        raise argparse.ArgumentTypeError(f"no simulated driver (libcuda.so.1) in '{text}'")
    return Path(text).resolve()


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("run_all", add_help=False)
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--within", type=seconds, metavar="SECONDS")
    parser.add_argument("--simulated", type=simulated_driver, metavar="FOLDER")
    parser.add_argument("stages", nargs="*")
    arguments = parser.parse_intermixed_args(argv)
    for name in arguments.stages:
        if name not in STAGES:
            raise Refusal(2, f"no such stage: {name} ({' '.join(STAGES)})")
    arguments.stages = list(dict.fromkeys(arguments.stages))
    return arguments


def check_bundle(where: str) -> None:
    """Raises Refusal if this Python cannot use what was collected."""
    try:
        python = json.loads((Path(where) / "bundle.json").read_text())["python"]
    except (OSError, ValueError, KeyError, TypeError):
        raise Refusal(2, f"no bundle.json in '{where}': tests/gpu/bundle.sh makes it") from None
    ours = "{}.{}".format(*sys.version_info)
    if python != ours:
        raise Refusal(
            2,
            f"'{where}' is for Python {python}, this is {ours}: make it with BUNDLE_PYTHON={ours}, "
            "or choose another PYTHON",
        )


class Run:
    """One call of `run_all.sh`."""

    def __init__(self, arguments: argparse.Namespace, given: Mapping[str, str]) -> None:
        """Raises Refusal if it cannot begin."""
        self._begin = time.monotonic()
        if where := given.get("BUNDLE"):
            check_bundle(where)
        try:
            self._environment = toolchain(given)
        except NoToolchain as missing:
            raise Refusal(2, str(missing)) from None
        simulated: Path | None = arguments.simulated
        name, why = ("simulated", "") if simulated else card_name()
        if not name and arguments.stages != ["build"]:
            raise Refusal(3, f"there is no GPU: {why}")
        installed = self._environment["PRODUCT"] == "installed"
        self._key = sources_key(installed=installed, simulated=simulated)
        out = Path(given.get("OUT") or ROOT / "build" / "gpu-results").absolute()
        self._results = Results(
            out,
            Path(given.get("KEPT") or out.parent / "kept").absolute(),
            short_name(name) if name else "none",
            self._key,
            simulated=simulated is not None,
            card_name=name,
            python=platform.python_version(),
            torch=self._environment["torch_version"],
        )
        self._environment |= {
            "OUT": str(self._results.folder),
            "STAGE_CARD": self._results.card,
            "STAGE_KEY": f"{self._results.card} {self._key}",
            "simulated": str(simulated or ""),
        }
        self._planned = self._plan(arguments.stages or list(STAGES))
        every = NAMED_SECONDS * len(self._planned) if arguments.stages else ALL_SECONDS
        self._seconds = arguments.within or every
        self._shares(self._seconds)  # refuses what does not fit
        try:
            self._results.make_folders()
        except OSError as error:
            raise Refusal(2, f"cannot keep results: {error}") from None

    def _plan(self, names: list[str]) -> list[Unit]:
        """Return what is to run: what is not kept, on sources that are built."""
        chosen: list[Stage] = []
        for name in names:
            if (when := self._results.done(name)) and name != "build":
                say(f"{name}: kept from {when}")
            else:
                chosen.append(STAGES[name])
        building = STAGES["build"]
        if chosen and building not in chosen and not self._is_built():
            chosen.insert(0, building)
        compiled = Path(self._environment["work"]), Path(self._environment["carried"])
        if any((folder / "allocator").is_dir() for folder in compiled):
            chosen = [LINKED if stage is building else stage for stage in chosen]
        return units(chosen)

    def _built(self) -> Path:
        return Path(self._environment["work"], "built")

    def _is_built(self) -> bool:
        built = self._built()
        return built.exists() and built.read_text() == self._key

    def _shares(self, left: float) -> list[float]:
        try:
            return shares(self._planned, left) if self._planned else []
        except TooLittleTime as little:
            raise Refusal(2, str(little)) from None

    def measure(self) -> int:
        """Run the stages; return 1 if one failed or was not reached."""
        passed = True
        try:
            while self._planned:
                passed = self._next() and passed
                passed = self._pack() and passed
        finally:  # a run that is ended leaves what it has
            passed = self._pack() and passed
        return 0 if passed else 1

    def _next(self) -> bool:
        """Run the first unit that is planned; tell whether all of it passed."""
        left = self._begin + self._seconds - time.monotonic()
        try:
            share = self._shares(left)[0]
        except Refusal:  # one before took longer than its share: the first of the rest goes on
            share = max(stage.least for stage in self._planned[0])
        unit = self._planned.pop(0)
        if share <= left:
            return self._run(unit, share - END_SECONDS)
        for stage in unit:
            say(f"{stage.name}: not run, {max(0.0, left):.0f} s are left")
            self._results.note(stage.name, None, reason="there was no time left")
        return False

    def _pack(self) -> bool:
        try:
            self._results.pack()
        except OSError as error:
            say(f"results are not packed: {error}")
            return False
        return True

    def _run(self, unit: Unit, limit: float) -> bool:
        """Run stages side by side; tell whether all passed."""
        beside = {"STAGE_BESIDE": "1"} if len(unit) > 1 else {}
        environment = {**self._environment, "STAGE_SECONDS": f"{limit:.0f}", **beside}
        begin = time.monotonic()
        codes = []
        with contextlib.ExitStack() as stack:
            running: dict[Stage, StageProcess] = {}
            for stage in unit:
                say(f"{stage.name}: {limit:.0f} s")
                log, command = self._results.log(stage.name), [str(STAGES_SH), stage.name]
                running[stage] = StageProcess(stage.name, command, log, environment)
                stack.callback(running[stage].end)
                self._results.note(stage.name, None, reason="it was not done when the run ended")
            while running:
                late = time.monotonic() > begin + limit
                for stage, process in list(running.items()):
                    if late or process.ended():
                        codes.append(process.wait())
                        self._note(stage, codes[-1], time.monotonic() - begin, limit)
                        del running[stage]
                time.sleep(POLL_SECONDS)
        return not any(codes)

    def _note(self, stage: Stage, code: int, took: float, limit: float) -> None:
        self._results.note(stage.name, code, seconds=round(took, 1), limit=round(limit, 1))
        left = self._results.left(stage.name)
        rest = f"; {len(left)} left for another run" if left else ""
        say(f"{stage.name}: code {code} after {took:.0f} s{rest}")
        if stage.name == "build" and code == 0:
            self._built().write_text(self._key)


def say(words: str) -> None:
    print(f"== {words}", file=sys.stderr, flush=True)


def end_with_stages() -> None:
    """Have signals that end this process end its stages, too; none leaves a core."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # stacks are dumped by SIGABRT


def main(argv: Sequence[str]) -> int:
    try:
        arguments = parse(argv)
        if arguments.help:
            print((__doc__ or "").strip())
            return 0
        return Run(arguments, os.environ).measure()
    except Refusal as refusal:
        print(f"run_all: {refusal}", file=sys.stderr)
        return refusal.code


if __name__ == "__main__":
    end_with_stages()
    sys.exit(main(sys.argv[1:]))
