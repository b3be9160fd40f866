# SPDX-License-Identifier: Apache-2.0
"""What the stages `pair-...` of tests/gpu/run_all.sh make of windows, and what stops them."""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import pair_figures
import pair_job
import pair_picture
import pair_report
import pair_stage
from gpu_sensors import NoSensors, Reading, Sensors, nvml_reader
from kept_parts import KeptParts
from pair_figures import (
    Pair,
    PairRecord,
    Plan,
    busy_share,
    clean_pairs,
    durations,
    oracle,
    plan,
    progress,
)
from pair_job import Losses, Timeline, fitting, reactions
from pair_modes import APART, MODES, PAIRS, Jobs, figures_of
from pair_process import JobDied, PairProcess
from pair_report import tell_rivals, tell_sensors, tell_sharing, tell_tail
from stage_report import StageReport

from commensal._terms import JobTerms

pytestmark = pytest.mark.tool("tests/gpu")

E1 = Jobs.parse("e1")


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_report, "DRAWS", 40)


def pair(slower: float = 0.0, made: float = 20.0, **changed: Any) -> Pair:
    """A pair of windows of steps of 10 ms, beside a job that makes `made` steps in 7 s."""
    alone = [0.010] * 98 + [0.012, 0.012]
    shared = [step * (1.0 + slower) for step in alone]
    whole = Pair(alone, shared, made, 7.0, 0.7, 1980.0, 1980.0)
    return replace(whole, **changed)


# --- windows ---


def test_the_first_part_of_a_window_and_what_is_cut_off_do_not_count() -> None:
    steps = [[0.0, 0.9], [0.95, 1.4], [1.5, 2.0], [9.0, 10.0], [9.8, 10.1], [9.9, math.inf]]
    assert durations(steps, 0.0, 10.0) == [0.5, 1.0]


def test_a_step_under_way_is_work() -> None:
    assert busy_share([[0.0, 2.0], [5.0, 6.0], [9.0, math.inf]], 1.0, 11.0) == pytest.approx(0.4)


def test_pauses_are_no_part_of_a_step() -> None:
    # Two seconds of work, half of it before a pause of 10 s.
    steps = [[4.0, 16.0]]
    active = [(0.0, 5.0), (15.0, 20.0)]
    assert progress(steps, None, active, (0.0, 5.0)) == pytest.approx(0.5)
    assert progress(steps, None, active, (15.0, 20.0)) == pytest.approx(0.5)


def test_the_step_under_way_counts_in_part() -> None:
    steps = [[0.0, 2.0], [2.0, 4.0]]
    active = [(0.0, 9.0)]
    assert progress(steps, 4.0, active, (0.0, 5.0)) == pytest.approx(2.5)
    assert progress(steps, 4.0, active, (0.0, 9.0)) == pytest.approx(3.0), "at most a whole one"
    assert progress([], 4.0, active, (0.0, 5.0)) == 0.0, "nobody knows how long it is"


def test_the_oracle_is_the_protocols() -> None:
    # compute_sharing 7.4: at 1 % and a busy share of 0.7, 30.7 % are left.
    assert oracle(0.7) == pytest.approx(0.307, abs=5e-4)
    assert oracle(1.2) == 0.0


# --- clocks ---


@pytest.mark.parametrize(
    ("alone", "shared", "kept"),
    [(1980.0, 1961.0, True), (1980.0, 1950.0, False), (1950.0, 1980.0, False)],
)
def test_c17_a_pair_whose_clock_moved_is_dropped(
    alone: float, shared: float, *, kept: bool
) -> None:
    moved = pair(slower=0.2, alone_mhz=alone, shared_mhz=shared)
    assert clean_pairs([moved, pair()]) == ([moved, pair()] if kept else [pair()])


def test_c17_without_knowing_the_clock_the_pair_tells_a_slowdown_that_is_none(
    tmp_path: Path,
) -> None:
    # The card ran a tenth slower in every second window: nobody shared anything.
    throttled = pair(slower=0.1, alone_mhz=1980.0, shared_mhz=1782.0)
    blind = replace(throttled, alone_mhz=None, shared_mhz=None)
    assert slowdown_of(tmp_path, [throttled, pair()]) == pytest.approx(0.0, abs=1e-9)
    assert slowdown_of(tmp_path, [blind, blind]) == pytest.approx(0.1)


