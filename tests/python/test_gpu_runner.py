# SPDX-License-Identifier: Apache-2.0
"""How `tests/gpu/run_all.sh` shares out a card's time, packs, goes on, and ends what hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu" / "stages"))
import run_stages
import stack_dump
import toolchain
from card import short_name
from kept_parts import KeptParts, result_file
from stage_plan import STAGES, TooLittleTime, shares, units
from stage_report import TIME_WAS_UP, StageReport
from stage_results import Results, digest, sources_key

pytestmark = pytest.mark.tool("tests/gpu")

ROOT = Path(__file__).resolve().parents[2]
# Stands for stages.sh: what a stage does is a line of Python in a file of its name.
STUB = """#!/usr/bin/env bash
echo "$1 $STAGE_SECONDS ${STAGE_BESIDE:-}" >>"$STUBS/ran"
[ ! -e "$STUBS/$1.py" ] || exec "$PYTHON" "$STUBS/$1.py"
"""


def chosen(*names: str) -> list[Any]:
    return units([STAGES[name] for name in names])


# --- time ---


def test_each_stage_gets_its_least_and_the_rest_is_shared_by_what_they_want() -> None:
    planned = chosen("pair-e1", "figures")
    least = [STAGES[name].least for name in ("pair-e1", "figures")]
    wanted = [STAGES[name].wanted for name in ("pair-e1", "figures")]
    assert shares(planned, sum(least)) == least
    more = shares(planned, sum(least) + 45.0)
    assert sum(more) == pytest.approx(sum(least) + 45.0)
    assert (more[0] - least[0]) / (more[1] - least[1]) == pytest.approx(wanted[0] / wanted[1])


def test_stages_that_only_check_are_one_unit_and_the_others_are_alone() -> None:
    names = [
        [stage.name for stage in unit]
        for unit in chosen("build", "memory", "figures", "scripts", "adaptor", "rules", "pair-e1")
    ]
    assert names == [
        ["build"],
        ["memory", "scripts", "adaptor", "rules"],
        ["figures"],
        ["pair-e1"],
    ]
    assert shares(chosen("memory", "scripts"), 60.0) == [60.0], "the longest of them, not the sum"


def test_no_stage_wants_less_than_it_needs_and_all_fit_into_the_time_of_a_whole_run() -> None:
    assert all(stage.least <= stage.wanted for stage in STAGES.values())
    planned = chosen(*STAGES)
    wanted = [max(stage.wanted for stage in unit) for unit in planned]
    assert sum(wanted) <= run_stages.ALL_SECONDS


def test_too_little_time_names_what_fits() -> None:
    with pytest.raises(TooLittleTime) as refused:
        shares(chosen("probes", "figures", "memory"), 110.0)
    assert str(refused.value) == (
        "probes, figures, memory need 160 s at least, and there are 110; what fits: probes, memory"
    )
    with pytest.raises(
        TooLittleTime, match=r"pair-e1 needs 90 s .* 65; what fits: probes, adaptor"
    ):
        shares(chosen("pair-e1"), 65.0)
    with pytest.raises(TooLittleTime, match="no stage fits into that"):
        shares(chosen("pair-e1"), 1.0)


# --- a run of stages that are made up ---


class Card:
    """A made-up card and stages; `run` is a call of run_all.sh."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.name = "NVIDIA H100 80GB HBM3"
        self.key = "sources"
        (folder / "stages.sh").write_text(STUB)
        (folder / "stages.sh").chmod(0o755)
        (folder / "work").mkdir()
        (folder / "work" / "built").write_text(self.key)
        monkeypatch.setattr(run_stages, "STAGES_SH", folder / "stages.sh")
        monkeypatch.setattr(run_stages, "toolchain", self._toolchain)
        monkeypatch.setattr(run_stages, "card_name", lambda: (self.name, "no driver"))
        monkeypatch.setattr(run_stages, "sources_key", lambda **_: self.key)
        monkeypatch.setattr(run_stages, "END_SECONDS", 0.0)
        monkeypatch.setenv("OUT", str(self.out))
        for name in ("BUNDLE", "KEPT", "PRODUCT"):
            monkeypatch.delenv(name, raising=False)

    def _toolchain(self, given: Any) -> dict[str, str]:
        return {
            **given,
            "PYTHON": sys.executable,
            "PRODUCT": "built",
            "STUBS": str(self.folder),
            "torch_version": "2.11.0",
            "work": str(self.folder / "work"),
            "carried": str(self.folder / "carried"),
        }

    def stage(self, name: str, body: str) -> None:
        (self.folder / f"{name}.py").write_text(body)

    def run(self, *arguments: str) -> int:
        return run_stages.main(arguments)

    def ran(self) -> list[list[str]]:
        """Return the stages that ran since the last question: name, seconds, whether beside."""
        file = self.folder / "ran"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line.split() for line in lines]

    def told(self) -> dict[str, dict[str, Any]]:
        stages = json.loads((self.out / "run.json").read_text())["stages"]
        return {told["stage"]: told for told in stages}

    def packed(self) -> set[str]:
        with tarfile.open(self.out / "results.tar.gz") as archive:
            return {Path(name).name for name in archive.getnames()}


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Card:
    return Card(tmp_path, monkeypatch)


