# SPDX-License-Identifier: Apache-2.0
"""`commensal demo` on the card, as long as the stage may take: figures, report and picture.

    demo_stage.py --out FOLDER
    demo_stage.py --out FOLDER --draw     page and picture of a recording that is there, where the
                                          machine that made it lacked matplotlib or plotly

Each job alone, both with the card's default sharing (plain PyTorch, nothing of commensal), both
under commensal. In a dry run the stand-ins of `demo_stand_ins` train instead, whose losses are
checksums of what they were fed and of memory that moved.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from kept_parts import result_file
from rich.console import Console
from stack_dump import run_within
from stage_report import StageReport, on_simulated_driver

from commensal._lifetime import temporary_folder
from commensal.demo.gpu import Gpu, look, usable
from commensal.demo.plan import GPU_FULL, DemoPlan, LimitChange, MiB, plan_for

HERE = Path(__file__).resolve().parent
RECORDING = "demo_recording.json.gz"
TIMES = (
    "slowdown.commensal",
    "slowdown.default",
    "p99_over_median.commensal",
    "harvest.commensal",
    "harvest.default",
    "longest_pause",
    "gpu_time.guaranteed",
    "gpu_time.opportunistic",
    "gpu_time.efficiency",
)
FIGURES = (*TIMES, "moved", "moved_ahead")
PACKAGES = ("numpy",)  # of the demo's, what measuring needs besides the digits
KERNELS_DO_NOTHING = "kernels do nothing on this driver"
JUDGED_SECONDS = 400  # what two rounds take if each window is disturbed once
SPARE_SECONDS = 35  # of a stage: starts may be slower than the plan supposes
DRAWING_SECONDS = 10  # of these, to record and to draw

DRY = replace(
    GPU_FULL,
    rounds=1,
    guaranteed_steps=40,
    double_at=20,
    guaranteed_batch=8,
    guaranteed_read_rate=2.6e7,
    default_steps=40,
    default_double_at=20,
    opportunistic_steps=90,
    text_bytes=96 * MiB,
    budget_bytes=400 * MiB,
    guaranteed_memory="32MiB:192MiB",
    opportunistic_memory="16MiB:192MiB",
    limit_changes=(LimitChange(25, 80 * MiB), LimitChange(50, 192 * MiB)),
    least_shrinks=1,
    least_moved_bytes=32 * MiB,
    most_repeats=0,
    judged=False,
    warm_up_steps=0,
    guaranteed_options=("--device", "cuda"),
    opportunistic_options=("--device", "cuda"),
)


def digits_of_bundle() -> Path | None:
    """Return the file of the digits, for a machine without scikit-learn, which brings them."""
    if importlib.util.find_spec("sklearn") is not None:
        return None
    file = Path(os.environ.get("BUNDLE") or "/nowhere") / "data" / "digits.csv.gz"
    return file if file.exists() else None


def plan_within(seconds: float) -> DemoPlan:
    """Return what can be measured in the seconds of a stage."""
    if on_simulated_driver():
        return DRY
    if seconds >= JUDGED_SECONDS:
        return replace(GPU_FULL, most_repeats=1)
    return plan_for(max(1, int(seconds) - SPARE_SECONDS), "cuda")


def measure(out: Path, seconds: float) -> int:
    """Run the windows and keep what they recorded; the part that needs the card, and can hang."""
    from commensal.demo import recording
    from commensal.demo.conductor import Conductor
    from commensal.demo.view import PlainView

    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    found = look()
    plan = plan_within(seconds)
    if file := digits_of_bundle():
        options = (*plan.guaranteed_options, "--digits", str(file))
        plan = replace(plan, guaranteed_options=options)
    scripts = HERE / "demo_stand_ins" if on_simulated_driver() else None
    view = PlainView(Console(stderr=True), plan)
    with temporary_folder("commensal-demo-") as folder, view:
        gpu = found if isinstance(found, Gpu) else None
        measured = Conductor(plan, view, folder, gpu, scripts).run()
    recording.save(result_file(out, RECORDING), measured)
    return 0


def tell(report: StageReport, measurement: Any) -> None:
    """Record figures and checks of what was measured."""
    from commensal.demo.figures import GUARANTEED, OPPORTUNISTIC, Figures, figures_of
    from commensal.demo.runs import Mode

    plan: DemoPlan = measurement.plan
    report.machine(**measurement.machine, judged=measurement.judged, notes=measurement.notes)
    wanted = {GUARANTEED: plan.guaranteed_steps, OPPORTUNISTIC: plan.opportunistic_steps}
    shared = measurement.of(Mode.COMMENSAL)
    for name, steps in wanted.items():
        jobs = [window.jobs[name] for window in shared]
        report.check(
            f"the {name} job did all its steps under commensal",
            all(len(job.steps) == steps and job.sha256 for job in jobs),
            f"{min(len(job.steps) for job in jobs)} of {steps}",
        )
        told = [list(job.stats.get("devices", [])) for job in jobs]
        report.check(
            f"the {name} job's device is the GPU",
            all(len(on) == 1 and on[0].startswith(("GPU-", "MIG-")) for on in told),
            told[0],
        )
    try:
        figures: Figures = figures_of(measurement)
    except ValueError as problem:
        report.check("both jobs trained at the same time", False, str(problem))
        for name in FIGURES:
            report.not_run(name, "the jobs did not train at the same time")
        return
    report.check(
        "losses and parameters are those alone, to the last bit",
        figures.bit_identical,
        ", ".join(f"{name} {steps} steps" for name, steps in figures.compared_steps.items()),
    )
    report.check(
        "live memory moved out and came back",
        figures.shrinks >= plan.least_shrinks
        and figures.growths >= 1
        and figures.bytes_moved >= plan.least_moved_bytes,
        f"{figures.shrinks} shrinks, {figures.growths} growths,"
        f" {figures.bytes_moved / MiB:.0f} MiB",
    )
    report.check(
        "steps were counted as the scripts count them",
        all(abs(tracker.tracked_steps - tracker.steps) <= 1 for tracker in figures.trackers),
        ", ".join(f"{t.job} {t.tracked_steps} of {t.steps}" for t in figures.trackers),
    )
    report.value("moved", figures.bytes_moved, "bytes", least=plan.least_moved_bytes)
    report.value("moved_ahead", figures.bytes_ahead, "bytes")
    if on_simulated_driver():
        for name in TIMES:
            report.not_simulated(name, KERNELS_DO_NOTHING)
        return
    tell_times(report, figures)


def tell_times(report: StageReport, figures: Any) -> None:
    """Record what only a card has."""
    ours, default = figures.commensal, figures.default
    interval = {"interval": list(ours.slowdown_interval), "rounds": list(ours.slowdown_rounds)}
    report.value("slowdown.commensal", ours.slowdown, "1", most=0.01, **interval)
    report.value("slowdown.default", default.slowdown, "1", rounds=list(default.slowdown_rounds))
    report.value("p99_over_median.commensal", ours.p99_ratio, "x")
    report.value("harvest.commensal", ours.harvest, "1", rounds=list(ours.harvest_rounds))
    report.value("harvest.default", default.harvest, "1", rounds=list(default.harvest_rounds))
    report.value("longest_pause", figures.longest_pause_seconds, "s", most=0.3)
    use = figures.device_use
    shares = {
        "gpu_time.guaranteed": use and use.guaranteed_share,
        "gpu_time.opportunistic": use and use.opportunistic_share,
        "gpu_time.efficiency": use and use.efficiency,
    }
    for name, share in shares.items():
        if share is None:
            report.not_run(name, "the coordinator did not tell while both jobs ran")
        else:
            report.value(name, share, "1", least=0.85 if name.endswith("efficiency") else None)


def draw(out: Path, measurement: Any) -> str:
    """Write the demo's JSON, page and picture; return why the last two could not be drawn."""
    from commensal.demo.figures import figures_of

    figures = figures_of(measurement)
    result_file(out, "demo_figures.json").write_text(json.dumps(figures.as_json(), indent=1) + "\n")
    try:
        pages: Any = importlib.import_module("commensal.demo.report")
    except ImportError as missing:
        return f"{missing}; {RECORDING} has what they are drawn from"
    pages.write(out, measurement, figures).rename(result_file(out, "demo.html"))
    (out / "sharing.png").rename(result_file(out, "demo.png"))
    return ""