def slowdown_of(out: Path, pairs: list[Pair]) -> float:
    told = tell(out, {"gap": pairs})
    return float(told["gap.slowdown"]["value"])


def tell(out: Path, modes: dict[str, list[Pair]], wanted: tuple[str, ...] = ("gap",)) -> Any:
    """Record made-up pairs; return the figures."""
    report = StageReport("pair-e1", out, figures_of(E1, wanted))
    record = PairRecord("a card", 8.0, {"alone_rate": 10.0}, modes)
    tell_sharing(report, E1, wanted, record, out / "pair-e1.png")
    return json.loads((out / "pair-e1.json").read_text())["figures"]


# --- figures ---


def test_slowdown_harvest_and_efficiency_of_a_mode(tmp_path: Path) -> None:
    modes = {
        "equal": [pair(made=0.0)],
        "gap": [pair(0.005, 20.0), pair(0.004, 21.0), pair(0.006, 19.0)],
        "duty_cycle": [pair(0.20, 14.0)] * 3,
        "rate_aimd": [],
    }
    told = tell(tmp_path, modes, ("gap", "duty_cycle", "rate_aimd"))
    assert told["busy_share"]["p50"] == 0.7
    assert told["oracle"]["value"] == pytest.approx(oracle(0.7))
    ours = told["gap.slowdown"]
    assert ours["value"] == pytest.approx(0.005)
    assert ours["low"] <= ours["value"] <= ours["high"]
    assert ours["target"] == {"most": 0.01, "of": "value", "met": True}
    assert (ours["pairs"], ours["dropped"]) == (3, 0)
    assert told["gap.slowdown_p99"]["target"]["most"] == 0.03
    assert told["gap.harvest"]["value"] == pytest.approx(20.0 / 7.0 / 10.0)
    assert told["gap.efficiency"]["value"] == pytest.approx(2.0 / 7.0 / oracle(0.7))
    assert told["gap.efficiency"]["target"] == {"least": 0.85, "of": "value", "met": True}
    assert "target" not in told["duty_cycle.slowdown"], "what others reach is reported"
    assert told["gap.slowdown_less.duty_cycle"]["target"]["met"] is True
    assert told["gap.harvest_over.duty_cycle"]["value"] == pytest.approx(20.0 / 14.0)
    assert told["equal.slowdown"]["value"] == pytest.approx(0.0)
    assert "time was up" in told["rate_aimd.harvest"]["reason"]
    assert "one of both" in told["gap.harvest_over.rate_aimd"]["reason"]
    assert set(told) == {
        name
        for name in figures_of(E1, ("gap", "duty_cycle", "rate_aimd"))
        if not name.startswith(APART)
    }


def test_a_target_that_is_missed_is_a_figure(tmp_path: Path) -> None:
    told = tell(tmp_path, {"gap": [pair(0.05, 1.0)]})
    assert told["gap.slowdown"]["target"]["met"] is False
    assert told["gap.efficiency"]["target"]["met"] is False


@pytest.mark.parametrize(
    "useless", [pair(shared=[]), pair(alone=[]), pair(alone_mhz=1980.0, shared_mhz=1500.0)]
)
def test_a_mode_of_which_no_pair_counts_says_why(tmp_path: Path, useless: Pair) -> None:
    told = tell(tmp_path, {"gap": [useless, useless]})
    assert "in each of 2 pairs" in told["gap.slowdown"]["reason"]
    assert "in each of 2 pairs" in told["gap.efficiency"]["reason"]


def test_a_guaranteed_job_that_leaves_nothing_has_no_efficiency(tmp_path: Path) -> None:
    told = tell(tmp_path, {"gap": [pair(busy=1.1)]})
    assert "leaves nothing" in told["gap.efficiency"]["reason"]


def test_reactions_are_judged_by_their_99th_percentile(tmp_path: Path) -> None:
    report = StageReport("pair-e1", tmp_path, ["short", "none"])
    tell_tail(report, "short", [1e-4] * 98 + [5e-3, 6e-3], 1e-3)
    tell_tail(report, "none", [], 1e-3)
    told = json.loads((tmp_path / "pair-e1.json").read_text())["figures"]
    assert told["short"]["value"] == 6e-3
    assert told["short"]["p50"] == 1e-4
    assert told["short"]["target"]["met"] is False
    assert told["none"]["reason"] == "not run: nothing was seen"


