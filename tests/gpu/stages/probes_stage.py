# SPDX-License-Identifier: Apache-2.0
"""Asks a card the questions of `commensal-gpu-probes`; those that are kept are not asked again.

    probes_stage.py PROGRAM --out FOLDER

Writes `probes.json` as the program does, with the answers of earlier runs; `left` names questions
that there was no time for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kept_parts import KeptParts, result_file

END_SECONDS = 5.0  # of the stage's time


def ask(program: str, questions: Sequence[str], out: Path, seconds: float) -> int:
    """Ask questions until the time is up; return the program's exit code, 0 where it was ended."""
    command = [program, "--out", str(out)]
    for question in questions:
        command += ["--only", question]
    process = subprocess.Popen(command)
    try:
        return process.wait(max(1.0, seconds))
    except subprocess.TimeoutExpired:
        process.kill()  # the question under way ends with it
        process.wait()
        return 0


def questions_of(program: str) -> list[str]:
    told = subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return [line.split()[0] for line in told.stdout.splitlines()]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(argv)
    kept = KeptParts("probes", arguments.out)
    questions = questions_of(arguments.program)
    wanted = [question for question in questions if question not in kept.parts]
    report: dict[str, Any] = kept.parts.get("report", {})
    answers = {question: kept.parts[question] for question in questions if question in kept.parts}
    code = 0
    if wanted:
        seconds = float(os.environ.get("STAGE_SECONDS") or 540) - END_SECONDS
        with tempfile.TemporaryDirectory() as folder:
            new = Path(folder) / "probes.json"
            code = ask(arguments.program, wanted, new, seconds)
            if new.exists():
                report = json.loads(new.read_text())
                answers |= {answer["id"]: answer for answer in report.pop("probes")}
    report["left"] = [question for question in questions if question not in answers]
    report["probes"] = [answers[question] for question in questions if question in answers]
    result_file(arguments.out, "probes.json").write_text(json.dumps(report, indent=1) + "\n")
    for question in wanted:
        if question in answers and answers[question]["status"] != "failed":
            kept.put(question, answers[question])
    kept.put("report", {name: told for name, told in report.items() if name != "probes"})
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