def test_a_run_leaves_two_files_and_each_result_has_the_cards_name(card: Card) -> None:
    assert card.run("--within", "300", "figures", "probes") == 0
    assert sorted(path.name for path in card.out.iterdir()) == ["results.tar.gz", "run.json"]
    assert card.packed() == {"h100-run.json", "h100-figures.log", "h100-probes.log"}
    told = json.loads((card.out / "run.json").read_text())
    assert (told["card"], told["sources"], told["torch"]) == ("h100", "sources", "2.11.0")
    assert [stage["exit_code"] for stage in told["stages"]] == [0, 0]
    first, second = (float(line[1]) for line in card.ran())
    assert 60.0 < first < 300.0 - 60.0
    assert second > 290.0, "what the first one did not need"


def test_results_are_packed_after_each_stage(card: Card) -> None:
    # The second stage sees what a cut would leave.
    card.stage(
        "probes",
        f"import shutil; shutil.copytree({str(card.out)!r}, {str(card.folder / 'seen')!r})",
    )
    assert card.run("--within", "300", "figures", "probes") == 0
    seen = json.loads((card.folder / "seen" / "run.json").read_text())
    assert [stage["stage"] for stage in seen["stages"]] == ["figures"]
    with tarfile.open(card.folder / "seen" / "results.tar.gz") as archive:
        assert f"{card.key}/h100-figures.log" in archive.getnames()


def test_what_passed_is_not_run_again_unless_card_or_sources_differ(card: Card) -> None:
    card.stage("memory", "raise SystemExit(1)")
    assert card.run("probes", "memory") == 1
    assert [line[0] for line in card.ran()] == ["probes", "memory"]
    card.stage("memory", "")
    assert card.run("probes", "memory") == 0
    assert [line[0] for line in card.ran()] == ["memory"]
    assert {name: told["exit_code"] for name, told in card.told().items()} == {
        **{"probes": 0, "memory": 0}
    }
    assert "h100-probes.log" in card.packed(), "kept results are results"
    assert card.run("probes", "memory") == 0
    assert card.ran() == []
    card.name = "NVIDIA H200"
    assert card.run("probes") == 0
    assert [line[0] for line in card.ran()] == ["probes"]
    card.key = "others"
    assert card.run("probes") == 0
    assert [line[0] for line in card.ran()] == ["build", "probes"], "these are not built yet"


