# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: their command line, the recorded traces, and a quick run of each new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "tests" / "benchmarks"
DEADLINE = 300.0
JOBS = len(list((ROOT / "tests" / "data" / "traces").glob("*.trace.xz")))


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


@pytest.mark.parametrize("job", ["char_transformer", "digits_cnn"])
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


def built(program: str) -> bool:
    folder = os.environ.get("COMMENSAL_BENCHMARK_DIR")
    places = [Path(folder)] if folder else (ROOT / "build").glob("*/tests/benchmarks")
    return any((place / program).exists() for place in places)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program", "bars"),
    [
        ("replay", "replay_benchmark", 12 * JOBS),  # of each, four for each number of threads
        ("density", "replay_benchmark", 2 * JOBS),
        ("limits", "limit_benchmark", 3),
        ("given_back", None, 4),
        ("messages", "message_benchmark", 3),
    ],
)
def test_a_quick_run_fills_every_bar(
    name: str, program: str | None, bars: int, tmp_path: Path
) -> None:
    if program is not None and not built(program):
        pytest.skip(f"{program} is not built: the preset release builds the benchmarks")
    done = subprocess.run(
        [
            *(sys.executable, str(BENCHMARKS / "run.py"), "--quick"),
            *("--only", name, "--out", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["judged"] is False, "a quick run is never judged"
    left_out = sum(
        3 if "< 1 MiB" in note else 1 for note in result["notes"] if "too large here" in note
    )
    assert len(result["bars"]) + left_out == bars
    assert all(isinstance(bar["value"], float) for bar in result["bars"])