def test_rivals_are_compared_with_ours_only_where_it_ran(tmp_path: Path) -> None:
    report = StageReport("pair-e1", tmp_path, [])
    tell_rivals(report, ("default", "duty_cycle"), {})
    assert report.missing() == []


def test_every_pair_and_mode_has_names_of_its_own() -> None:
    for name in PAIRS:
        names = figures_of(Jobs.parse(name), list(MODES))
        assert len(set(names)) == len(names)
    assert "reaction.close_to_quiet.11.0ms" in figures_of(Jobs.parse("e3"), ["gap"])


# --- pictures ---


def test_the_picture_shows_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    tell(tmp_path, {"gap": [pair(0.005)] * 3})
    assert (tmp_path / "pair-e1.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    points = {"gap": pair_picture.Point(0.3, 0.005, 0.004, 0.006)}
    assert "no package matplotlib" in pair_picture.draw(points, 0.3, "", tmp_path / "none.png")
    assert pair_picture.draw({}, 0.3, "", tmp_path / "none.png") == "nothing was measured"
    assert not (tmp_path / "none.png").exists()


# --- what fits into the time ---


def test_with_time_enough_nothing_is_shortened() -> None:
    assert plan(1000.0, [0.5, 6.0], 3, 8.0) == Plan(3, 8.0, 3)


def test_first_equal_windows_give_way_then_windows_get_shorter_then_pairs_go() -> None:
    settling = [0.5, 6.0, 1.0, 35.0]
    assert plan(42.5 + 24 * 8.0 + 2 * 8.0, settling, 3, 8.0) == Plan(3, 8.0, 1)
    assert plan(42.5 + 26 * 4.0, settling, 3, 8.0) == Plan(3, 4.0, 1)
    assert plan(42.5 + 24 * 2.5, settling, 3, 8.0) == Plan(3, 2.5, 0)
    assert plan(42.5 + 16 * 3.0, settling, 3, 8.0) == Plan(2, 3.0, 0)
    assert plan(10.0, settling, 3, 8.0) == Plan(1, pair_figures.LEAST_WINDOW, 0)


@pytest.mark.parametrize("available", [60.0, 120.0, 200.0, 300.0, 500.0])
def test_what_is_planned_fits_unless_it_is_the_least(available: float) -> None:
    settling = [0.5, 6.0, 1.0, 35.0, 3.0]
    chosen = plan(available, settling, 3, 8.0)
    windows = 2 * (chosen.pairs * len(settling) + chosen.equal_pairs)
    least = chosen == Plan(1, pair_figures.LEAST_WINDOW, 0)
    assert least or sum(settling) + windows * chosen.seconds <= available + 1e-6


# --- files of pairs ---


def test_what_is_kept_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_KEY", "a key")
    parts = KeptParts("pair-e1", tmp_path)
    assert PairRecord.take("a card", parts) == PairRecord("a card")
    record = PairRecord("a card", 8.0, {"alone_rate": 3.0}, {"gap": [pair(), pair(0.1)]})
    record.keep(parts)
    assert PairRecord.take("a card", KeptParts("pair-e1", tmp_path)) == record
    monkeypatch.setenv("STAGE_KEY", "of other sources")
    other = KeptParts("pair-e1", tmp_path)
    assert PairRecord.take("a card", other) == PairRecord("a card")


# --- sensors ---


def test_without_nvml_or_its_sensors_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(NoSensors, match=r"no sensors in .*none.so"):
        nvml_reader("GPU-a", str(tmp_path / "none.so"))
    with pytest.raises(NoSensors, match="nvmlDeviceGetClockInfo"):
        nvml_reader("GPU-a", ctypes.CDLL(None)._name or "libc.so.6")
    report = StageReport("pair-e1", tmp_path, ["sm_clock", "power", "temperature"])
    tell_sensors(report, None, "no sensors in none.so")
    told = json.loads((tmp_path / "pair-e1.json").read_text())["figures"]
    assert told["power"]["reason"] == "not run: no sensors in none.so"


def test_readings_are_told_and_a_window_has_a_median_clock(tmp_path: Path) -> None:
    clocks = iter([1980, 1965, 1950])

    def read() -> Reading:
        for mhz in clocks:
            return Reading(time.monotonic(), mhz, 350_000, 55)
        raise NoSensors("the card is gone")

    begin = time.monotonic()
    sensors = Sensors(read, 0.01)
    end = begin + 60.0
    while not sensors.problem and time.monotonic() < end:
        time.sleep(0.01)
    sensors.close()
    assert sensors.problem == "the card is gone"
    assert sensors.median_clock(begin, end) == 1965
    assert sensors.median_clock(begin - 2.0, begin - 1.0) is None
    report = StageReport("pair-e1", tmp_path, ["sm_clock", "power", "temperature"])
    tell_sensors(report, sensors, sensors.problem)
    told = json.loads((tmp_path / "pair-e1.json").read_text())["figures"]
    assert told["sm_clock"]["readings"] == [1980, 1965, 1950]
    assert told["power"]["p50"] == 350.0
    assert told["power"]["problem"] == "the card is gone"


# --- jobs ---


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[str], PairProcess]:
    """Return a job whose script is the text that is given."""

    def make(body: str) -> PairProcess:
        script = tmp_path / "job.py"
        script.write_text(body)
        return PairProcess("guaranteed", [], script=script)

    return make


