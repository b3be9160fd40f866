# SPDX-License-Identifier: Apache-2.0
"""Two jobs share one GPU under several laws: what the guaranteed one loses, the other one gets.

    pair_stage.py e1|e2|e3|JOB[:BUSY]+JOB --out FOLDER [--modes MODE,...] [--pairs N] [--seconds S]

Both jobs (`pair_job.py`) run under `commensal run` with elastic memory and a node coordinator of
this stage's own, from the first window to the last; the opportunistic one is paused for every
second window, and paced by another law in each mode. In G1 each batch is loaded for so long that
the job keeps the GPU busy for BUSY of the time; nothing of that wait is in a step.

Windows get shorter, or fewer, if STAGE_SECONDS is not enough; with `--seconds` only fewer. Pairs
are kept (`kept_parts.py`): a later run takes windows of the same length, and measures those that
are missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_sensors import NoSensors, Sensors, nvml_reader
from kept_parts import result_file
from pair_figures import (
    DROPPED,
    Pair,
    PairRecord,
    Span,
    busy_share,
    durations,
    oracle,
    plan,
    progress,
)
from pair_modes import (
    EQUAL,
    FIRST,
    KERNELS_DO_NOTHING,
    MEMORY_GIB,
    MODES,
    OURS,
    SHORT_OPS,
    Jobs,
    Mode,
    figures_of,
)
from pair_process import JobDied, PairProcess
from pair_report import tell_sensors, tell_sharing, tell_tail
from scripts_stage import coordinator
from stage_report import TIME_WAS_UP, StageReport, on_simulated_driver

from commensal._coordinator import Coordinator, Refused, Unreachable
from commensal._quantities import ShareRange
from commensal._terms import JobTerms

GUARANTEED, OPPORTUNISTIC = "guaranteed", "opportunistic"
FINISH_SECONDS = 20.0  # for what comes after the last window
REACTION_SECONDS = 6.0
PATIENCE = 60.0  # for what a coordinator does within a second
STAND_IN_STALL = 0.01
WINDOW_SECONDS = 8.0


@dataclass
class Stage:
    """One pair of jobs, from their start to their end."""

    jobs: Jobs
    modes: Sequence[str]
    pairs: int
    seconds: float
    equal_pairs: int
    report: StageReport
    record: PairRecord
    deadline: float
    guaranteed: PairProcess
    other: PairProcess
    node: Coordinator
    settled: float = 1.0  # part of what modes are given to learn
    sensors: Sensors | None = None
    active: list[Span] = field(default_factory=list)  # when the other job was not paused
    others: list[list[float]] = field(default_factory=list)  # its steps in this mode

    def left(self) -> float:
        return self.deadline - time.monotonic()

    # What the jobs are told.

    def pace(self, law: str, share: float = 1.0) -> None:
        self.node.set(OPPORTUNISTIC, terms=JobTerms(law=law, share=ShareRange(0.0, share)))
        seen = ""
        end = time.monotonic() + PATIENCE
        while seen != law and time.monotonic() < end:
            seen = self.other.ask("stats")["law"]
            time.sleep(0.01)
        if seen != law:
            raise JobDied(f"{OPPORTUNISTIC} is paced by {seen}, not by {law}")

    def pause(self) -> None:
        self.node.set(OPPORTUNISTIC, paused=True)
        if self.active and self.active[-1][1] == float("inf"):
            self.active[-1] = self.active[-1][0], time.monotonic()

    def resume(self) -> None:
        self.active.append((time.monotonic(), float("inf")))
        self.node.set(OPPORTUNISTIC, paused=False)

    # Windows.

    def watch(
        self, seconds: float, *, both: bool
    ) -> tuple[Span, list[list[float]], list[list[float]]]:
        """Return a window, and the steps that ended in it of the guaranteed and the other job."""
        self.guaranteed.ask("take")
        begin = time.monotonic()
        time.sleep(seconds)
        mine: list[list[float]] = []
        others: list[list[float]] = []
        # In a dry run a window is as long as it takes to see that both work.
        patience = begin + (PATIENCE if on_simulated_driver() else 0.0)
        while True:
            end = time.monotonic()
            told = self.guaranteed.ask("take")
            mine += told["steps"]
            if both:
                others += self.other.ask("take")["steps"]
            if end > patience or (len(mine) >= 3 and (others or not both)):
                break
            time.sleep(0.02)
        if told["since"] is not None:
            mine.append([told["since"], float("inf"), 0.0])
        return (begin, end), mine, others

    def clock(self, span: Span) -> float | None:
        return self.sensors.median_clock(*span) if self.sensors else None

    def pair(self, *, alone_twice: bool = False) -> tuple[Pair, Span]:
        """Measure a window alone and one beside the other job (or alone again).

        Returns them with the part of the second one that counts; progress in it is still to come.
        """
        alone, mine, _ = self.watch(self.seconds, both=False)
        if not alone_twice:
            self.resume()
        shared, beside, others = self.watch(self.seconds, both=not alone_twice)
        if not alone_twice:
            self.pause()
            self.others += others
        first = shared[0] + DROPPED * (shared[1] - shared[0]), shared[1]
        found = Pair(
            alone=durations(mine, *alone),
            shared=durations(beside, *shared),
            progress=0.0,
            seconds=first[1] - first[0],
            busy=busy_share(mine, *alone),
            alone_mhz=self.clock(alone),
            shared_mhz=self.clock(shared),
        )
        return found, first

    def fill(self, name: str, wanted: int, mode: Mode | None = None) -> None:
        """Measure the pairs of a mode that are missing, as long as there is time; None: of A/A."""
        found = self.record.modes.setdefault(name, [])
        one = 2.0 * self.seconds + 1.0
        settle = self.settled * mode.settle if mode else 0.0
        if len(found) >= wanted or self.left() < settle + one:
            return
        if mode is not None:
            self.settle(mode, settle)
        before = len(found)
        windows: list[Span] = []
        while len(found) < wanted and self.left() > one:
            new, window = self.pair(alone_twice=mode is None)
            found.append(new)
            windows.append(window)
            if mode is not None:
                time.sleep(0.05)  # for what was in its queue
                told = self.other.ask("take")
                self.others += told["steps"]
                # A step that is held back for long ends in a later window than it began in.
                for index, span in enumerate(windows, before):
                    made = progress(self.others, told["since"], self.active, span)
                    found[index] = replace(found[index], progress=made)
            self.record.keep(self.report.kept)

    # The parts of the stage.

    def calibrate(self) -> None:
        """Run each job alone: for the first cycle of losses, the stall, and the rate."""
        found = self.record.calibration
        least = 3.0 if not on_simulated_driver() else 0.1
        self.pace("open")
        steps = self.alone(self.guaranteed, least)
        typical = statistics.median(step[1] - step[0] for step in steps)
        issued = statistics.median(step[2] for step in steps)
        stall = STAND_IN_STALL if on_simulated_driver() else 0.0
        if self.jobs.busy is not None and not on_simulated_driver():
            stall = max(0.0, typical / self.jobs.busy - issued)
        found.setdefault("stall_seconds", stall)
        steps = self.alone(self.other, least)
        found.setdefault("alone_rate", (len(steps) - 1) / (steps[-1][1] - steps[0][1]))
        self.report.machine(step_seconds=typical, issue_seconds=issued, **found)
        self.record.keep(self.report.kept)

    def alone(self, job: PairProcess, seconds: float) -> list[list[float]]:
        """Let a job work for a while and at least a cycle."""
        job.ask("go")
        begin = time.monotonic()
        steps: list[list[float]] = []
        while len(steps) < 10 or time.monotonic() < begin + seconds:
            time.sleep(0.02)
            steps += job.ask("take")["steps"]
            if time.monotonic() > begin + seconds + 60.0:
                raise JobDied(f"{job.name} made {len(steps)} steps alone in {seconds + 60:.0f} s")
        job.ask("stop", 120.0)
        told = job.ask("losses")
        self.report.check(
            f"losses of the {job.name} job alone repeat themselves",
            told["compared"] > 0 and told["different"] == 0,
            f"{told['compared'] - told['different']} of {told['compared']} steps",
        )
        return steps + job.ask("take")["steps"]

    def plan(self, *, shorten: bool) -> None:
        """Find out how much fits into the time."""
        if on_simulated_driver():
            self.settled = 0.0
        elif shorten:
            settling = [MODES[mode].settle for mode in self.modes]
            chosen = plan(self.left(), settling, self.pairs, self.seconds)
            self.pairs, self.seconds = chosen.pairs, chosen.seconds
            self.equal_pairs = chosen.equal_pairs
        self.record.seconds = self.seconds
        self.report.machine(pairs=self.pairs, window_seconds=self.seconds)

    def measure(self) -> None:
        """Measure all modes."""
        self.guaranteed.ask(f"stall {self.record.calibration['stall_seconds']!r}")
        self.pause()
        self.guaranteed.ask("go")
        self.other.ask("go")
        self.fill(EQUAL, self.equal_pairs)
        for mode in self.modes:
            before = self.other.ask("stats")["ops_seen_total"]
            self.fill(mode, self.pairs, MODES[mode])
            found = self.record.modes[mode]
            if not found:
                continue
            stats = self.other.ask("stats")
            passed = stats["ops_seen_total"] - before
            made = sum(pair.progress for pair in found)
            # A law may leave so little that no step ends; then its ops tell that it goes on.
            self.report.check(
                f"{mode}: both jobs went on",
                all(pair.shared for pair in found) and (made > 0.0 or passed > 0),
                f"{sum(len(pair.shared) for pair in found)} steps, and {made:.1f}",
            )
            if MODES[mode].law != "open" and stats["law"] == MODES[mode].law:
                self.report.check(f"{mode}: ops passed the gate", passed > 0, passed)
        self.pace("open")
        self.resume()
        for job in (self.other, self.guaranteed):
            job.ask("stop", 120.0)

    def settle(self, mode: Mode, seconds: float) -> None:
        """Change to a mode's law, and let it learn beside both jobs."""
        busy = [pair.busy for pairs in self.record.modes.values() for pair in pairs]
        share = 1.0
        if mode.knows_oracle:
            least = oracle(statistics.median(busy)) if busy else 0.0
            share = round(min(1.0, max(0.02, least)), 2)
        self.pace(mode.law, share)
        self.resume()
        time.sleep(seconds)
        self.pause()
        time.sleep(0.05)
        self.others = self.other.ask("take")["steps"][-1:]  # one to know how long they take

    def losses(self) -> None:
        """Check that no step of either job had another loss than alone, nor memory elsewhere."""
        for job in (self.guaranteed, self.other):
            elsewhere = job.ask("stats")["host_bytes"]
            self.report.check(
                f"memory of the {job.name} job is on the GPU", elsewhere == 0, f"{elsewhere} B not"
            )
            told = job.ask("losses")
            self.report.check(
                f"losses of the {job.name} job are those alone, to the last bit",
                told["compared"] > 0 and told["different"] == 0,
                f"{told['compared'] - told['different']} of {told['compared']} steps",
            )

    def reactions(self) -> None:
        """Measure how soon a gate that closes leaves the device quiet, and opens again.

        The guaranteed job waits for a batch meanwhile, so nothing but the pauses closes the gate.
        """
        self.pace(MODES[OURS].law)
        self.guaranteed.ask("stall 3600")
        self.guaranteed.ask("go")
        for length in self.jobs.reaction_ops:
            part = f"reaction.{length}ms"
            if self.report.take(part) is None:
                with self.report.part(part):
                    self.react(length)

    def react(self, length: float) -> None:
        """Measure how soon ops of a length (in ms) stop and go on."""
        names = [f"reaction.{what}.{length}ms" for what in ("close_to_quiet", "open_to_first")]
        toggles = 5 if on_simulated_driver() else 100 if length in SHORT_OPS else 30
        if self.left() < REACTION_SECONDS:
            for name in names:
                self.report.not_run(name, TIME_WAS_UP)
            return
        told = self.other.ask(f"react {length} {toggles}", 120.0)
        ran = len(told["quiet"]) == toggles and len(told["first"]) > 0
        self.report.check(f"ops of {length} ms went on after pauses", ran, f"{told['ops']} ops")
        if on_simulated_driver():
            for name in names:
                self.report.not_simulated(name, KERNELS_DO_NOTHING)
            return
        target = 1e-3 if length <= 1.0 else None
        for name, values, most in zip(
            names, (told["quiet"], told["first"]), (target, None), strict=True
        ):
            tell_tail(self.report, name, values, most, op_milliseconds=told["milliseconds"])


