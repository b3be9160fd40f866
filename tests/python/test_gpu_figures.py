# SPDX-License-Identifier: Apache-2.0
"""What the stage `figures` of tests/gpu/run_all.sh makes of what its processes tell, or do not."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from world import wait_until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import cell_runs
import figure_bench
import figures_parking
import figures_picture
import figures_stage
import free_memory
from cell_runs import Cell, CellFailed, MissingPeer
from figure_bench import GIB, Bench, Sizes
from figures_allocation import OURS
from stage_report import StageReport

pytestmark = pytest.mark.tool("tests/gpu")

Answer = dict[str, Any]
Order = Callable[[str, Answer], Answer]
RETAINED_EXCHANGE = "m6.torch_memory_saver_retained.exchange"
CARD = {"card": "a card", "uuid": "1", "free_bytes": 80 * GIB, "host_bytes": 128 * GIB}


def cells() -> dict[str, Order]:
    """What processes of each kind tell where all is well, by the cell's name."""
    moved = {"seconds": 0.01, "visible_seconds": 0.02, "reason": ""}
    same = {"same": True, "addresses": True}
    seconds = {"usual": [1.0], "taken": [1.1], "limited": [1.02]}
    limit = {"limit_bytes": 9, "device_bytes": 9}
    links = {way: [50.0 * GIB] for way in ("d2h", "h2d", "duplex")}
    replays = {"before": [1.0], "after": [1.0], "reasons": []}

    def job(what: str, details: Answer) -> Answer:
        if what in ("hold", "hold_dropped"):
            return {"bytes": details["bytes"], "way": "a way", "reason": ""}
        if what == "held":
            job.held = not getattr(job, "held", False)  # type: ignore[attr-defined]
            device = 33 * GIB if job.held else GIB  # type: ignore[attr-defined]
            return {"device_bytes": device, "host_bytes": GIB, "free_bytes": 100 * GIB - device}
        if what == "allocate":
            return {"survived": True, "error": ""}
        if what == "take_all_but":
            job.taken = True  # type: ignore[attr-defined]
        if what == "leave":
            job.taken = False  # type: ignore[attr-defined]
        if what == "wake" and getattr(job, "taken", False):
            return moved | {"reason": "no room"}
        return same if what == "check" else moved

    return {
        "card": lambda what, _: CARD if what == "about" else links | {"pin": GIB, "same": True},
        "traces": lambda _, details: {
            "nanoseconds": [500.0] if details else 60.0,
            "pairs": 7,
            "reserved_peak_bytes": 10,
            "left_bytes": 0,
        },
        "give_back": lambda _, details: (
            moved | same | {"grow_seconds": 0.1, "ahead_bytes": details["bytes"]}
        ),
        "antman_shrink": lambda *_: moved | same | {"grow_seconds": 0.1},
        "job": job,
        "checkpoint": lambda *_: moved | {"visible": True, "left_bytes": 0},
        "graph": lambda *_: replays | {"same_before": True, "same": True, "source": True},
        "steps": lambda *_: {"seconds": [1.0]},
        "resnet": lambda *_: {"seconds": [1.0], "memory": limit, "same": True},
        "adam": lambda what, _: (
            seconds
            | {"stopped_seconds": 0.1, "moved_bytes": 4, "ahead_bytes": 2, "above_limit_bytes": 0}
            | {"reason": "", "deferred": "", "host_bytes": 4, "same": True}
        ),
    }


