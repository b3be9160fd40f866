# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: their command line, the recorded traces, and a quick run of each new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from world import World, read_line

pytestmark = pytest.mark.tool("tests/benchmarks", "scripts/benchmark")

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"
TRACES = ROOT / "tests" / "data" / "traces"
DEADLINE = 300.0


@pytest.fixture(scope="module")
def traces() -> Iterator[Any]:
    sys.path.insert(0, str(BENCHMARKS))
    import traces

    yield traces
    sys.path.remove(str(BENCHMARKS))


def ask_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "benchmark"), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def test_help_and_mistakes_cost_no_build() -> None:
    told = ask_script("--help")
    assert told.returncode == 0
    assert "--only NAME" in told.stdout and "replay" in told.stdout
    assert told.stderr == "", "no step was begun"
    refused = ask_script("--only", "nothing")
    assert refused.returncode == 2
    assert "'nothing'" in refused.stderr and "==" not in refused.stderr


def test_every_name_is_a_benchmark_and_documented() -> None:
    sys.path.insert(0, str(BENCHMARKS))
    from arguments import NAMES

    readme = (BENCHMARKS / "README.md").read_text()
    for name in NAMES:
        assert "def run(*, quick: bool) -> Result:" in (BENCHMARKS / f"{name}.py").read_text()
        assert f"| `{name}` |" in readme


TRACED = sorted(path.name.removesuffix(".trace.xz") for path in TRACES.glob("*.trace.xz"))


def test_each_of_the_five_jobs_is_recorded() -> None:
    assert TRACED == ["char_transformer", "digits_cnn", "gpt", "loader", "resnet18"]


@pytest.mark.parametrize("job", TRACED)
def test_recorded_traces_are_whole(traces: Any, job: str) -> None:
    events = traces.load(traces.FOLDER / f"{job}.trace.xz")
    assert sum(isinstance(event, traces.StepEnd) for event in events) >= 20
    taken = sum(isinstance(event, traces.Allocate) for event in events)
    freed = sum(isinstance(event, traces.Free) for event in events)
    assert taken == freed > 1000, "a job leaves nothing behind"
    text = traces.encode(events, ())
    assert list(traces.decode(text.splitlines(), job)) == events
    timed = [traces.pack(events, kind).pairs for kind in ("small", "large")]
    assert all(timed) and sum(timed) < taken, "the first steps are not timed"


def test_packing_keeps_order_and_lifetime(traces: Any) -> None:
    lines = ["s", "s", "100", "s", "2097152", "64", "-1", "-3", "32", "s", "16"]
    packed = traces.pack(traces.decode(lines, "made up"), "small")
    step = (traces.STEP_ENDS, 0)
    # Slots, first and last timed event, events; then slot and size of each, zero to free it.
    assert list(packed.words) == [
        *(2, 4, 9, 12),
        *(*step, *step, 0, 100, *step),  # the timed part begins behind it
        *(1, 64, 1, 0, 0, 0, 0, 32, *step),
        *(1, 16, 0, 0, 1, 0),  # what is live at the end is given back
    ]
    assert (packed.pairs, packed.bytes, packed.peak) == (2, 96, 164)
    large = traces.pack(traces.decode(lines, "made up"), "large")
    assert list(large.words) == [
        *(1, 3, 5, 6, *step, *step, *step),
        *(0, 2097152, *step, 0, 0),
    ]
    everything = traces.pack(traces.decode(lines, "made up"), "all")
    assert (everything.pairs, everything.peak) == (3, 2097152 + 164)


def test_a_use_is_measured_by_the_bar_that_is_easier_to_keep(traces: Any) -> None:
    del traces  # only makes the folder known
    from density import MIB, Density, Use

    assert Use(18 * MIB, 10 * MIB).of_allowed == pytest.approx(1.0)
    assert Use(220 * MIB, 200 * MIB).of_allowed == pytest.approx(1.0)
    steps = tuple(Use(held * MIB, 100 * MIB) for held in (150, 100, 110))
    assert Density(steps, steps[0]).worst.ratio == 1.5
    assert Density(steps, steps[0]).typical.ratio == 1.1