def on_the_gpu(node: Coordinator) -> str:
    """Return why the status does not show both jobs on a GPU; empty: it does."""
    end = time.monotonic() + PATIENCE
    told: dict[str, Any] = {}
    while time.monotonic() < end:
        told = {job["job"]["name"]: job.get("devices") for job in node.status()["jobs"]}
        places = [told.get(name) or ["nowhere"] for name in (GUARANTEED, OPPORTUNISTIC)]
        if all(place[0].startswith(("GPU-", "MIG-")) for place in places):
            return ""
        time.sleep(0.05)
    return f"{told}"


def program(name: str) -> str:
    return shutil.which(name) or name


@contextmanager
def both_jobs(jobs: Jobs, folder: Path) -> Iterator[tuple[PairProcess, PairProcess, Coordinator]]:
    """Start a node coordinator and both jobs, which have warmed up then."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    simulated = on_simulated_driver()
    environment = os.environ | {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # PyTorch's deterministic settings want it
        "COMMENSAL_RUNTIME_DIR": str(runtime),
    }
    if simulated:
        environment |= {"SIMULATED_CUDA_KERNEL_NANOSECONDS": "20000", "OMP_NUM_THREADS": "1"}
    node = Coordinator("default", runtime)
    with ExitStack() as stack:
        stack.enter_context(coordinator(runtime))
        end = time.monotonic() + PATIENCE
        while not node.listens():
            if time.monotonic() > end:
                raise JobDied(f"the node coordinator did not get ready in {PATIENCE:.0f} s")
            time.sleep(0.05)
        started = []
        for job_class, name in (
            (GUARANTEED, jobs.guaranteed),
            (OPPORTUNISTIC, jobs.opportunistic),
        ):
            launcher = [program("commensal"), "run", f"--{job_class}", "--name", job_class]
            if job_class == OPPORTUNISTIC:
                # Until it is measured: beside a job that only warms up, too.
                launcher += ["--law", "open"]
                # Nobody is to move memory while this is about time.
                most = f"{int(1536 * MEMORY_GIB[jobs.opportunistic])}MiB"
                launcher += ["--memory", "128MiB" if simulated else most]
                # Other work on a small machine must not keep a dry run's thread from its core.
                launcher += ["--no-idle-class"] if simulated else []
            launcher += ["--quiet", "--"]
            process = PairProcess(
                job_class,
                [name, *(["--stand-in"] if simulated else [])],
                launcher=launcher,
                environment=environment,
            )
            started.append(stack.enter_context(process))
        yield started[0], started[1], node


def share_gpu(
    arguments: argparse.Namespace, modes: Sequence[str], report: StageReport, deadline: float
) -> None:
    """Go through the stage; what is measured is recorded, whatever ends it."""
    jobs: Jobs = arguments.jobs
    name = f"{jobs.guaranteed}:{jobs.busy}+{jobs.opportunistic}"
    record = PairRecord("a card")
    sensors: Sensors | None = None
    without_sensors = ""
    picture = result_file(arguments.out, f"pair-{jobs.name}.png")
    try:
        with tempfile.TemporaryDirectory() as text, both_jobs(jobs, Path(text)) as started:
            guaranteed, other, node = started
            cards = [job.answer("start", 120.0) for job in (guaranteed, other)]
            report.machine(**cards[0], jobs=name, modes=list(modes))
            record = PairRecord.take(cards[0]["card"], report.kept)
            if arguments.seconds and record.seconds != arguments.seconds:
                record = PairRecord(record.card)
            chosen = arguments.seconds or record.seconds
            usual = 0.2 if on_simulated_driver() else WINDOW_SECONDS
            missing = on_the_gpu(node)
            report.check("the status shows both jobs on the GPU", not missing, missing)
            stage = Stage(
                *(jobs, modes, arguments.pairs, chosen or usual, arguments.pairs),
                *(report, record, deadline, guaranteed, other, node),
            )
            stage.calibrate()
            stage.plan(shorten=not chosen)
            try:
                read = nvml_reader(f"GPU-{cards[0]['uuid'].removeprefix('GPU-')}")
                sensors = stage.sensors = Sensors(read, min(1.0, stage.seconds / 4))
            except NoSensors as error:
                without_sensors = str(error)
            stage.measure()
            stage.losses()
            stage.deadline += FINISH_SECONDS
            stage.reactions()
        report.check("both jobs lived to the end", True)
    except (JobDied, Unreachable, Refused) as died:
        report.check("both jobs lived to the end", False, str(died))
        for name in report.missing():
            if name.startswith("reaction."):
                report.not_run(name, "a job died")
    finally:
        if sensors is not None:
            sensors.close()
            without_sensors = without_sensors or sensors.problem
    for mode in modes:
        if len(record.modes.get(mode, [])) < arguments.pairs:
            report.leave(f"pairs of {mode}")
    tell_sensors(report, sensors, without_sensors)
    why = tell_sharing(report, jobs, modes, record, picture)
    report.machine(picture=f"not drawn: {why}" if why else picture.name)


def modes_of(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"no such mode: {name!r} ({', '.join(MODES)})")
    if len(set(names)) != len(names):
        raise argparse.ArgumentTypeError(f"a mode is named twice: {text!r}")
    return names


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < 1e6:
            raise argparse.ArgumentTypeError(f"must be above 0: {text}")
        return value

    return parse


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("jobs", type=Jobs.parse, metavar="PAIR")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--modes", type=modes_of)
    parser.add_argument("--pairs", type=positive(int))
    parser.add_argument("--seconds", type=positive(float), help="of a window")
    arguments = parser.parse_args(argv)
    arguments.pairs = int(arguments.pairs or (1 if on_simulated_driver() else 3))
    modes = arguments.modes
    if modes is None:
        modes = [*FIRST, *(["token_window"] if arguments.jobs.name == "e1" else [])]
    seconds = float(os.environ.get("STAGE_SECONDS") or 540)
    deadline = time.monotonic() + seconds - FINISH_SECONDS - 5.0
    report = StageReport(
        f"pair-{arguments.jobs.name}", arguments.out, figures_of(arguments.jobs, modes)
    )
    share_gpu(arguments, modes, report, deadline)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
