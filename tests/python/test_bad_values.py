# SPDX-License-Identifier: Apache-2.0
"""Wrong values: the same error, with the value, by option, environment and `init`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from training import TELL, TRAIN, facts_of
from world import World

from commensal._environment import JobSettings
from commensal.cli import main


@dataclass(frozen=True)
class Wrong:
    """A value that is none, under its three names; None: it has no such name."""

    says: str
    value: str
    option: str | None = None
    variable: str | None = None
    argument: str | None = None  # of init, as Python text
    beside: tuple[str, str] | None = None  # another option and its value

    def __str__(self) -> str:
        return f"{self.option or self.variable}={self.value}"


def size(value: str, says: str, argument: str | None = None) -> Wrong:
    text = f"memory={argument or repr(value)}"
    return Wrong(says, value, "--memory", "COMMENSAL_MEMORY", text)


def time(value: str, says: str, *, name: str = "park-idle") -> Wrong:
    word = name.replace("-", "_")
    return Wrong(says, value, f"--{name}", f"COMMENSAL_{word.upper()}", f"{word}={value!r}")


TABLE = [
    size("-1GiB", "not a size: '-1GiB'"),
    size("-5", "size out of range: -5", "-5"),
    size("much", "not a size: 'much'"),
    size("12XB", "not a size: '12XB'"),
    size("1e3", "not a size: '1e3'"),
    size("nan", "not a size: 'nan'"),
    size("99999999999TiB", "size out of range: '99999999999TiB'"),
    size("0", "leaves no device memory: '0'"),
    Wrong("MIN above MAX: '2GiB:1GiB'", "2GiB:1GiB", "--memory", "COMMENSAL_MEMORY"),
    Wrong("not a size: 'x'", "1GiB:x", "--memory", "COMMENSAL_MEMORY"),
    Wrong("empty value", " ", "--memory", "COMMENSAL_MEMORY"),
    Wrong("not a size: 'much'", "much", None, "COMMENSAL_HOST_CAP"),
    Wrong("not a size: 'fast'", "fast", None, "COMMENSAL_BACKGROUND_RATE"),
    Wrong("not a size: '-1MiB'", "-1MiB", None, "COMMENSAL_BACKGROUND_RATE"),
    Wrong("not 0 or 1: 'often'", "often", None, "COMMENSAL_SAMPLE_OPS"),
    Wrong("size out of range: '9000000TiB'", "9000000TiB", None, "COMMENSAL_HOST_CAP"),
    Wrong("MIN above MAX: '0.9:0.1'", "0.9:0.1", "--share", "COMMENSAL_SHARE"),
    Wrong(
        "not a memory policy: 'AntMan' (elastic or antman)",
        "AntMan",
        None,
        "COMMENSAL_MEMORY_POLICY",
    ),
    Wrong(
        "neither native nor elastic: 'Elastic'",
        "Elastic",
        "--gpu-memory",
        "COMMENSAL_GPU_MEMORY",
        "gpu_memory='Elastic'",
    ),
    Wrong(
        "a guaranteed job keeps PyTorch's own allocator: its memory does not move: 'elastic'",
        "elastic",
        "--gpu-memory",
        None,
        "gpu_memory='elastic', job_class='guaranteed'",
        ("--guaranteed",),
    ),
    Wrong("not a pacing law: 'Gap' (gap,", "Gap", "--law", "COMMENSAL_LAW", "law='Gap'"),
    *(
        Wrong(
            f"slo must be above 0 and at most 50 %: {value!r}",
            value,
            "--slo",
            "COMMENSAL_SLO",
            f"slo={value!r}",
        )
        for value in ("0", "50.1", "-3", "nan", "small")
    ),
    Wrong(
        "this one is opportunistic: '3'",
        "3",
        "--slo",
        "COMMENSAL_SLO",
        "slo='3'",
    ),
    time("soon", "not a duration: 'soon'"),
    time("-10m", "not a duration: '-10m'"),
    time("10 parsecs", "not a duration: '10 parsecs'"),
    time("inf", "not a duration: 'inf'"),
    time("1e2", "not a duration: '1e2'"),
    time("0", "a job is idle after a second at the earliest: '0'"),
    time("999ms", "a job is idle after a second at the earliest: '999ms'"),
    time("366d", "duration out of range: '366d'"),
    time("-1s", "not a duration: '-1s'", name="ask-wait"),
    time("61m", "a wait for memory is at most an hour: '61m'", name="ask-wait"),
]


@pytest.mark.parametrize("wrong", [w for w in TABLE if w.option], ids=str)
def test_as_an_option_it_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], wrong: Wrong, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    beside = wrong.beside or ()
    assert main(["run", f"{wrong.option}={wrong.value}", *beside, "--", "touch", str(made)]) == 2
    said = capsys.readouterr()
    assert wrong.option in said.err
    if wrong.value.startswith("-") and wrong.value[1:].isdigit():
        assert repr(wrong.value) in said.err  # as text it is no size, as a number out of range
    else:
        assert wrong.says in said.err
    assert said.out == ""
    assert not made.exists(), "nothing was started"


@pytest.mark.parametrize("wrong", [w for w in TABLE if w.variable], ids=str)
def test_as_a_variable_it_is_named_with_it(wrong: Wrong) -> None:
    assert wrong.variable is not None
    with pytest.raises(ValueError, match=wrong.variable) as caught:
        JobSettings.from_environ({wrong.variable: wrong.value})
    if not wrong.value.startswith("-") or not wrong.value[1:].isdigit():
        assert wrong.says in str(caught.value)


@pytest.mark.parametrize(
    "variable",
    [
        "COMMENSAL_MEMORY_POLICY",
        "COMMENSAL_PARK_IDLE",
        "COMMENSAL_ASK_WAIT",
        "COMMENSAL_BACKGROUND_RATE",
        "COMMENSAL_SAMPLE_OPS",
    ],
)
def test_a_variable_that_run_reads_is_a_usage_error_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "nonsense")
    assert main(["run", "--", "true"]) == 2
    assert "'nonsense'" in capsys.readouterr().err


def test_as_arguments_of_init_each_leaves_everything_as_it_was(world: World) -> None:
    calls = {w.argument: w.says for w in TABLE if w.argument}
    script = world.script(
        f"""