def test_first_steps_leave_out_the_rest(traces: Any) -> None:
    events = list(traces.decode(["8", "s", "s", "s", "16", "s", "32", "s"], "made up"))
    few = list(traces.first_steps(events, 1))
    assert few == events[:-2]
    assert traces.pack(few, "small").pairs == 1
    assert list(traces.first_steps(events, 9)) == events


@pytest.mark.parametrize("line", ["x", "-1", "0", "t"])
def test_a_broken_trace_is_refused_with_its_line(traces: Any, line: str) -> None:
    with pytest.raises(traces.TraceError, match="made up, line 2"):
        list(traces.decode(["# about", line], "made up"))


def test_the_jobs_have_the_shapes_that_they_are_named_after(traces: Any) -> None:
    del traces  # it makes the folder importable
    import jobs

    def parameters(step: Any) -> int:
        cells = dict(zip(step.__code__.co_freevars, step.__closure__, strict=True))
        model = cells["model"].cell_contents
        return sum(parameter.numel() for parameter in model.parameters())

    assert 23e6 < parameters(jobs.start("gpt")) < 26e6
    # What torchvision's has, with ten classes instead of a thousand.
    assert parameters(jobs.start("resnet18")) == 11_689_512 - 990 * 513


@pytest.mark.parametrize("name", ["digits_cnn", "char_transformer", "mlp_tiny"])
def test_a_job_takes_a_step(traces: Any, name: str) -> None:
    del traces  # it makes the folder importable
    import jobs

    assert 0 < jobs.start(name)() < 10


@pytest.mark.soak
def test_a_job_with_workers_is_the_same_under_commensal(world: World, tmp_path: Path) -> None:
    told = []
    for name in ("plain", "ours"):
        result = tmp_path / f"{name}.json"
        command = [sys.executable, str(BENCHMARKS / "jobs.py"), "loader", "--steps", "3"]
        command += ["--result", str(result)]
        if name == "ours":
            done = world.commensal("run", "--guaranteed", "--quiet", "--", *command)
        else:
            done = subprocess.run(
                command,
                env=world.environ,
                capture_output=True,
                text=True,
                timeout=DEADLINE,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(result.read_text())["losses"])
    assert told[0] == told[1]
    assert len(set(told[0])) == 3, "it learns"


def built(program: str) -> bool:
    folder = os.environ.get("COMMENSAL_BENCHMARK_DIR")
    places = [Path(folder)] if folder else (ROOT / "build").glob("*/tests/benchmarks")
    return any((place / program).exists() for place in places)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program", "bars"),
    [
        # Four for each number of threads.
        pytest.param("replay", "replay_benchmark", 12, marks=pytest.mark.soak),
        ("density", "replay_benchmark", 2 * len(TRACED)),
        pytest.param("limits", "limit_benchmark", 9, marks=pytest.mark.soak),
        pytest.param("messages", "message_benchmark", 3, marks=pytest.mark.soak),
        pytest.param("given_back", None, 4, marks=pytest.mark.soak),
        pytest.param("job_alone", None, 3, marks=pytest.mark.soak),
        pytest.param("pauses", "libcommensal_empty_stop.so", 3, marks=pytest.mark.soak),
        pytest.param("neighbour", None, 2, marks=pytest.mark.soak),
        pytest.param("reaction", "gate_benchmark", 9, marks=pytest.mark.soak),
        pytest.param("arrival", None, 4, marks=pytest.mark.soak),
        ("simulator", "decision_benchmark", 5),  # those of ITP are left out
        ("cluster_load", "node_load", 7),
        ("live_and_simulated", None, 1),
        ("virtual_card", "virtual_card_benchmark", 6),
        pytest.param("minimum", None, 3, marks=pytest.mark.soak),
    ],
)
def test_a_quick_run_fills_every_bar(
    name: str, program: str | None, bars: int, tmp_path: Path
) -> None:
    if program is not None and not built(program):
        pytest.skip(f"{program} is not built: the preset release builds the benchmarks")
    result = quick_run(name, tmp_path)
    assert result["judged"] is False, "a quick run is never judged"
    left_out = sum(
        3 if "< 1 MiB" in note else 1
        for note in result["notes"]
        if "too large here" in note or "row is left out" in note
    )
    assert len(result["bars"]) + left_out == bars
    assert all(isinstance(bar["value"], float) for bar in result["bars"])