class Stage:
    """A run of the stage whose processes are made up: `tell` by name, or by name and variant."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.tell: dict[str | tuple[str, str], Order] = dict(cells().items())
        self.started: list[tuple[str, str]] = []
        self.ended: list[tuple[str, str]] = []
        stage = self

        class MadeUp:
            def __init__(self, name: str, variant: str, _folder: Path) -> None:
                self.key = (name, variant)
                stage.started.append(self.key)
                self.tell = stage.tell.get(self.key) or stage.tell[name]
                self.pid = 1
                self.sent: tuple[str, Answer] = ("", {})

            def __enter__(self) -> MadeUp:
                return self

            def __exit__(self, *_: object) -> None:
                self.close()

            def make(self, _deadline: float, **_settings: object) -> MadeUp:
                return self

            def order(self, what: str = "run", **details: object) -> Answer:
                return self.tell(what, details)

            def send(self, what: str, **details: object) -> None:
                self.sent = (what, details)

            def answer(self) -> Answer:
                return self.tell(*self.sent)

            def close(self) -> None:
                stage.ended.append(self.key)

        class MadeUpWatcher(nullcontext[None]):
            path = ""

            def __init__(self, *_: object) -> None:
                super().__init__()

        monkeypatch.delenv("COMMENSAL_SIMULATED_RUN", raising=False)
        monkeypatch.setattr(figure_bench, "Cell", MadeUp)
        monkeypatch.setattr(figures_stage, "Cell", MadeUp)
        monkeypatch.setattr(figures_stage, "Watcher", MadeUpWatcher)

    def told(self, *names: str, seconds: float = 300.0) -> Answer:
        every = figures_stage.groups()
        chosen = [every[name] for name in names or every]
        figures = [*figures_stage.LINK, *(one for group in chosen for one in group.figures)]
        report = StageReport("figures", self.out, figures)
        bench = Bench(report, self.out, time.monotonic() + seconds)
        figures_stage.measure(bench, chosen, self.out)
        bench.close()
        report.finish()
        found: Answer = json.loads((self.out / "figures.json").read_text())
        return found


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


def failed(told: Answer) -> list[str]:
    return [name for name, check in told["checks"].items() if not check["held"]]


def dies(words: str) -> Order:
    def tell(_what: str, _details: Answer) -> Answer:
        raise CellFailed(words)

    return tell


def changed(order: Order, when: str, **values: object) -> Order:
    """Tell the same but for some values at one order."""
    return lambda what, details: order(what, details) | (values if what == when or not when else {})


def test_every_figure_of_every_group_has_a_value_or_a_reason(stage: Stage) -> None:
    told = stage.told()
    assert told["complaints"] == []
    assert told["whole"] is True
    figures = told["figures"]
    reasons = {name for name, figure in figures.items() if "reason" in figure}
    rows = {f"m{number}" for number in range(1, 13)}
    assert {name.split(".")[0] for name in figures} > rows
    assert not {name for name in reasons if "commensal" in name}
    assert figures["allocator.pair_ratio.gpt"]["p50"] == 1.0
    assert figures["allocator.pair_ratio.gpt"]["target"]["met"] is True
    assert figures["pause_resume.against_default"]["target"]["met"] is False
    assert figures["stop_time.adam"]["value"] == 0.1
    assert sorted(stage.started) == sorted(stage.ended)


def test_a_speed_is_by_when_others_see_the_bytes(stage: Stage) -> None:
    told = stage.told("park")
    # 20 GiB, seen as free after 20 ms although the call took 10.
    assert told["figures"]["m1.commensal.pause"]["p50"] == pytest.approx(1000.0)
    assert told["figures"]["m1.commensal.resume"]["p50"] == pytest.approx(2000.0)
    assert told["figures"]["m1.commensal.pause_of_link"]["value"] == pytest.approx(20.0)


def test_a_crash_costs_its_own_figures_only(stage: Stage) -> None:
    stage.tell["give_back", OURS] = dies("give_back (opportunistic) ended with code -11: bang")
    told = stage.told("give_back", "antman_shrink")
    assert failed(told) == [
        "give_back.cached: was measured",
        "give_back.live: was measured",
        "give_back.ahead: was measured",
    ]
    assert "code -11: bang" in told["figures"]["give_back.live"]["reason"]
    assert told["figures"]["antman_shrink.shrink.opportunistic"]["p50"] == 10.0
    assert told["complaints"] == [f"check failed: {name}" for name in failed(told)]


def test_a_missing_peer_is_a_reason_and_no_failure(stage: Stage) -> None:
    def missing(_what: str, _details: Answer) -> Answer:
        raise MissingPeer("no package torch_memory_saver")

    for name in ("job", "traces"):
        for variant in ("saver", "saver_retained"):
            stage.tell[name, variant] = missing
    told = stage.told()
    assert told["complaints"] == []
    for figure in (
        "m1.torch_memory_saver.pause",
        "pause_resume.against_default",
        "m8.pair_ratio.saver",
    ):
        assert told["figures"][figure]["reason"] == "not run: no package torch_memory_saver"
    assert "value" in told["figures"]["m1.commensal.pause_of_link"]


def test_a_peer_that_crashes_fails_nothing(stage: Stage) -> None:
    stage.tell["job", "saver"] = dies("job (saver) ended with code 1: cudaError")
    told = stage.told("park_default", "neighbour")
    assert failed(told) == []
    assert "cudaError" in told["figures"]["m1.torch_memory_saver.resume"]["reason"]


def test_a_peer_that_dies_without_memory_did_not_survive(stage: Stage) -> None:
    job = cells()["job"]

    def tell(what: str, details: Answer) -> Answer:
        return (
            dies("job (saver) ended with code 1")("", {})
            if what == "allocate"
            else job(what, details)
        )

    stage.tell["job", "saver"] = tell
    told = stage.told("neighbour")
    assert failed(told) == []
    assert told["figures"]["m10.torch_memory_saver.survives"]["value"] == 0.0
    assert "died" in told["figures"]["m11.torch_memory_saver.survives"]["reason"]
    assert told["figures"]["m10.commensal.survives"]["value"] == 1.0


@pytest.mark.parametrize(
    ("group", "cell", "when", "values", "figure"),
    [
        ("park_default", "saver", "check", {"same": False}, "m1.torch_memory_saver.pause"),
        ("park_default", "saver", "check", {"addresses": False}, "pause_resume.against_default"),
        ("park_others", "vllm", "park", {"visible_seconds": None}, "m1.vllm_emulated.pause"),
        ("exchange", "saver_retained", "check", {"same": False}, RETAINED_EXCHANGE),
        ("checkpoint", "native", "check", {"same": False}, "m1.cucheckpoint.resume"),
    ],
)
def test_what_others_lose_is_the_reason_why_they_have_no_figure(
    stage: Stage, group: str, cell: str, when: str, values: Answer, figure: str
) -> None:
    stage.tell["job", cell] = changed(stage.tell["job"], when, **values)
    told = stage.told(group)
    assert failed(told) == []
    assert told["figures"][figure]["reason"].startswith("not run: not so: ")


def test_a_driver_without_checkpoints_is_a_reason(stage: Stage) -> None:
    reason = "this driver has no cuCheckpointProcessLock"
    stage.tell["checkpoint"] = lambda *_: {"reason": reason}
    told = stage.told("checkpoint")
    assert failed(told) == []
    assert told["figures"]["m1.cucheckpoint.pause"]["reason"] == f"not run: {reason}"


@pytest.mark.parametrize(
    ("group", "cell", "when", "values", "check"),
    [
        ("park", ("job", OURS), "check", {"same": False}, "M1 commensal: the content"),
        ("park", ("job", OURS), "check", {"addresses": False}, "M1 commensal: the content"),
        ("park", ("job", OURS), "park", {"visible_seconds": None}, "M1 commensal: another process"),
        ("park", ("job", OURS), "park", {"reason": "busy"}, "M1 commensal: nothing is deferred"),
        ("park", ("job", OURS), "held", {"free_bytes": 9 * GIB}, "M12 commensal: NVML"),
        ("give_back", ("give_back", OURS), "live", {"same": False}, "give back live memory: cont"),
        ("give_back", ("give_back", OURS), "cached", {"visible_seconds": None}, "give back cached"),
        ("allocator", ("traces", OURS), "run", {"left_bytes": 512}, ": as many blocks"),
        ("antman_shrink", ("antman_shrink", OURS), "", {"same": False}, "AntMan's shrink (opp"),
        ("stop_time", ("adam", OURS), "stop", {"same": False}, "stop time: the limit"),
        ("stop_time", ("adam", OURS), "stop", {"above_limit_bytes": 1}, "stop time: the limit"),
        ("stop_time", ("adam", OURS), "slow", {"host_bytes": 0}, "M9: weights"),
        ("resnet_90", ("resnet", OURS), "", {"same": False}, "ResNet-50: the limit"),
        ("neighbour", ("job", OURS), "allocate", {"survived": False}, "M10 commensal"),
        ("neighbour", ("job", OURS), "wake", {"reason": ""}, "M11 commensal"),
        ("exchange", ("job", OURS), "check", {"same": False}, "m6.commensal.exchange: both"),
        ("graph", ("graph", OURS), "", {"same": False}, "M7: a replay after"),
        ("graph", ("graph", OURS), "", {"same_before": False}, "M7: replays are right"),
    ],
)
def test_what_must_be_so_and_is_not_fails(
    stage: Stage, group: str, cell: tuple[str, str], when: str, values: Answer, check: str
) -> None:
    stage.tell[cell] = changed(stage.tell[cell[0]], when, **values)
    told = stage.told(group)
    assert failed(told), told
    assert all(check in name for name in failed(told)), failed(told)


def test_ratios_are_of_what_was_measured_before(stage: Stage) -> None:
    slow = {"seconds": 0.2, "visible_seconds": 0.2}
    stage.tell["job", "saver"] = changed(changed(stage.tell["job"], "park", **slow), "wake", **slow)
    told = stage.told("park", "park_default")
    # 400 ms against 20 until others see the bytes and 10 until they are back.
    ratio = told["figures"]["pause_resume.against_default"]
    assert ratio["value"] == pytest.approx(0.4 / 0.03)
    assert ratio["target"]["met"] is True
    told = stage.told("park_default")
    assert "was not measured" in told["figures"]["pause_resume.against_default"]["reason"]


def test_what_was_not_copied_ahead_is_no_figure(stage: Stage) -> None:
    stage.tell["give_back"] = changed(cells()["give_back"], "ahead", ahead_bytes=1)
    told = stage.told("give_back")
    assert failed(told) == []
    assert "1 of 1073741824 bytes" in told["figures"]["give_back.ahead"]["reason"]


def test_regions_without_effect_are_a_reason(stage: Stage) -> None:
    stage.tell["job"] = changed(cells()["job"], "hold_dropped", reason="no tag to drop")
    told = stage.told("park")
    assert failed(told) == []
    assert told["figures"]["m2.commensal.drop"]["reason"] == "not run: no tag to drop"


def test_an_answer_that_makes_no_sense_is_told(stage: Stage) -> None:
    stage.tell["resnet"] = changed(cells()["resnet"], "", seconds=[])
    told = stage.told("resnet_90")
    assert failed(told) == ["resnet_90.speed: was measured"]
    assert "StatisticsError" in told["figures"]["resnet_90.speed"]["reason"]


def test_what_there_is_no_time_for_says_so(stage: Stage) -> None:
    told = stage.told(seconds=-1.0)
    reasons = {
        figure["reason"]
        for name, figure in told["figures"].items()
        if name not in figures_stage.LINK
    }
    assert reasons == {"not run: the stage's time was up"}
    assert failed(told) == []


def test_a_cell_that_the_end_of_the_time_stops_is_no_failure(stage: Stage) -> None:
    def late(_what: str, _details: Answer) -> Answer:
        time.sleep(0.3)
        raise CellFailed("resnet (opportunistic): not done in time")

    stage.tell["resnet"] = late
    told = stage.told("resnet_90", seconds=0.2)
    assert failed(told) == []
    assert told["figures"]["resnet_90.speed"]["reason"] == "not run: the stage's time was up"


def test_groups_that_were_measured_are_not_measured_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    first = stage.told("park", "give_back")
    assert failed(first) == []
    stage.started.clear()
    told = stage.told("park", "give_back", "park_others")
    assert ("job", OURS) not in stage.started
    assert ("give_back", OURS) not in stage.started
    assert told["complaints"] == []
    assert set(first["figures"]) <= set(told["figures"])
    assert set(first["checks"]) <= set(told["checks"])
    # What others take is held to what commensal took in the earlier run.
    ratios = [name for name, _ in figures_parking.RATIOS.values()]
    assert any("value" in told["figures"].get(name, {}) for name in ratios)
    stage.started.clear()
    assert stage.told("park", "give_back", "park_others")["complaints"] == []
    assert set(stage.started) == {("card", "native")}, "the link is of each run"


def test_a_group_that_failed_is_measured_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    good = stage.tell["give_back"]
    stage.tell["give_back"] = dies("give_back ended with code 1: CUDA error")
    assert failed(stage.told("give_back")) != []
    stage.tell["give_back"] = good
    assert failed(stage.told("give_back")) == []


def test_without_a_card_every_figure_says_so(stage: Stage) -> None:
    stage.tell["card"] = dies("card (native) ended with code 1: No CUDA GPUs are available")
    told = stage.told()
    assert failed(told) == ["the card can be used and watched"]
    assert "No CUDA GPUs" in told["checks"]["the card can be used and watched"]["detail"]
    assert {figure["reason"] for figure in told["figures"].values()} == {
        "not run: the card cannot be used or watched"
    }
    assert sorted(stage.started) == sorted(stage.ended)


def test_a_dry_run_starts_no_peer_and_has_no_times(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMENSAL_SIMULATED_RUN", "1")
    told = stage.told()
    assert told["complaints"] == []
    assert {variant for _, variant in stage.started} == {"native", "antman", OURS, "guaranteed"}
    timed = [figure for figure in told["figures"].values() if figure.get("unit") in ("ms", "s")]
    assert timed == []
    assert told["figures"]["m1.torch_memory_saver.pause"]["reason"].startswith("not simulated: ")
    assert told["figures"]["allocator.reserved_ratio.digits_cnn"]["value"] == 1.0


def test_processes_of_the_next_group_start_beside_the_present_one(stage: Stage) -> None:
    stage.told("give_back", "resnet_90")
    assert stage.started == [("give_back", OURS), ("card", "native"), ("resnet", OURS)]
    stage.started.clear()
    stage.told("resnet_90", "overhead")
    assert stage.started[:3] == [("resnet", OURS), ("card", "native"), ("steps", "native")]
    assert stage.started[3] == ("steps", OURS)
    assert stage.started[4] == ("steps", "guaranteed"), "a guaranteed job comes with its own group"
    stage.started.clear()
    begun: list[list[tuple[str, str]]] = []
    steps = cells()["steps"]

    def tell(what: str, details: Answer) -> Answer:
        begun.append(list(stage.started))
        return steps(what, details)

    stage.tell["steps"] = tell
    stage.told("overhead", "resnet_90")
    assert ("resnet", OURS) not in begun[-1], "nothing may start beside what is quiet"


@pytest.mark.parametrize(
    ("free", "host", "kept", "parked"),
    [
        (80 * GIB, 128 * GIB, 20 * GIB, 20 * GIB),  # a quarter of the card
        (140 * GIB, 96 * GIB, 32 * GIB, 32 * GIB),  # a third of the host's memory
        (400 * GIB, 900 * GIB, 64 * GIB, 32 * GIB),
    ],
)
def test_sizes_are_bounded_by_card_and_host(free: int, host: int, kept: int, parked: int) -> None:
    sizes = Sizes(free, host)
    assert sizes.kept == kept
    assert sizes.parked == parked
    assert sizes.given_back == GIB
    assert sizes.antman[1] / sizes.antman[0] == pytest.approx(1.3 / 17.6, rel=0.01)


def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, variant: str) -> Cell:
    """Start a process whose program is a text."""
    (tmp_path / "cell.py").write_text(body)
    monkeypatch.setattr(cell_runs, "HERE", tmp_path)
    return Cell("job", variant, tmp_path)


TELLS = """
import json, os, sys
answers = os.fdopen(int(sys.argv[sys.argv.index("--answers") + 1]), "w")
for line in sys.stdin:
    print("noise")
    print(json.dumps({"heard": json.loads(line)}), file=answers, flush=True)