def test_what_was_brought_back_is_what_another_machine_goes_on_with(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert card.run("probes") == 0
    with tarfile.open(card.out / "results.tar.gz") as archive:
        archive.extractall(card.folder / "elsewhere", filter="data")
    monkeypatch.setenv("KEPT", str(card.folder / "elsewhere"))
    monkeypatch.setenv("OUT", str(card.folder / "new"))
    card.ran()
    assert card.run("probes") == 0
    assert card.ran() == []
    assert (card.folder / "new" / "run.json").exists()


def test_a_stage_that_had_no_time_for_all_runs_again(card: Card) -> None:
    body = (
        "import os, pathlib;"
        "out = pathlib.Path(os.environ['OUT']) / (os.environ['STAGE_CARD'] + '-figures.json');"
        "out.write_text('{\"left\": %s}')"
    )
    card.stage("figures", body % '[\\"park\\"]')
    assert card.run("figures") == 0
    assert card.told()["figures"]["left"] == ["park"]
    card.stage("figures", body % "[]")
    card.ran()
    assert card.run("figures") == 0
    assert len(card.ran()) == 1
    assert card.run("figures") == 0
    assert card.ran() == []


def test_stages_that_check_run_side_by_side_and_know_it(card: Card) -> None:
    meets = (
        "import pathlib, sys, time\n"
        f"here = pathlib.Path({str(card.folder)!r})\n"
        "(here / 'met.{0}').touch()\n"
        "end = time.monotonic() + 60\n"
        "while not (here / 'met.{1}').exists() and time.monotonic() < end: time.sleep(0.01)\n"
        "sys.exit(not (here / 'met.{1}').exists())\n"
    )
    card.stage("memory", meets.format("memory", "rules"))
    card.stage("rules", meets.format("rules", "memory"))
    assert card.run("--within", "120", "memory", "rules") == 0
    assert sorted((line[0], line[2]) for line in card.ran()) == [("memory", "1"), ("rules", "1")]
    assert card.run("--within", "120", "adaptor") == 0
    assert [line[2:] for line in card.ran()] == [[]], "alone"


def test_a_stage_that_hangs_leaves_the_stacks_of_all_its_processes(
    card: Card, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_stages, "shares", lambda planned, _: [2.0] * len(planned))
    card.stage(
        "figures",
        "import subprocess, sys, time\n"
        "def the_parent_waits(): time.sleep(600)\n"
        "code = 'import time\\ndef the_child_waits(): time.sleep(600)\\nthe_child_waits()'\n"
        # In a session of its own, and its words go nowhere: still it is found.
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True,\n"
        "                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print('begun', flush=True)\n"
        "the_parent_waits()\n",
    )
    begin = time.monotonic()
    assert card.run("figures", "probes") == 1
    assert time.monotonic() - begin < 30.0
    assert card.told()["figures"]["exit_code"] == 124
    assert card.told()["probes"]["exit_code"] == 0, "the next one runs all the same"
    log = next((card.folder / "kept" / card.key).glob("h100-figures.log")).read_text()
    assert "begun" in log
    assert "in the_parent_waits" in log
    assert "in the_child_waits" in log
    assert log.count("--- stack of ") == 2
    assert "figures: code 124" in capfd.readouterr().err
    assert marked(f"figures-{os.getpid()}-") == []


def marked(mark: str) -> list[str]:
    """Return the processes of a stage."""
    mark = f"STAGE_MARK={mark}"
    return [entry.name for entry in Path("/proc").iterdir() if mark.encode() in environ(entry)]


def environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_what_a_stage_leaves_behind_ends_with_it(card: Card) -> None:
    card.stage(
        "probes",
        "import subprocess\n"
        "print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)\n",
    )
    assert card.run("probes") == 0
    log = next((card.folder / "kept" / card.key).glob("h100-probes.log")).read_text()
    assert "ended what it left behind: sleep" in log
    assert not stack_dump.lives(int(log.split()[0]))


def test_a_stage_that_takes_the_time_of_others_costs_those(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0])
    monkeypatch.setattr(run_stages.time, "monotonic", lambda: next(clock, 290.0))
    assert card.run("--within", "300", "probes", "figures") == 1
    assert card.ran() == []
    assert card.told()["figures"]["exit_code"] is None
    assert card.told()["figures"]["reason"] == "there was no time left"


@pytest.mark.parametrize("number", ["", "0", "-5", "1.5", "ten", "\uff11", "10000000"])
def test_a_bad_number_is_named(card: Card, capsys: pytest.CaptureFixture[str], number: str) -> None:
    assert card.run("--within", number, "probes") == 2
    assert capsys.readouterr().err == (
        f"run_all: argument --within: no number of seconds: '{number}'\n"
    )


