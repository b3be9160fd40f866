# SPDX-License-Identifier: Apache-2.0
"""Runs the demo's windows in turn, repeats the disturbed ones, and checks what came out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commensal._report.quiet import QuietGuard, Verdict
from commensal.demo.figures import (
    GUARANTEED,
    OPPORTUNISTIC,
    Measurement,
    machine,
    settled,
    typical_seconds,
)
from commensal.demo.gpu import Gpu
from commensal.demo.plan import DemoPlan, LimitChange, MiB
from commensal.demo.processes import CpuSampler, Daemon, Job, examples_folder
from commensal.demo.runs import CpuSample, DeviceUse, Event, MemorySample, Mode, WindowRecord
from commensal.demo.view import TITLES, JobNow, View

__all__ = ["Conductor"]

POLL_SECONDS = 0.2
EXCERPT_SECONDS = 2.5


@dataclass
class Watch:
    """What is sampled while a window runs."""

    events: list[Event] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)
    device: list[DeviceUse] = field(default_factory=list)
    cpu: tuple[CpuSample, ...] = ()
    stats: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class Conductor:
    """Runs a plan. One object, one run. What the processes write goes into `folder`.

    `scripts` is the folder of the two scripts; None: the examples.
    """

    def __init__(
        self,
        plan: DemoPlan,
        view: View,
        folder: Path,
        gpu: Gpu | None = None,
        scripts: Path | None = None,
    ) -> None:
        self._plan = plan
        self._view = view
        self._folder = folder
        self._gpu = gpu
        self._examples = scripts or examples_folder()
        self._guard = QuietGuard()
        self._notes: list[str] = []
        self._judged = plan.judged
        if not plan.judged:
            self._notes.append("A shortened run: the figures are not judged.")

    def run(self) -> Measurement:
        """Run all windows, interleaved round by round."""
        windows: list[WindowRecord] = []
        verdicts: list[Verdict] = []
        for number in range(self._plan.rounds):
            for mode in Mode:
                window, seen = self._judged_window(mode, number)
                windows.append(window)
                verdicts.append(seen)
                self._view.window_done()
                if len(window.jobs) == 1:
                    for name, job in window.jobs.items():
                        self._view.learn(name, typical_seconds(settled(job)))
        return Measurement(
            plan=self._plan,
            windows=tuple(windows),
            verdicts=tuple(verdicts),
            judged=self._judged,
            notes=tuple(self._notes),
            machine=machine(self._gpu),
        )

    def _judged_window(self, mode: Mode, number: int) -> tuple[WindowRecord, Verdict]:
        """Run one window; once one cannot be judged, later ones are not repeated either."""

        def tell(verdict: Verdict) -> None:
            self._view.warn(f"{TITLES[mode]}: {verdict.reason}; once more")

        result = self._guard.measure(
            lambda: self._window(mode, number),
            most_repeats=self._plan.most_repeats if self._judged else 0,
            on_repeat=tell,
        )
        if self._judged and not result.judged:
            self._judged = False
            self._notes.append(
                f"The machine was not quiet ({TITLES[mode]}, tried {len(result.verdicts)} times:"
                f" {result.reason}): this run cannot judge its figures."
            )
        return result.value, result.verdicts[-1]

    def _scripts(self, mode: Mode) -> dict[str, list[str]]:
        plan, folder = self._plan, self._examples
        steps, double_at = plan.guaranteed_steps, plan.double_at
        if mode is Mode.DEFAULT:
            steps, double_at = plan.default_steps, plan.default_double_at
        return {
            GUARANTEED: [
                str(folder / "digits_cnn.py"),
                *("--steps", str(steps), "--double-at", str(double_at)),
                *("--batch", str(plan.guaranteed_batch)),
                *("--read-rate", str(plan.guaranteed_read_rate)),
                *plan.guaranteed_options,
            ],
            OPPORTUNISTIC: [
                str(folder / "char_transformer.py"),
                *("--steps", str(plan.opportunistic_steps)),
                *("--text-bytes", str(plan.text_bytes)),
                *plan.opportunistic_options,
            ],
        }

    def _window(self, mode: Mode, number: int) -> WindowRecord:
        self._view.window(mode, number)
        plan, scripts = self._plan, self._scripts(mode)
        if mode is Mode.COMMENSAL:
            return self._commensal_window(number, scripts)
        alone = {
            Mode.GUARANTEED_ALONE: [GUARANTEED],
            Mode.OPPORTUNISTIC_ALONE: [OPPORTUNISTIC],
        }
        watch = Watch()
        with contextlib.ExitStack() as stack:
            jobs: dict[str, Job] = {}
            for name in alone.get(mode, [OPPORTUNISTIC, GUARANTEED]):
                self._await_head_start(jobs)
                job = Job(name, scripts[name], self._folder / mode.value)
                jobs[name] = stack.enter_context(job)
            self._watch(jobs, watch, None)
            # Guaranteed first: what the other does afterwards is no longer sharing.
            records = {name: jobs[name].stop() for name in reversed(list(jobs))}
        return WindowRecord(mode, number, records, cpu=watch.cpu, warm_up=plan.warm_up_steps)

    def _commensal_window(self, number: int, scripts: Mapping[str, Sequence[str]]) -> WindowRecord:
        plan, watch = self._plan, Watch()
        memory = {GUARANTEED: plan.guaranteed_memory, OPPORTUNISTIC: plan.opportunistic_memory}
        with contextlib.ExitStack() as stack:
            daemon = stack.enter_context(
                Daemon(self._folder / "run", plan.budget_bytes, on_gpu=plan.on_gpu)
            )
            jobs: dict[str, Job] = {}
            for name in (OPPORTUNISTIC, GUARANTEED):
                self._await_head_start(jobs)
                job = Job(
                    name,
                    scripts[name],
                    self._folder / Mode.COMMENSAL.value,
                    launcher=daemon.launcher(name, name, "--memory", memory[name]),
                    environment=daemon.environment(),
                )
                jobs[name] = stack.enter_context(job)
            self._watch(jobs, watch, daemon)
            records = {name: job.record(watch.stats.get(name)) for name, job in jobs.items()}
        return WindowRecord(
            Mode.COMMENSAL,
            number,
            records,
            events=tuple(watch.events),
            memory=tuple(watch.memory),
            cpu=watch.cpu,
            device=tuple(watch.device),
            warm_up=plan.warm_up_steps,
        )

    def _await_head_start(self, jobs: Mapping[str, Job]) -> None:
        """Wait until the job that was started first, if any, has done the plan's first steps."""
        for job in jobs.values():
            while job.running() and job.steps_done() < self._plan.head_start:
                time.sleep(POLL_SECONDS)

    def _watch(self, jobs: Mapping[str, Job], watch: Watch, daemon: Daemon | None) -> None:
        """Show progress, sample, and set limits until every job has ended.

        Without a daemon, sharing ends with the guaranteed job: nothing shrinks or grows then.
        """
        awaited = list(jobs) if daemon else list(jobs)[-1:]
        by_default = daemon is None and len(jobs) == 2
        totals = {
            GUARANTEED: (self._plan.default_steps if by_default else self._plan.guaranteed_steps),
            OPPORTUNISTIC: self._plan.opportunistic_steps,
        }
        changes = list(self._plan.limit_changes) if daemon else []
        newest: LimitChange | None = None
        told: dict[str, int] = dict.fromkeys(jobs, 0)
        excerpt: threading.Thread | None = None
        while any(jobs[name].running() for name in awaited):
            time.sleep(POLL_SECONDS)
            if daemon is not None:
                self._sample(daemon, watch, jobs)
            latest = {sample.job: sample for sample in watch.memory[-len(jobs) :]}
            self._view.update(
                {
                    name: JobNow(totals[name], job.steps(), latest.get(name))
                    for name, job in jobs.items()
                }
            )
            for name, job in jobs.items():
                for event in job.events()[told[name] :]:
                    told[name] += 1
                    if event.what == "double":
                        self._view.say(f"{name}: doubles its batch, and needs more memory")
            if daemon is not None and jobs[OPPORTUNISTIC].running():
                while changes and jobs[OPPORTUNISTIC].steps_done() >= changes[0].at_step:
                    if self._plan.on_gpu and not obeyed(newest, latest.get(OPPORTUNISTIC)):
                        break  # its steps are short: the next limit would hide this one
                    newest = changes.pop(0)
                    self._set_limit(daemon, watch, newest)
            if (
                excerpt is None
                and not self._plan.on_gpu  # whose time no clock of a thread tells
                and len(jobs) == 2
                and all(job.steps_done() >= 10 for job in jobs.values())
            ):
                excerpt = threading.Thread(target=take_excerpt, args=(jobs, watch))
                excerpt.start()
        if daemon is not None:
            self._sample(daemon, watch, jobs)
        if excerpt is not None:
            excerpt.join()

    def _set_limit(self, daemon: Daemon, watch: Watch, change: LimitChange) -> None:
        daemon.set_memory(OPPORTUNISTIC, change.max_bytes)
        most = float(change.max_bytes)
        watch.events.append(Event(time.monotonic(), "set", most, OPPORTUNISTIC))
        self._view.say(f"the demo sets {OPPORTUNISTIC} to at most {most / MiB:.0f} MiB")

    def _sample(self, daemon: Daemon, watch: Watch, jobs: Mapping[str, Job]) -> None:
        """Read the coordinator's view of both jobs."""
        now = time.monotonic()
        status = daemon.status()
        watch.device += device_uses(now, status) if self._plan.on_gpu else []
        listed = status["jobs"]
        for job in listed if isinstance(listed, list) else []:
            name = job["job"]["name"]
            if name not in jobs or "memory" not in job:
                continue
            memory, gate, lease = job["memory"], job["gate"], job["lease"]
            before = watch.stats.get(name, {}).get("lease", {})
            watch.stats[name] = job
            if job.get("ended"):
                continue
            if lease["granted_bytes"] != before.get("granted_bytes"):
                granted, reason = lease["granted_bytes"], lease["reason"]
                watch.events.append(Event(now, "grant", float(granted), name, reason))
                why = reason if reason.startswith(name) else f"{name}: {reason}"
                self._view.say(f"{granted / MiB:.0f} MiB for {why}")
            watch.memory.append(
                MemorySample(
                    time=now,
                    job=name,
                    limit_bytes=memory["limit_bytes"],
                    device_bytes=memory["device_bytes"],
                    host_bytes=memory["host_bytes"],
                    host_touched_bytes=memory["host_touched_bytes"],
                    moved_out_bytes_total=memory["moved_out_bytes_total"],
                    moved_ahead_bytes_total=memory["moved_ahead_bytes_total"],
                    moved_in_bytes_total=memory["moved_in_bytes_total"],
                    gate_state=gate["state"],
                    gate_closed_seconds=gate["closed_seconds_total"],
                )
            )


def obeyed(change: LimitChange | None, seen: MemorySample | None) -> bool:
    """Tell whether the job is within the newest limit."""
    return change is None or seen is None or seen.device_bytes <= change.max_bytes


def device_uses(now: float, status: Mapping[str, Any]) -> list[DeviceUse]:
    """Return how the time of the GPU is used, once that is known."""
    found = []
    for device in status["devices"]:
        use = device["use"]
        if device["kind"] == "gpu" and use["guaranteed_share"] is not None:
            shares = ("guaranteed_share", "opportunistic_share", "oracle_share", "efficiency")
            found.append(DeviceUse(now, use["seconds"], *(use[share] for share in shares)))
    return found


def take_excerpt(jobs: Mapping[str, Job], watch: Watch) -> None:
    """Sample for a short while who runs when."""
    watch.cpu = CpuSampler({name: job.pid for name, job in jobs.items()}).run(EXCERPT_SECONDS)