"""


def test_a_cell_hears_settings_and_orders_and_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cell(tmp_path, monkeypatch, TELLS, "native") as made:
        made.make(time.monotonic() + 60.0, bytes=7)
        assert made.order("park", part=0.5)["heard"] == {"do": "park", "part": 0.5}
        made.send("wake")
        assert made.answer()["heard"] == {"do": "wake"}
        pid = made.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_cell_that_crashes_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        cell(tmp_path, monkeypatch, "raise SystemExit('all is lost')", "native") as made,
        pytest.raises(CellFailed, match=r"job \(native\) ended with code 1: all is lost"),
    ):
        made.make(time.monotonic() + 60.0)


def test_a_cell_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "child"
    body = f"""
import os, time
if not os.fork():
    open({str(child)!r} + ".part", "w").write(str(os.getpid()))
    os.rename({str(child)!r} + ".part", {str(child)!r})
time.sleep(600)
"""
    with cell(tmp_path, monkeypatch, body, "native") as made:
        wait_until("it has a child", child.exists)
        with pytest.raises(CellFailed, match="not done in time"):
            made.make(time.monotonic() + 0.05)
    wait_until("the child has ended", lambda: not lives(int(child.read_text())))


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(("variant", "kind"), [("saver", MissingPeer), ("native", CellFailed)])
def test_only_a_peer_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str, kind: type[Exception]
) -> None:
    body = "raise ModuleNotFoundError(\"No module named 'torch_memory_saver'\")"
    with (
        cell(tmp_path, monkeypatch, body, variant) as made,
        pytest.raises(CellFailed) as caught,
    ):
        made.make(time.monotonic() + 60.0)
    assert type(caught.value) is kind


class Card:
    """A card's memory as a test says."""

    def __init__(self) -> None:
        self.bytes = 100

    def free(self) -> int:
        return self.bytes

    def held_by(self, pid: int) -> int | None:
        return 40 if pid == 7 else None


