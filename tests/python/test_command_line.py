# SPDX-License-Identifier: Apache-2.0
"""The command line without jobs: usage, exit codes, what it imports."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from world import COMMENSAL, World, wait_until

from commensal._environment import Launch
from commensal.cli import main
from commensal.cli.run import job_name

HEAVY = ("torch", "numpy", "matplotlib", "sklearn")


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["run", "--memory", "lots", "--", "true"], "lots"),
        (["run", "--memory", "2GiB:1GiB", "--", "true"], "2GiB:1GiB"),
        (["run", "--memory", "-1GiB", "--", "true"], "-1GiB"),
        (["run", "--share", "1.5", "--", "true"], "1.5"),
        (["run", "--share", "nan", "--", "true"], "nan"),
        (["run", "--law", "chaos", "--", "true"], "chaos"),
        (["run", "--instance", "a/b", "--", "true"], "a/b"),
        (["--instance", "../x", "status"], "../x"),
        (["status", "--instance", "../x"], "../x"),
        (["pause", "--instance", "../x", "job"], "../x"),
        (["run", "--name", "", "--", "true"], "--name"),
        *(
            ([command, "--name", name, "--", "true"], said)
            for command in ("run", "submit")
            for name, said in (
                ("", "the name of a job is not empty"),
                (" \t", "holds no control characters: ' \\t'"),
                ("  ", "is not blank: '  '"),
                ("a\x1b[31mred", "holds no control characters: 'a\\x1b[31mred'"),
                ("a\x9b31m", "holds no control characters: 'a\\x9b31m'"),
                ("\udcff", "is no valid text: '\\udcff'"),
                ("x" * 10_000, "has at most 255 bytes, not 10000"),
                ("\u00fc" * 128, "has at most 255 bytes, not 256"),
            )
        ),
        *(
            (["quota", "set", "vision", value], f"from 0 to 1000000, or none, not {value!r}")
            for value in ("-1", "-16", "-1.5", "1.5", "1000001", "many", "")
        ),
        (["quota", "set", "vision", "--bogus"], "--bogus"),
        (["quota", "set", "vision", "-x"], "-x"),
        (["run", "-1", "--", "true"], "-1"),
        (["submit", "-1", "--", "true"], "-1"),
        *(
            (["submit", f"--{option}", "-1", "--", "true"], "-1")
            for option in ("gpus", "cpus", "host-memory", "memory", "share", "time")
        ),
        *(
            (["submit", "--gpus", "2", f"--{option}", "-5m", "--", "true"], "'-5m'")
            for option in ("time", "prerun", "end-when-flat", "park-when-flat")
        ),
        (["top", "--interval", "-1"], "-1"),
        (["explain", "job", "--last", "-1m"], "'-1m'"),
        (["run"], "COMMAND"),
        (["run", "--bogus", "--", "true"], "--bogus"),
        (["set", "job"], "--memory"),
        (["set", "job", "--memory", "x"], "'x'"),
        (["set", "job", "--share", "0.9:0.1"], "0.9:0.1"),
        (["set", "job", "--law", "chaos"], "'chaos'"),
        (["set", "job", "--law", ""], "--law"),
        (["set", "job", "--slo", "60"], "'60'"),
        (["pause"], "JOB"),
        (["frobnicate"], "frobnicate"),
        (["demo", "--seconds", "0"], "--seconds"),
    ],
)
def test_a_wrong_value_is_a_usage_error_that_names_it(
    capsys: pytest.CaptureFixture[str], arguments: list[str], value: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert value in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["status", "--json"],
        ["set", "j", "--share", "1"],
        ["pause", "j"],
        ["resume", "j"],
    ],
)
def test_without_a_coordinator_it_says_so_and_ends_with_3(
    world: World, arguments: list[str]
) -> None:
    done = world.commensal(*arguments)
    assert done.returncode == 3
    assert done.stdout == ""
    assert f"{world.runtime_dir}/default.sock" in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for code in ("0 done", "1 something is broken", "2 usage", "3 no coordinator", "4 refused"):
        assert code in text


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status"], ["version"], ["run", "--quiet", "--", "true"]]
)
def test_starts_without_heavy_imports(world: World, arguments: list[str]) -> None:
    done = world.run([sys.executable, "-X", "importtime", "-m", "commensal", *arguments])
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "typer" in imported  # the list is there
    assert not imported.intersection(HEAVY)
    assert "rich" not in imported


def test_version_tells_what_is_installed(world: World) -> None:
    done = world.commensal("version")
    assert done.returncode == 0
    assert "commensal 0.1.0" in done.stdout
    assert f"commensald {COMMENSAL.parent / 'commensald'}" in done.stdout


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py", "--lr", "1"], "train"),
        (["python", "-m", "pkg.train"], "pkg.train"),
        (["torchrun", "--nproc-per-node=2", "dir/fit.py"], "fit"),
        (["python", "-m", "torch.distributed.run", "fit.py"], "fit"),
        (["/bin/sh", "-c", "x"], "sh"),
    ],
)
def test_a_job_is_called_after_its_script(command: list[str], name: str) -> None:
    assert job_name(command) == name


def test_the_script_gets_the_documented_environment(world: World) -> None:
    script = world.script(
        "import json, os; print(json.dumps(dict(os.environ) | {'pid': os.getpid()}))", "train.py"
    )
    done = world.commensal(
        *("run", "--guaranteed", "--memory", "1GiB", "--share", "0.5:1", "--tenant", "vision"),
        *(
            "--law",
            "open",
            "--slo",
            "2.5",
            "--no-idle-class",
            "--instance",
            "second",
            "--spill-dir",
            "spill",
        ),
        *("--gpu-memory", "native", "--ask-wait", "0.5", "--", sys.executable, script),
        COMMENSAL_PRIMARY_PID="1",
        COMMENSAL_HOST_CAP="7",
        COMMENSAL_SAMPLE_OPS="0",
        COMMENSAL_SM_SHARE="0.3",
        COMMENSAL_GPU_MEMORY="elastic",
        COMMENSAL_MEMORY_POLICY="antman",
    )
    seen = json.loads(done.stdout)
    job_id, launch = seen["COMMENSAL_JOB_ID"], seen["COMMENSAL_LAUNCH"]
    assert job_id.startswith("train-")
    assert {k: v for k, v in seen.items() if k.startswith("COMMENSAL_")} == {
        "COMMENSAL_BACKGROUND_RATE": str(512 << 20),
        "COMMENSAL_STATE_DIR": str(world.folder / "state"),
        "COMMENSAL_RUN": "1",
        "COMMENSAL_JOB_ID": job_id,
        "COMMENSAL_JOB_NAME": "train",
        "COMMENSAL_TENANT": "vision",
        "COMMENSAL_CLASS": "guaranteed",
        "COMMENSAL_MEMORY": f"{2**30}:{2**30}",
        "COMMENSAL_SHARE": "0.5:1.0",
        "COMMENSAL_LAW": "open",
        "COMMENSAL_SLO": "2.5",
        "COMMENSAL_IDLE_CLASS": "0",
        "COMMENSAL_AFFINITY": "",  # not asked for
        "COMMENSAL_ELASTIC_THREADS": "0",
        "COMMENSAL_SM_SHARE": "",  # that of the environment is for opportunistic jobs
        "COMMENSAL_INSTANCE": "second",
        "COMMENSAL_RUNTIME_DIR": str(world.runtime_dir),
        "COMMENSAL_SPILL_DIR": str(world.folder / "spill"),
        "COMMENSAL_HOST_CAP": "7",
        "COMMENSAL_SUMMARY_FILE": seen["COMMENSAL_SUMMARY_FILE"],
        "COMMENSAL_LAUNCH": launch,
        "COMMENSAL_QUIET": "0",
        "COMMENSAL_GPU_MEMORY": "native",
        "COMMENSAL_MEMORY_POLICY": "antman",
        "COMMENSAL_ASK_WAIT": "500ms",
        "COMMENSAL_SAMPLE_OPS": "0",
    }
    assert Launch.parse(launch).pid == seen["pid"]
    wait_until("removed", lambda: not Path(seen["COMMENSAL_SUMMARY_FILE"]).parent.exists())


def test_p3_nccl_registers_no_buffers_of_graphs_unless_the_user_says_so(world: World) -> None:
    script = world.script("import os; print(os.environ['NCCL_GRAPH_REGISTER'])")
    command = ("run", "--quiet", "--", sys.executable, script)
    assert world.commensal(*command).stdout.strip() == "0"
    assert world.commensal(*command, NCCL_GRAPH_REGISTER="1").stdout.strip() == "1"


def test_pyarrow_starts_no_thread_that_blocks_signals_unless_the_user_says_so(
    world: World,
) -> None:
    script = world.script("import os; print(os.environ['JE_ARROW_MALLOC_CONF'])")
    command = ("run", "--quiet", "--", sys.executable, script)
    assert world.commensal(*command).stdout.strip() == "background_thread:false"
    chosen = "background_thread:true"
    assert world.commensal(*command, JE_ARROW_MALLOC_CONF=chosen).stdout.strip() == chosen


@pytest.mark.parametrize("chosen", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"])
def test_c16_openmp_waits_briefly_in_opportunistic_jobs_unless_the_user_says_so(
    world: World, chosen: str
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    script = world.script(f"import os; print([os.environ.get(name) for name in {names}])")

    def seen(job_class: str, **environment: str) -> str:
        command = ("run", "--quiet", f"--{job_class}", "--", sys.executable, script)
        return world.commensal(*command, **environment).stdout.strip()

    assert seen("opportunistic") == "[None, '10000', '0']"
    assert seen("guaranteed") == "[None, None, None]"
    said = [("7" if name == chosen else None) for name in names]
    assert seen("opportunistic", **{chosen: "7"}) == str(said)


def test_a_quiet_job_reports_to_nobody_and_no_outer_job_shows(world: World) -> None:
    script = world.script("import json, os; print(json.dumps(dict(os.environ)))")
    done = world.commensal(
        *("run", "--quiet", "--", sys.executable, script),
        COMMENSAL_SUMMARY_FILE="/outer",
        COMMENSAL_LAUNCH="1:1.0",
        COMMENSAL_PRIMARY_RANK="1",
    )
    seen = json.loads(done.stdout)
    assert seen["COMMENSAL_QUIET"] == "1"
    for name in ("SUMMARY_FILE", "LAUNCH", "PRIMARY_RANK"):
        assert f"COMMENSAL_{name}" not in seen


def test_says_when_nothing_was_managed_and_quiet_turns_it_off(world: World) -> None:
    loud = world.commensal("run", "--", "true")
    assert "commensal: nothing was managed: the script did not import PyTorch" in loud.stderr
    assert loud.stdout == ""
    assert world.commensal("run", "--quiet", "--", "true").stderr == ""


def test_doctor_finds_nothing_broken_here(world: World) -> None:
    done = world.commensal("doctor", "--json")
    report = json.loads(done.stdout)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert "broken" not in states.values(), report
    assert done.returncode == 0
    assert not report["broken"]
    assert states["pytorch"] == "ok"
    assert states["runtime"] == "ok"
    assert states["coordinator"] == "off"  # none runs in this world
    assert states["jobs"] == "off"
    assert states["threads"] == "ok", report
    assert states["gpu"] == "off"
    text = world.commensal("doctor").stdout
    assert all(name in text for name in states)


def test_doctor_calls_an_unusable_spill_folder_by_its_reason(world: World) -> None:
    report = json.loads(
        world.commensal("doctor", "--json", COMMENSAL_SPILL_DIR="/no/such/folder").stdout
    )
    spill = next(check for check in report["checks"] if check["name"] == "spill folder")
    assert spill["state"] == "note"
    assert "/no/such/folder" in spill["detail"]


def test_doctor_ends_with_1_when_the_daemon_does_not_answer(world: World) -> None:
    world.runtime_dir.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.bind(str(world.runtime_dir / "default.sock"))
        mute.listen()
        done = world.commensal("doctor", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["broken"]