def test_a_job_answers_with_what_is_marked(scripted: Callable[[str], PairProcess]) -> None:
    body = "for line in open(0): print('noise'); print('= [1, \"%s\"]' % line.strip(), flush=True)"
    with scripted(body) as job:
        assert job.ask("take") == [1, "take"]


def test_a_job_that_dies_says_its_last_words(scripted: Callable[[str], PairProcess]) -> None:
    with (
        scripted("import sys; sys.exit('no device')") as job,
        pytest.raises(JobDied, match="guaranteed ended with code 1 at 'go': no device"),
    ):
        job.ask("go")


def test_a_job_that_is_silent_is_not_waited_for(scripted: Callable[[str], PairProcess]) -> None:
    with (
        scripted("import time; time.sleep(600)") as job,
        pytest.raises(JobDied, match="no answer to 'go' in 0 s"),
    ):
        job.ask("go", 0.1)


def test_a_job_that_refuses_is_an_error(scripted: Callable[[str], PairProcess]) -> None:
    with (
        scripted('print(\'= {"error": "unknown order: x"}\', flush=True); input()') as job,
        pytest.raises(JobDied, match="unknown order: x"),
    ):
        job.answer("x", 60.0)


def test_a_job_that_dies_fails_the_stage_and_leaves_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Callable[[str], PairProcess]
) -> None:
    class Both:
        def __init__(self, *_: object) -> None:
            self.job = scripted("import sys; sys.exit('CUDA error: no kernel image')")

        def __enter__(self) -> tuple[PairProcess, PairProcess, None]:
            return self.job, self.job, None

        def __exit__(self, *_: object) -> None:
            self.job.__exit__()

    monkeypatch.setattr(pair_stage, "both_jobs", Both)
    assert pair_stage.main(["e2", "--out", str(tmp_path)]) == 1
    told = json.loads((tmp_path / "pair-e2.json").read_text())
    assert told["complaints"] == ["check failed: both jobs lived to the end"]
    assert "no kernel image" in told["checks"]["both jobs lived to the end"]["detail"]
    assert all("reason" in figure for figure in told["figures"].values())


def test_batches_are_halved_until_two_jobs_find_room() -> None:
    assert fitting(128, 16.0, 80 * pair_job.GiB) == 128
    assert fitting(128, 16.0, 24 * pair_job.GiB) == 64
    assert fitting(8, 30.0, pair_job.GiB) == 1