def test_a_watcher_tells_when_bytes_are_free(tmp_path: Path) -> None:
    card = Card()
    path = str(tmp_path / "watch")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        watch = free_memory.Watch(path)
        served = (listener.accept()[0], card, 0.001)
    threading.Thread(target=free_memory.serve_one, args=served, daemon=True).start()
    assert watch.free() == 100
    assert (watch.held(7), watch.held(8)) == (40, None)
    begin = time.monotonic()
    watch.arm(150)
    card.bytes = 160
    seen = watch.seen()
    assert seen is not None
    assert seen >= begin
    watch.arm(200, seconds=0.01)
    assert watch.seen() is None


def test_a_card_that_cannot_be_watched_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(OSError, match=r"libnvidia-ml|NVML"):
        free_memory.Watcher("none", tmp_path, 0.001)


class Product:
    """Stands for the package commensal: memory that comes back step by step, as far as it may."""

    def __init__(self, away: int, comes: int, stays: int = 0) -> None:
        self.away, self.comes, self.stays, self.limit = away, comes, stays, 0
        self.live = 0
        self.tags: list[Answer] = []

    def set_memory_limit(self, limit: int) -> None:
        self.limit = limit

    def step(self) -> None:
        self.away = max(self.stays, self.away - self.comes)

    def stats(self) -> Answer:
        memory = {"host_bytes": self.away, "parked_bytes": 0, "deferred_reason": ""}
        return {"memory": memory | {"tags": self.tags}}

    def region(self, tag: str) -> nullcontext[None]:
        self.tags.append({"name": tag, "live_bytes": self.live})
        return nullcontext()


