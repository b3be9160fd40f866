# SPDX-License-Identifier: Apache-2.0
"""Slurm's commands as a twin uses them. What cannot be asked or done is an answer, no exception."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from commensal.slurm_auto._pair import Twin

__all__ = ["Done", "Slurm", "devices_from", "run_command", "twins_from"]

_MOST_DIGITS = 4  # of a device's number on its node
_PATIENCE = 30.0  # seconds; when the controller is away a command hangs for its own time


@dataclass(frozen=True)
class Done:
    """How a command ended; `problem` is its first line on stderr, or why it could not be run."""

    code: int
    output: str
    problem: str = ""


def run_command(words: Sequence[str]) -> Done:
    """Run a program without a shell, for half a minute at most."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Done(-1, "", str(error))
    return Done(done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[0])


def marked_from(output: str) -> Iterator[tuple[str, str, Twin]]:
    """Read `squeue` in the columns of `Slurm.twins`: pair and class of each job of a pair."""
    for line in output.splitlines():
        words = line.split()
        if len(words) == 3 and words[0].isdigit():
            mark, _, name = words[2].rpartition(":")
            kind, _, pair = mark.partition(":")
            if kind == "commensal-auto":
                yield pair, name, Twin(int(words[0]), words[1])


def twins_from(output: str, pair: str) -> dict[str, Twin]:
    """Read the jobs of a pair by class."""
    return {name: twin for of, name, twin in marked_from(output) if of == pair}


def devices_from(output: str, kind: str) -> dict[str, set[int]]:
    """Read devices of a kind by node from `scontrol --oneliner show job -d` of one job.

    They are what stands directly before "MinCPUsNode=". Fields of the job's user (name, command,
    comment) may hold the same words: where there are two such places, none is taken. The names of
    nodes may stand for several ("n[1-2]"). Nodes without one have an empty set.
    """
    words = output.split()
    ends = [at for at, word in enumerate(words) if word.startswith("MinCPUsNode=")]
    if len(ends) != 1:
        return {}
    found: dict[str, set[int]] = {}
    for at in range(ends[0] - 4, -1, -4):
        entry = words[at : at + 4]
        names = ("Nodes=", "CPU_IDs=", "Mem=", "GRES=")
        if not all(word.startswith(name) for word, name in zip(entry, names, strict=True)):
            break
        nodes, gres = entry[0].removeprefix("Nodes="), entry[3].removeprefix("GRES=")
        found.setdefault(nodes, set()).update(_numbers(gres, kind))
    return found


def _numbers(gres: str, kind: str) -> set[int]:
    """The numbers of a kind in "gpu:a100:3(IDX:0,2-3),seat:1(IDX:5)"."""
    numbers: set[int] = set()
    for part in gres.replace("),", ")\n").split("\n"):
        name, index, inside = part.partition("(IDX:")
        if not name.startswith(f"{kind}:") or not index or not inside.endswith(")"):
            continue
        for one in inside[:-1].split(","):
            first, dash, last = one.partition("-")
            ends = (first, last) if dash else (first, first)
            if all(word.isdecimal() and len(word) <= _MOST_DIGITS for word in ends):
                numbers.update(range(int(ends[0]), int(ends[1]) + 1))
    return numbers


class Slurm:
    """The commands, with `run` to run them. Programs are found in the PATH."""

    def __init__(self, run: Callable[[Sequence[str]], Done] = run_command) -> None:
        self._run = run

    def twins(self, pair: str) -> dict[str, Twin] | None:
        """Return the jobs of a pair by class; nothing if Slurm does not answer."""
        output = self._jobs()
        return None if output is None else twins_from(output, pair)

    def pairs(self) -> set[str] | None:
        """Return the pairs that have a job which is not over; nothing if Slurm does not answer."""
        output = self._jobs()
        if output is None:
            return None
        return {pair for pair, _, twin in marked_from(output) if not twin.is_over}

    def _jobs(self) -> str | None:
        columns = "--Format=JobID:20,State:20,admin_comment:80"
        done = self._run(["squeue", "--me", "--noheader", "--states=all", columns])
        return done.output if done.code == 0 else None

    def devices(self, job: int, kind: str) -> dict[str, set[int]] | None:
        """Return a running job's devices by node; nothing if Slurm does not answer."""
        done = self._run(["scontrol", "--oneliner", "show", "job", "-d", str(job)])
        if done.code != 0:
            return None
        devices: dict[str, set[int]] = {}
        for nodes, numbers in devices_from(done.output, kind).items():
            names = [nodes]
            if "[" in nodes:
                told = self._run(["scontrol", "show", "hostnames", nodes])
                if told.code != 0:
                    return None
                names = told.output.split()
            for name in names:
                devices.setdefault(name, set()).update(numbers)
        return devices

    def hides_devices(self) -> bool:
        """Return whether a job sees only devices that Slurm gave it, numbered from 0."""
        done = self._run(["scontrol", "show", "config"])
        lines = [line.lower().split() for line in done.output.splitlines()]
        return ["constraindevices", "=", "yes"] in lines

    def hold(self, job: int) -> bool:
        return self._run(["scontrol", "hold", str(job)]).code == 0

    def release(self, job: int) -> bool:
        return self._run(["scontrol", "release", str(job)]).code == 0

    def cancel(self, job: int) -> bool:
        return self._run(["scancel", "--quiet", str(job)]).code == 0

    def cancel_waiting(self, job: int) -> bool:
        return self._run(["scancel", "--quiet", "--state=PENDING", str(job)]).code == 0

    def bind(self, job: int, nodes: str) -> bool:
        """Let a waiting job start on these nodes only."""
        return self._run(["scontrol", "update", f"JobId={job}", f"ReqNodeList={nodes}"]).code == 0

    def requeue(self, job: int) -> Done:
        return self._run(["scontrol", "requeue", str(job)])

    def run_on(self, job: int, node: str, words: Sequence[str]) -> Done:
        """Run a program on a node of a job of one's own."""
        where = [f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
        return self._run(["srun", *where, "--gres=none", "--mpi=none", "--quiet", *words])