def test_a_pause_is_quiet_when_what_was_issued_before_it_is_done() -> None:
    # Issued, begun and ended on the device; the last one waited at the gate.
    ops = [(0.9, 0.9, 1.0), (1.0, 1.0, 1.0004), (1.0, 1.0004, 1.0009), (1.0203, 1.0009, 1.0204)]
    told = reactions(ops, [(1.0002, 1.02)])
    assert told["quiet"] == [pytest.approx(0.0007)]
    assert told["first"] == [pytest.approx(0.0004)]
    assert reactions(ops, [(1.001, 1.02)])["quiet"] == [0.0], "nothing was left to do"
    assert reactions(ops, [(2.0, 3.0)])["first"] == [], "no op came after it"


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize("kind", ["gpt", "normalised"])
def test_a_job_that_goes_back_to_its_first_state_has_the_same_losses(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(pair_job.Gpt2, "TOKENS", 128)
    torch.manual_seed(1)
    if kind == "gpt":
        gpt = pair_job.Gpt2(32, 2, 2, 16)
        text = torch.randint(100, (2, 16))
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(gpt.parameters(), lr=1e-3)
        work = pair_job.training(gpt, optimizer, lambda: gpt(text))
    else:
        body = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        optimizer = torch.optim.SGD(body.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(4, 8)
        work = pair_job.training(body, optimizer, lambda: body(x).square().mul(x).sum())
    work.keep()
    first = [work.step(index).item() for index in range(4)]
    assert len(set(first)) == 4, "it learns"
    moved = [part.detach().clone() for part in work.state]
    work.restore()
    assert not all(torch.equal(*both) for both in zip(moved, work.state, strict=True))
    assert [work.step(index).item() for index in range(4)] == first


class FakeEvent:
    """An event of a device whose time is told by the test; done when that has come."""

    now = 0.0
    reached = 0.0

    def __init__(self, **_: bool) -> None:
        self.at = math.inf

    def record(self) -> None:
        self.at = FakeEvent.now

    def query(self) -> bool:
        return self.at <= FakeEvent.reached

    def synchronize(self) -> None:
        FakeEvent.reached = max(FakeEvent.reached, self.at)

    def elapsed_time(self, later: FakeEvent) -> float:
        return (later.at - self.at) * 1e3


def test_a_step_begins_when_its_batch_and_the_device_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(pair_job.time, "monotonic", lambda: 50.0)
    timeline = Timeline()
    timeline.begin()  # 50.0 by the clock is 0.0 on the device
    timeline.arrived(51.0)
    FakeEvent.now = 3.0
    timeline.issued()
    timeline.arrived(52.0)  # while the device still has the first one
    FakeEvent.now = 5.0
    timeline.issued()
    assert timeline.take() == {"steps": [], "since": 51.0}
    FakeEvent.reached = 4.0
    told = timeline.take()
    assert [step[:2] for step in told["steps"]] == [(51.0, 53.0)]
    assert told["since"] == 53.0
    FakeEvent.now = 6.0
    timeline.border()  # what comes between two cycles
    timeline.arrived(55.5)
    FakeEvent.now = FakeEvent.reached = 8.0
    timeline.issued()
    assert [step[:2] for step in timeline.take()["steps"]] == [(53.0, 55.0), (56.0, 58.0)]


def test_losses_are_compared_with_those_of_the_first_cycle() -> None:
    losses = Losses("cpu")
    for _ in range(2):
        for index in range(pair_job.CYCLE):
            losses.note(torch.tensor(float(index)))
    assert (losses.told()["compared"], losses.told()["different"]) == (pair_job.CYCLE, 0)
    losses.note(torch.tensor(1e-30))
    told = losses.told()
    assert (told["different"], told["first_different"]) == (1, 2 * pair_job.CYCLE)


# --- a stage over jobs that are made up ---


class FakeJob:
    """Answers like a job whose steps take 10 ms, in time that passes when somebody sleeps."""

    def __init__(self, name: str, world: FakeWorld, rate: float) -> None:
        self.name = name
        self.world = world
        self.rate = rate
        self.ops = 1000.0  # a second
        self.taken = 0.0
        self.orders: list[str] = []

    def ask(self, order: str, _: float = 60.0) -> Any:
        self.orders.append(order)
        now = self.world.now
        if order == "stats":
            return {"law": self.world.law, "ops_seen_total": int(self.ops * now), "host_bytes": 0}
        if order == "take":
            begin, self.taken = self.taken, now
            count = int((now - begin) * self.rate)
            ends = [begin + (i + 1) / self.rate for i in range(count)]
            return {"steps": [[end - 0.01, end, 0.002] for end in ends], "since": None}
        if order == "losses":
            return {"compared": 8, "different": 0}
        return "done"


class FakeWorld:
    def __init__(self) -> None:
        self.now = 100.0
        self.law = "gap"
        self.changes: list[dict[str, Any]] = []

    def set(self, _: str, terms: JobTerms | None = None, **change: Any) -> None:
        change |= {name: value for name, value in vars(terms or JobTerms()).items() if value}
        self.law = change.get("law") or self.law
        self.changes.append(change)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


def made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: list[str], seconds: float
) -> tuple[pair_stage.Stage, FakeWorld]:
    world = FakeWorld()
    monkeypatch.setattr(pair_stage, "time", world)
    monkeypatch.setenv("STAGE_KEY", "a key")
    report = StageReport("pair-e1", tmp_path, figures_of(E1, modes))
    record = PairRecord.take("a card", report.kept)
    stage = pair_stage.Stage(
        *(E1, modes, 3, 8.0, 1, report, record, world.now + seconds),
        *(FakeJob("guaranteed", world, 70.0), FakeJob("opportunistic", world, 20.0)),  # type: ignore[arg-type]
        node=world,  # type: ignore[arg-type]
    )
    stage.calibrate()
    return stage, world


def test_a_stage_measures_all_pairs_and_changes_laws_while_the_job_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, world = made_up(tmp_path, monkeypatch, ["default", "gap", "duty_cycle"], 1000.0)
    stage.measure()
    stage.losses()
    kept = PairRecord.take("a card", KeptParts("pair-e1", tmp_path))
    assert {mode: len(pairs) for mode, pairs in kept.modes.items()} == {
        **{"equal": 1, "default": 3, "gap": 3, "duty_cycle": 3}
    }
    assert kept.calibration["stall_seconds"] == pytest.approx(0.01 / 0.7 - 0.002)
    assert kept.calibration["alone_rate"] == pytest.approx(20.0)
    found = kept.modes["gap"][0]
    assert found.progress / found.seconds == pytest.approx(20.0, rel=0.05)
    assert found.busy == pytest.approx(0.7, rel=0.02)
    laws = [change["law"] for change in world.changes if "law" in change]
    assert laws == ["open", "open", "gap", "duty_cycle", "open"]
    share = [change["share"] for change in world.changes if change.get("law") == "duty_cycle"]
    assert share[0].max_share == pytest.approx(oracle(0.7), abs=0.02), "what is left, no more"
    paused = False
    for change in world.changes:
        assert "law" not in change or paused or change["law"] == "open"
        paused = change.get("paused", paused)
    checks = json.loads((tmp_path / "pair-e1.json").read_text())["checks"]
    assert all(check["held"] for check in checks.values())
    assert "gap: ops passed the gate" in checks


def test_a_stage_that_is_out_of_time_keeps_what_it_has_and_a_later_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, _ = made_up(tmp_path, monkeypatch, ["default", "gap"], 90.0)
    stage.measure()
    first = PairRecord.take("a card", KeptParts("pair-e1", tmp_path))
    assert {mode: len(pairs) for mode, pairs in first.modes.items()} == {"equal": 1, "default": 3}
    assert stage.left() > 0.0, "what there is no time for is not begun"
    later, world = made_up(tmp_path, monkeypatch, ["default", "gap"], 100.0)
    later.measure()
    kept = PairRecord.take("a card", KeptParts("pair-e1", tmp_path))
    assert len(kept.modes["gap"]) == 3
    assert kept.modes["default"] == first.modes["default"], "not measured again"
    assert [change["law"] for change in world.changes if "law" in change] == ["open", "gap", "open"]


def test_a_mode_in_which_a_job_does_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, _ = made_up(tmp_path, monkeypatch, ["gap"], 1000.0)
    stage.other.rate = 0.01  # type: ignore[attr-defined]
    stage.other.ops = 0.0  # type: ignore[attr-defined]
    stage.measure()
    checks = json.loads((tmp_path / "pair-e1.json").read_text())["checks"]
    assert not checks["gap: both jobs went on"]["held"]


def test_a_step_that_is_held_back_counts_in_each_of_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, _ = made_up(tmp_path, monkeypatch, ["gap"], 1000.0)
    monkeypatch.setattr(stage, "settle", lambda *_: None)
    job = stage.other
    ended = iter([[], [], [], [[math.nan, math.nan, 0.0]]])

    def ask(order: str, _: float = 60.0) -> Any:
        if order != "take":
            return FakeJob.ask(job, order)  # type: ignore[arg-type]
        steps = next(ended, [])
        for step in steps:  # from the first window on: it needs all of one, and some of the next
            step[:2] = [stage.active[0][0], stage.active[1][0] + 4.0]
        return {"steps": steps, "since": None}

    monkeypatch.setattr(job, "ask", ask)
    stage.pairs = 2
    stage.fill("gap", 2, pair_stage.MODES["gap"])
    made = [found.progress for found in stage.record.modes["gap"]]
    assert made[0] == pytest.approx(7.2 / 12.0, abs=0.02)
    assert made[1] == pytest.approx(3.2 / 12.0, abs=0.02)


def test_a_law_that_the_job_does_not_take_ends_the_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, world = made_up(tmp_path, monkeypatch, ["gap"], 1000.0)
    monkeypatch.setattr(world, "set", lambda *_, **__: None)
    with pytest.raises(JobDied, match="is paced by open, not by gap"):
        stage.pace("gap")


def share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, *more: str
) -> dict[str, Any]:
    """Go through the stage with jobs that are made up; return its JSON."""
    world = FakeWorld()
    card = {"card": "NVIDIA H100", "uuid": "GPU-1"}
    jobs = FakeJob("guaranteed", world, 70.0), FakeJob("opportunistic", world, 20.0)
    for job in jobs:
        monkeypatch.setattr(job, "answer", lambda *_: card, raising=False)
        react = {"quiet": [1e-4] * 100, "first": [1e-4], "ops": 9, "milliseconds": 0.1}
        ask = job.ask

        def told(order: str, patience: float = 60.0, ask: Any = ask, react: Any = react) -> Any:
            return react if order.startswith("react") else ask(order, patience)

        monkeypatch.setattr(job, "ask", told)
    monkeypatch.setattr(pair_stage, "time", world)
    monkeypatch.setattr(pair_stage, "both_jobs", lambda *_: nullcontext((*jobs, world)))
    monkeypatch.setattr(pair_stage, "on_the_gpu", lambda _: "")
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    monkeypatch.setenv("STAGE_SECONDS", str(seconds))
    pair_stage.main(["e1", "--out", str(tmp_path), "--modes", "default,gap", *more])
    found: dict[str, Any] = json.loads((tmp_path / "pair-e1.json").read_text())
    return found