@pytest.mark.parametrize(
    ("away", "stays", "reason"), [(0, 0, ""), (10, 0, ""), (10, 4, "4 bytes are not back: no room")]
)
def test_steps_end_until_memory_is_back_or_nothing_more_comes(
    monkeypatch: pytest.MonkeyPatch, away: int, stays: int, reason: str
) -> None:
    import parkers

    product = Product(away, comes=3, stays=stays)
    monkeypatch.setitem(sys.modules, "commensal", product)
    assert parkers.brought_back(99, patience=0.05) == reason
    assert product.limit == 99


@pytest.mark.parametrize(("live", "way"), [(8, "tag"), (0, "memory limit")])
def test_a_region_without_effect_is_found_out(
    monkeypatch: pytest.MonkeyPatch, live: int, way: str
) -> None:
    import parkers

    product = Product(0, 0)
    monkeypatch.setitem(sys.modules, "commensal", product)
    card = type("Card", (), {"total_memory": 64})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(parkers, "made", lambda size: torch.empty(size, dtype=torch.uint8))
    parked = parkers.Commensal()
    product.live = live
    assert sum(tensor.nbytes for tensor in parked.make([4, 4], keep=True)) == 8
    assert parked.way.startswith(way)
    if live:
        parked.make([4, 4], keep=False)
    else:
        with pytest.raises(parkers.NoWay, match="no tag to drop"):
            parked.make([4, 4], keep=False)