def quick_run(name: str, folder: Path) -> Any:
    done = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "run.py"), "--quick"),
            *("--only", name, "--out", str(folder)),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.soak
def test_each_policy_of_a_job_with_less_memory_has_its_speeds(tmp_path: Path) -> None:
    result = quick_run("less_memory", tmp_path)
    figures = result["figures"]["digits_cnn"]
    for policy in ("elastic", "antman"):
        assert list(figures[policy]) == ["0.9"]
        assert all(
            cell["speed"] > 0 and cell["failed_steps"] == 0 for cell in figures[policy].values()
        )
    # Ours at 90 %, and ours against the other policy.
    assert len(result["bars"]) == 2


@pytest.mark.soak
def test_p11_memory_that_was_taken_and_given_back_leaves_nothing_behind(tmp_path: Path) -> None:
    result = quick_run("cycles", tmp_path)
    assert result["figures"]["moved_bytes"] > 0
    before, first, *_, last = result["figures"]["memory"]["bytes"]
    assert last <= 1.01 * first
    assert first <= 1.05 * before
    _, first, *_, last = result["figures"]["spill file"]["bytes"]
    assert 0 < last <= 1.5 * first, "slots of the spill file are used again"


def test_a_pause_is_counted_per_32_mib(traces: Any) -> None:
    del traces
    from pauses import UNIT, Change

    def row(wait: float, pause: float, out: int, back: int) -> dict[str, float]:
        return {
            "begin": 1.0,
            "end": 1.5,
            "safe_point_wait_seconds_total": wait,
            "pause_seconds_total": pause,
            "moved_out_bytes_total": out,
            "moved_in_bytes_total": back,
        }

    rows = [row(0.3, 0.1, 2 * UNIT, 1), row(0.0, 0.2, 0, 5), row(0.4, 0.0, 0, 0)]
    change = Change(rows, 0.2, settled=True)
    assert change.waits() == pytest.approx([0.1, 0.2]), "the third moved nothing"
    assert change.extra_seconds() == pytest.approx(0.9)


def test_a_job_has_settled_when_no_later_piece_is_slow(traces: Any) -> None:
    del traces
    from arrival import pieces, settled_after

    assert settled_after([0.5, 0.005, 0.2, 0.0, 0.01], 0.01) == pytest.approx(1.5)
    assert settled_after([0.0, 0.0], 0.01) == 0.0
    assert settled_after([0.0, 0.02], 0.01) == pytest.approx(1.0), "not within what was seen"
    steps = [(0.1 * i, 0.1 * i + 0.1) for i in range(5)] + [(0.5, 0.7), (0.7, 0.9)]
    assert pieces(steps, 0.0, 1.0, 0.1) == pytest.approx([0.0, 1.0], abs=1e-6)
    assert pieces(steps, 0.0, 1.6, 0.1)[2] == pytest.approx(1.0, abs=1e-6), "as before"