def test_a_later_run_takes_windows_of_the_same_length_until_there_are_all_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = share(tmp_path, monkeypatch, 70.0)
    length = first["machine"]["window_seconds"]
    assert length < pair_stage.WINDOW_SECONDS
    assert "pairs of gap" in first["left"]
    for _ in range(3):
        told = share(tmp_path, monkeypatch, 300.0)
    assert told["machine"]["window_seconds"] == length
    assert told["left"] == []
    assert told["figures"]["gap.slowdown"]["pairs"] == 3
    again = share(tmp_path, monkeypatch, 300.0, "--seconds", "7")
    assert again["machine"]["window_seconds"] == 7.0, "as it is asked for, all of them anew"
    assert again["left"] == []


def test_jobs_are_on_the_gpu_when_the_status_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld()
    monkeypatch.setattr(pair_stage, "time", world)
    places = {"guaranteed": ["GPU-a"], "opportunistic": ["host"]}

    def status() -> dict[str, Any]:
        return {"jobs": [{"job": {"name": name}, "devices": at} for name, at in places.items()]}

    monkeypatch.setattr(world, "status", status, raising=False)
    assert "'opportunistic': ['host']" in pair_stage.on_the_gpu(world)  # type: ignore[arg-type]
    places["opportunistic"] = ["MIG-b"]
    assert pair_stage.on_the_gpu(world) == ""  # type: ignore[arg-type]


# --- the command line ---


@pytest.mark.parametrize("text", ["e4", "G2+O1", "G1:7+O1", "O1+G1", "G1:0.7"])
def test_a_pair_that_there_is_not_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no pair: e1, e2, e3"):
        Jobs.parse(text)


def test_pairs_by_hand() -> None:
    assert Jobs.parse("G1:0.9+O3") == Jobs("G1-0.9-O3", "G1", "O3", 0.9)
    assert Jobs.parse("e2") == Jobs("e2", "G3", "O2", None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--modes", "gap,nice"], "no such mode: 'nice'"),
        (["--modes", "gap,gap"], "a mode is named twice"),
        (["--seconds", "0"], "must be above 0: 0"),
        (["--pairs", "-1"], "must be above 0: -1"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        pair_stage.main(["e1", "--out", str(tmp_path), *arguments])
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err