def test_blocks_of_a_mix_add_up() -> None:
    from contents import mix

    for total in (8 << 20, 30 << 20, GIB, 32 * GIB):
        sizes = mix(total)
        assert 0.98 * total <= sum(sizes) <= total
        assert all(size % 8 == 0 for size in sizes)


def test_a_replayed_trace_frees_all_that_it_allocates() -> None:
    from cells_allocation import program_of

    program, slots = program_of("digits_cnn", 2)
    held: set[int] = set()
    for slot, size in program:
        assert (slot in held) is (size == 0)
        held ^= {slot}
        assert slot < slots
    assert held == set()


def test_a_picture_has_how_far_figures_are_from_their_targets(tmp_path: Path) -> None:
    figures = {
        "time": {"p50": 5.0, "target": {"most": 10.0, "of": "p50", "met": True}},
        "ratio": {"value": 0.5, "target": {"least": 1.0, "of": "value", "met": False}},
        "less than nothing": {"p50": -0.1, "target": {"most": 0.3, "of": "p50", "met": True}},
        "no target": {"value": 3.0},
        "reason": {"reason": "not run: no card"},
    }
    assert figures_picture.margins(figures) == {"time": (2.0, True), "ratio": (0.5, False)}
    told = {"stage": "figures", "machine": {"card": "a card"}, "figures": figures}
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    assert figures_picture.draw(told, path) == ""
    assert path.read_bytes().startswith(b"\x89PNG")
    assert "no figure" in figures_picture.draw(told | {"figures": {}}, path)


def test_a_picture_that_cannot_be_drawn_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    figures = {"time": {"p50": 5.0, "target": {"most": 10.0, "of": "p50", "met": True}}}
    told = {"stage": "figures", "machine": {}, "figures": figures}
    assert figures_picture.draw(told, tmp_path / "x.png") == "no package matplotlib"
