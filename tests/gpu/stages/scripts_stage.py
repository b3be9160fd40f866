# SPDX-License-Identifier: Apache-2.0
"""Unmodified training scripts, alone and under commensal: their losses must be the same bits.

    scripts_stage.py --out FOLDER [--only NAME]...

Each of `workloads.py` runs with plain PyTorch, as a guaranteed and as an opportunistic job, on the
same seeds. In a dry run stand-ins are trained, whose losses are checksums of what they were fed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stack_dump import LATE, run_within
from stage_report import TIME_WAS_UP, StageReport, on_simulated_driver

HERE = Path(__file__).resolve().parent
# In this order: what is cut off at the end of the stage's time matters least.
NAMES = (
    "resnet",
    "gpt_compiled",
    "gpt_graphs",
    "ddp",
    "loader",
    "trainer",
    "lightning",
)
PACKAGES = {"trainer": "transformers", "lightning": "lightning"}
PUBLIC_TESTS = "PyTorch's own tests are in no wheel and in no package: nothing to bundle"
KERNELS_DO_NOTHING = "kernels do nothing on this driver"
NOT_ALONE = "other stages ran beside it"


@dataclass(frozen=True)
class Ran:
    """How one run of a script ended; `told` is what it wrote."""

    code: int
    told: dict[str, Any]
    tail: str

    @property
    def median_seconds(self) -> float:
        """Of a step, without the first three, in which things are built."""
        seconds = self.told["seconds"]
        return statistics.median(seconds[3:] or seconds)


def run(name: str, folder: Path, launcher: list[str], deadline: float) -> Ran:
    """Run one script; a run that takes longer than until `deadline` is ended and says so."""
    result = folder / f"{name}.{'alone' if not launcher else launcher[2].strip('-')}.json"
    steps = "4" if on_simulated_driver() else "12"
    command = [*launcher, sys.executable, str(HERE / "workloads.py"), name]
    command += ["--steps", steps, "--result", str(result)]
    if on_simulated_driver():
        command.append("--stand-in")
    environment = os.environ | {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # PyTorch's deterministic settings want it
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "COMMENSAL_GPU_MEMORY": "elastic",  # of a guaranteed job it is native
        "COMMENSAL_RUNTIME_DIR": str(folder / "run"),
    }
    code, tail = run_within(command, deadline - time.monotonic(), environment)
    return Ran(code, json.loads(result.read_text()) if code == 0 else {}, tail)


def same_losses(report: StageReport, name: str, alone: Ran, job: Ran, job_class: str) -> bool:
    """Check one run against the one alone."""
    if job.code != 0:
        return report.check(f"{name}: {job_class} job ran", False, job.tail)
    losses, expected = job.told["losses"], alone.told["losses"]
    equal = sum(a == b for a, b in zip(losses, expected, strict=False))
    return report.check(
        f"{name}: losses of the {job_class} job are those alone",
        bool(expected) and losses == expected,
        f"{equal} of {len(expected)} steps",
    )


def without(report: StageReport, figures: Sequence[str], reason: str) -> None:
    for figure in figures:
        report.not_run(figure, reason)


def compare(report: StageReport, name: str, folder: Path, deadline: float) -> None:
    """Run one script in its three ways, and tell."""
    figures = [f"{name}.step_ratio.{kind}" for kind in ("guaranteed", "opportunistic")]
    figures.append(f"{name}.reserved_peak_ratio")
    begin = time.monotonic()
    alone = run(name, folder, [], deadline) if begin < deadline else None
    if alone is None or alone.code == LATE:
        without(report, figures, TIME_WAS_UP)
        return
    took = time.monotonic() - begin
    package = PACKAGES.get(name)
    if package and alone.code != 0 and f"No module named '{package}'" in alone.tail:
        without(report, figures, f"no package {package}")
        return
    if not report.check(f"{name}: runs alone", alone.code == 0, alone.tail if alone.code else ""):
        without(report, figures, "it does not run alone")
        return
    for number, job_class in enumerate(("guaranteed", "opportunistic")):
        # Beyond twice what it takes alone it hangs, and fails; for less it is not begun.
        if time.monotonic() + 2.0 * took > deadline:
            without(report, figures[number:], TIME_WAS_UP)
            return
        launcher = [shutil.which("commensal") or "commensal", "run", f"--{job_class}", "--quiet"]
        job = run(name, folder, [*launcher, "--"], deadline)
        same_losses(report, name, alone, job, job_class)
        tell_steps(report, figures[number], alone, job)
    if job.code != 0:
        report.not_run(figures[-1], "the job failed")
        return
    ratio = job.told["reserved_peak_bytes"] / alone.told["reserved_peak_bytes"]
    report.value(figures[-1], ratio, "x", alone_bytes=alone.told["reserved_peak_bytes"])
    report.check(
        f"{name}: as many blocks live at the end as alone",
        job.told["live"] == alone.told["live"],
        f"{job.told['live']}, {alone.told['live']} alone",
    )


def tell_steps(report: StageReport, figure: str, alone: Ran, job: Ran) -> None:
    """Record how long steps took, if they were timed."""
    if job.code != 0:
        report.not_run(figure, "the job failed")
    elif on_simulated_driver():
        report.not_simulated(figure, KERNELS_DO_NOTHING)
    elif os.environ.get("STAGE_BESIDE"):
        report.not_run(figure, NOT_ALONE)
    else:
        report.value(figure, job.median_seconds / alone.median_seconds, "x")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=NAMES, metavar="NAME")
    arguments = parser.parse_args(argv)
    names = arguments.only or NAMES
    # Where the stage ends soon, what was measured is told in time.
    seconds = float(os.environ.get("STAGE_SECONDS") or 540) - 15
    deadline = time.monotonic() + seconds
    kinds = ("step_ratio.guaranteed", "step_ratio.opportunistic", "reserved_peak_ratio")
    figures = [f"{name}.{kind}" for name in names for kind in kinds]
    report = StageReport("scripts", arguments.out, [*figures, "pytorch_allocator_tests"])
    report.not_run("pytorch_allocator_tests", PUBLIC_TESTS)
    with tempfile.TemporaryDirectory() as folder:
        runtime = Path(folder) / "run"
        runtime.mkdir(mode=0o700)
        with coordinator(runtime):
            for name in names:
                if report.take(name) is None:
                    with report.part(name):
                        compare(report, name, Path(folder), deadline)
    return report.finish()


class coordinator:  # noqa: N801  # used as a function
    """A node coordinator of this stage's own, in a folder of its own."""

    def __init__(self, runtime: Path) -> None:
        command = [shutil.which("commensald") or "commensald", "--foreground"]
        command += ["--runtime-dir", str(runtime)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