@pytest.mark.soak
@pytest.mark.alone
def test_a_pair_of_jobs_is_ordered_as_it_should_be(tmp_path: Path) -> None:
    result = quick_run("pairs", tmp_path)
    [ways] = result["figures"].values()
    ours, default = ways["commensal"], ways["default"]
    assert ours["slowdown"] < default["slowdown"], "default sharing has no gate"
    assert ours["harvest"] > 0
    assert ways["nobody (A/A)"]["harvest"] == 0
    assert 0 < ours["busy"] < 1
    assert ours["oracle"] == pytest.approx(1 - ours["busy"] / 1.01)
    assert (tmp_path / "pairs.png").stat().st_size > 10_000
    kept = json.loads((tmp_path / "pairs-1.json").read_text())
    assert kept["ways"].keys() == ways.keys()
    again = quick_run("pairs", tmp_path)
    assert again["figures"] == result["figures"], "a pair that was measured is not measured again"


def test_groups_with_weights_are_made_and_removed_and_rank_what_runs_in_them(traces: Any) -> None:
    del traces  # only makes the folder known
    from groups import Groups, NoGroups, two_groups

    cpu = min(os.sched_getaffinity(0))
    spin = f"import os, resource, sys, time; os.sched_setaffinity(0, {{{cpu}}})\n"
    # They end together: a group of little weight may not get to its first line beside the other.
    spin += "print('ready', flush=True); end = float(sys.stdin.readline())\n"
    spin += "while time.monotonic() < end: pass\n"
    spin += "print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    try:
        with two_groups(1, 10000) as groups:
            folders = (groups.low, groups.high)
            running = [
                subprocess.Popen(
                    [*Groups.launcher(folder), sys.executable, "-c", spin],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for folder in folders
            ]
            for process in running:
                assert read_line(process, "ready") == "ready\n"
            end = time.monotonic() + 3
            for process in running:
                assert process.stdin is not None
                process.stdin.write(f"{end}\n")
                process.stdin.flush()
            low, high = (float(process.communicate(timeout=DEADLINE)[0]) for process in running)
    except NoGroups as error:
        pytest.skip(str(error))
    assert not any(folder.exists() for folder in folders)
    assert low < high


def test_a_way_that_cannot_be_taken_is_left_out_with_its_reason(
    traces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del traces
    import pairs
    from groups import NoGroups
    from harness import Result

    def refuse(*_: int) -> None:
        raise NoGroups("cannot make /sys/fs/cgroup/x: Read-only file system")

    monkeypatch.setattr(pairs, "two_groups", refuse)
    assert "Read-only" in pairs.why_no_groups()
    measured = {
        "slowdown": 0.0,
        "slowdown_interval": [0.0, 0.0],
        "p99": 0.0,
        "harvest": 0.5,
        "efficiency": 1.0,
        "oracle": 0.5,
    }
    ways = dict.fromkeys((pairs.NOBODY, "default", pairs.OURS), measured)
    result = Result("pairs", "", [])
    pairs.report(result, pairs.PAIRS[0], ways | {"cgroup weight": {"left_out": "Read-only"}})
    assert "  cgroup weight: left out, Read-only" in [row[0] for row in result.rows]


def test_use_is_taken_over_whole_windows(traces: Any) -> None:
    del traces
    from shares import used

    clock = [(0.1 * i, 0.03 * i) for i in range(101)]
    assert used(clock, 1.0) == pytest.approx([0.3] * len(used(clock, 1.0)))
    assert len(used(clock, 1.0)) in (9, 10)
    assert used(clock, 60.0) == pytest.approx([0.3]), "what there is, where it is shorter"


@pytest.mark.soak
@pytest.mark.alone
def test_shares_are_ordered_as_they_were_asked_for(tmp_path: Path) -> None:
    figures = quick_run("shares", tmp_path)["figures"]
    [held] = figures["gap 0.3"]["long"]
    assert 0.0 < held < 0.6, "a maximum holds without a neighbour"
    [more], [less] = figures["minimum 0.3"]["long"], figures["minimum 0.1"]["long"]
    assert more > less > 0.0