def run_child(out: Path, seconds: float) -> tuple[int, str]:
    """Measure in a process of its own; return its exit code and its last words."""
    command = [sys.executable, __file__, "--out", str(out), "--measure"]
    return run_within(command, seconds - DRAWING_SECONDS)


def hold(
    report: StageReport,
    out: Path,
    seconds: float,
    run: Callable[[Path, float], tuple[int, str]] = run_child,
) -> None:
    """Measure, record, draw; each figure that cannot be had says why."""

    def without(reason: str) -> None:
        for name in FIGURES:
            report.not_run(name, reason)

    found = look() if on_simulated_driver() else usable(look())
    if not report.check("there is a GPU for the demo", isinstance(found, Gpu), str(found)):
        without("no GPU for it")
        return
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if digits_of_bundle() is None and importlib.util.find_spec("sklearn") is None:
        missing.append("sklearn, and no digits.csv.gz of a bundle")
    if missing and not on_simulated_driver():
        without(f"no package {missing[0]}")
        return
    result_file(out, RECORDING).unlink(missing_ok=True)
    code, words = run(out, seconds)
    if not report.check("it ran to its end", code == 0, words if code else ""):
        without("it did not run to its end")
        return
    from commensal.demo import recording

    measurement = recording.load(result_file(out, RECORDING))
    tell(report, measurement)
    try:
        undrawn = draw(out, measurement)
    except ValueError as problem:
        undrawn = str(problem)
    print(f"  not drawn: {undrawn}" if undrawn else "  drawn: demo.html, demo.png", flush=True)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--measure", action="store_true", help="only keep a recording")
    parser.add_argument("--draw", action="store_true", help="draw what was recorded")
    arguments = parser.parse_args(argv)
    seconds = float(os.environ.get("STAGE_SECONDS") or 540)
    if arguments.measure:
        return measure(arguments.out, seconds)
    if arguments.draw:
        from commensal.demo import recording

        undrawn = draw(arguments.out, recording.load(result_file(arguments.out, RECORDING)))
        print(undrawn or "drawn: demo.html, demo.png")
        return 1 if undrawn else 0
    report = StageReport("demo", arguments.out, FIGURES)
    hold(report, arguments.out, seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