import json, torch, commensal
said = {{}}
for call in {list(calls)!r}:
    try:
        eval(f"commensal.init({{call}})")
        said[call] = "went through"
    except ValueError as error:
        said[call] = str(error)
    assert not commensal.is_active(), call
commensal.init(memory="64MiB", park_idle=1.5, ask_wait="0", gpu_memory="native")
for limit in (-1, 0, 2**64, "x", None, 1.5, True):
    try:
        commensal.set_memory_limit(limit)
        said[repr(limit)] = "went through"
    except ValueError as error:
        said[repr(limit)] = str(error)
said["limit"] = commensal.stats()["memory"]["limit_bytes"]
said["huge"] = commensal.set_memory_limit("1PiB").reason
print(json.dumps(said))
"""
    )
    said = facts_of(world.run([sys.executable, script]))
    for call, says in calls.items():
        assert says in said[call], call
    for limit in ("-1", "0", "18446744073709551616", "'x'", "None", "1.5", "True"):
        assert limit in said[limit], said[limit]
        assert said[limit] != "went through"
    assert said["limit"] == 64 << 20, "unchanged"
    assert "memory limit above the device: 1 PiB > " in said["huge"]


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("/dev/shm", "/dev/shm is memory, not a disk: it is a tmpfs"),
        pytest.param(
            *("/nonexistent/folder", "cannot open a file in /nonexistent/folder: No such file"),
            marks=pytest.mark.soak,  # in ./scripts/test: test_run_training.py
        ),
        ("/proc", "cannot open a file in /proc: "),
    ],
)
def test_a_spill_folder_that_is_none_is_named_and_the_job_trains(
    world: World, folder: str, says: str
) -> None:
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    if folder == "/dev/shm" and ["/dev/shm", "tmpfs"] not in mounts:
        pytest.skip("/dev/shm is no tmpfs here")
    script = world.script(TRAIN + TELL)
    done = world.commensal(
        *("run", "--no-idle-class", "--memory", "1PiB", "--spill-dir", folder, "--"),
        *(sys.executable, script, "3"),
    )
    facts = facts_of(done)
    assert facts["active"]
    assert f"commensal: note: no slower tier: {says}" in done.stderr
    assert "commensal: note: memory limit above the device: 1 PiB > " in done.stderr
    assert json.dumps(facts["stats"]["memory"]["notes"]).count("above the device") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [("--gpus", "0"), ("--gpus", "two"), ("--cpus", "0"), ("--cpus", "many")],
)
def test_a_wrong_number_is_named(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", option, value, "--", "true"]) == 2
    said = capsys.readouterr().err
    assert option in said
    assert f"'{value}'" in said