def test_time_that_is_not_enough_is_refused_before_anything_runs(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    assert card.run("--within", "100", "probes", "figures") == 2
    assert capsys.readouterr().err == (
        "run_all: probes, figures need 120 s at least, and there are 100; what fits: probes\n"
    )
    assert card.ran() == []


def test_building_is_short_where_the_objects_are(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    card.key = "others"
    assert card.run("--within", "100", "probes") == 2
    assert "build, probes need 160 s" in capsys.readouterr().err
    (card.folder / "carried" / "allocator").mkdir(parents=True)
    assert card.run("--within", "100", "probes") == 0
    assert [line[0] for line in card.ran()] == ["build", "probes"]
    assert card.run("--within", "100", "figures") == 0
    assert [line[0] for line in card.ran()] == ["figures"]


def test_without_a_card_only_building_is_possible(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    card.name = ""
    assert card.run("probes") == 3
    assert capsys.readouterr().err == "run_all: there is no GPU: no driver\n"
    assert card.run("build") == 0


def test_whoever_ends_the_run_ends_its_stages(card: Card, tmp_path: Path) -> None:
    card.stage("probes", "import time; print('begun', flush=True); time.sleep(600)")
    script = tmp_path / "call.py"
    script.write_text(
        f"import sys; sys.path[:0] = [{str(ROOT / 'tests' / 'gpu' / 'stages')!r}]\n"
        "import pathlib, run_stages as r\n"
        f"r.STAGES_SH = pathlib.Path({str(card.folder / 'stages.sh')!r})\n"
        f"r.toolchain = lambda given: {card._toolchain({})!r} | dict(given)\n"
        "r.card_name = lambda: ('NVIDIA L4', '')\n"
        "r.sources_key = lambda **_: 'sources'\n"
        "r.end_with_stages()\n"
        "sys.exit(r.main(['probes']))\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.terminate()
    assert process.wait(30) == 128 + 15
    assert marked(f"probes-{process.pid}-") == []
    with tarfile.open(card.out / "results.tar.gz") as archive:
        assert "sources/l4-probes.log" in archive.getnames()
    assert card.told()["probes"]["reason"] == "it was not done when the run ended"


def test_results_that_cannot_be_packed_stop_no_stage(
    card: Card, capsys: pytest.CaptureFixture[str]
) -> None:
    card.stage("probes", f"import shutil; shutil.rmtree({str(card.out)!r})")
    assert card.run("probes", "figures") == 1
    assert [line[0] for line in card.ran()] == ["probes", "figures"]
    assert "results are not packed: " in capsys.readouterr().err


def test_what_is_missing_to_build_is_named(
    card: Card, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_stages, "toolchain", toolchain.toolchain)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(toolchain, "cuda_headers", lambda *_: ([], []))
    assert card.run("probes") == 2
    assert capsys.readouterr().err == "run_all: no no-such-compiler\n"


def test_headers_of_cuda_are_those_of_wheels_or_of_a_toolkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    with pytest.raises(toolchain.NoToolchain, match="neither beside torch nor in a toolkit"):
        toolchain.cuda_headers(tmp_path, "13")
    wheels = tmp_path / "nvidia" / "cu13"
    triton = tmp_path / "triton/backends/nvidia/include"
    for file in (
        wheels / "include/nvrtc.h",
        triton / "crt/host_config.h",
        wheels / "lib/libcudart",
    ):
        file.parent.mkdir(parents=True)
        file.touch()
    found = toolchain.cuda_headers(tmp_path, "13")
    assert found == ([wheels / "include", triton], [wheels / "lib"])
    whole = tmp_path / "toolkit" / "include"
    (whole / "crt").mkdir(parents=True)
    (whole / "nvrtc.h").touch()
    (whole / "crt" / "host_config.h").touch()
    assert toolchain.cuda_headers(tmp_path, "13")[0] == [whole], "no half of one and of another"


# --- names and keys ---


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA L4", "l4"),
        ("simulated", "simulated"),
        ("NVIDIA Graphics Device", "card"),
    ],
)
def test_file_names_begin_with_a_cards_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


def test_documents_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int a;")
    before = digest([tmp_path])
    (tmp_path / "README.md").write_text("words")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("x")
    (tmp_path / ".mypy_cache").mkdir()
    (tmp_path / ".mypy_cache" / "a.json").write_text("x")
    assert digest([tmp_path]) == before
    (tmp_path / "a.cpp").write_text("int b;")
    changed = digest([tmp_path])
    assert changed != before
    (tmp_path / "a.cpp").rename(tmp_path / "b.cpp")
    assert digest([tmp_path]) != changed


def test_another_driver_or_product_is_another_key(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("a")
    simulated = sources_key(installed=False, simulated=tmp_path)
    assert simulated != sources_key(installed=False, simulated=None)
    (tmp_path / "libcuda.so.1").write_text("b")
    assert simulated != sources_key(installed=False, simulated=tmp_path)


def test_a_run_json_that_is_damaged_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "kept" / "key").mkdir(parents=True)
    (tmp_path / "kept" / "key" / "h100-run.json").write_text('{"stages": [')
    results = Results(tmp_path / "out", tmp_path / "kept", "h100", "key")
    assert results.done("probes") == ""


# --- parts that are kept ---


def test_a_part_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    report = StageReport("stage", tmp_path, ["time", "rate"])
    assert report.take("first") is None
    with report.part("first") as facts:
        report.value("time", 1.0, "ms")
        report.check("same", True)
        facts["seconds"] = 3
    with report.part("second"):
        report.not_run("rate", TIME_WAS_UP)
    later = StageReport("stage", tmp_path, ["time", "rate"])
    assert later.take("first") == {"seconds": 3}
    assert later.take("second") is None, "there was no time for it"
    later.value("rate", 2.0, "1/s")
    assert later.finish() == 0
    told = json.loads((tmp_path / "stage.json").read_text())
    assert told["figures"]["time"]["value"] == 1.0
    assert told["checks"]["same"]["held"] is True
    assert told["left"] == []


def test_what_fails_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_KEY", "h100 sources")
    report = StageReport("stage", tmp_path, ["time"])
    with report.part("first"):
        report.value("time", 1.0, "ms")
        report.check("same", False)
    with pytest.raises(RuntimeError), report.part("second"):
        raise RuntimeError
    later = StageReport("stage", tmp_path, ["time"])
    assert (later.take("first"), later.take("second")) == (None, None)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 1}', '{"schema": 9, "key": "k"}'])
def test_a_file_of_parts_that_is_damaged_or_of_another_key_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("STAGE_KEY", "k")
    KeptParts("stage", tmp_path).put("first", 1)
    assert KeptParts("stage", tmp_path).parts == {"first": 1}
    (tmp_path / "stage.kept.json").write_text(text)
    assert KeptParts("stage", tmp_path).parts == {}
    monkeypatch.delenv("STAGE_KEY")
    assert KeptParts("stage", tmp_path).parts == {}


def test_results_are_named_after_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGE_CARD", "h200")
    assert result_file(tmp_path, "figures.png") == tmp_path / "h200-figures.png"
    StageReport("stage", tmp_path, [])
    assert (tmp_path / "h200-stage.json").exists()


# --- what a stage ends itself ---


def test_a_command_that_is_late_leaves_its_stacks_in_the_stages_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: Callable[[], str] = (tmp_path / "log").read_text
    stacks = ROOT / "tests" / "gpu" / "stages" / "stacks"
    monkeypatch.setenv("STAGE_STACKS", str(tmp_path / "log"))
    environment = {**os.environ, "PYTHONPATH": str(stacks)}
    body = "import time\ndef it_waits():\n  print('begun', flush=True); time.sleep(600)\nit_waits()"
    code, words = stack_dump.run_within([sys.executable, "-c", body], 1.0, environment)
    assert (code, words) == (124, "not done in time: begun\n")
    assert "in it_waits" in log()


def test_another_sitecustomize_runs_as_well(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    stacks = ROOT / "tests" / "gpu" / "stages" / "stacks"
    done = subprocess.run(
        [sys.executable, "-c", ""],
        env={**os.environ, "PYTHONPATH": f"{stacks}:{tmp_path}", "STAGE_STACKS": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("the other one\n", "")
