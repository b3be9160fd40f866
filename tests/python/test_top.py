# SPDX-License-Identifier: Apache-2.0
"""`commensal top`: a picture that fits and is true, from recorded answers and a real daemon."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import termios
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_status import Record, job, machine
from rich.console import Console
from test_run_training import start_job, stop_job
from world import COMMENSAL, DEADLINE, World, wait_until

from commensal.cli._top_state import BusyCores, Frame, Watch, busy_ticks
from commensal.cli._top_view import draw

NOW = 1_700_000_000.0


def frame(*jobs: Record, **more: Any) -> Frame:
    status = machine(*jobs)
    watch = Watch()
    watch.observe(status, NOW)
    return replace(
        Frame(status, NOW, 0.91, watch.closed_shares(status), tuple(watch.decisions)), **more
    )


def lines(shown: Frame, width: int = 80, height: int | None = 24, **options: Any) -> list[str]:
    """Return what a terminal of that size would show."""
    file = io.StringIO() if "encoding" not in options else _Ascii()
    console = Console(file=file, width=width, color_system=None, _environ={})
    console.print(draw(shown, height))
    return file.getvalue().rstrip("\n").split("\n")


class _Ascii(io.StringIO):
    """A terminal that cannot show more than ASCII."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "ascii"


TWO = (job("digits_cnn", "guaranteed", share={"now": 1.0}), job("char_transformer", slowdown=None))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
def test_fits_the_terminal(width: int, count: int) -> None:
    shown = lines(frame(*(job(f"train_{number}") for number in range(count))), width)
    assert max(map(len, shown)) <= width
    assert len(shown) <= 24
    assert shown[0].startswith("commensal top  default, pid 42, up 90 s")


@pytest.mark.parametrize("width", [80, 120])
def test_shows_devices_jobs_and_decisions(width: int) -> None:
    text = "\n".join(lines(frame(*TWO), width))
    for words in (
        "host: 2 cores",
        "91 % busy",
        "used 1.5 GiB, granted 1 GiB, free 7 GiB",
        "digits_cnn",
        "guaranteed, busy",
        "123456 x 12 ms",
        "+1.2 %",
        "768 MiB, 1 GiB",
        "gap 0.02",
        "50 %",  # closed 150 of 300 s
        "limit 1 GiB: opportunistic: its maximum fits",
        "share 0.02: the objective is kept",
    ):
        assert words in text, text


def test_shows_the_use_of_the_device_and_the_gaps() -> None:
    gap = {"phase": "loader", "per_minute": 60.0, "share": 0.5}
    gap |= {"median_seconds": 0.5, "p90_seconds": 0.6}
    shown = frame(*(job(f"g{number}", "guaranteed", gaps=[gap]) for number in range(5)))
    use = {"seconds": 10.0, "guaranteed_share": 0.62, "opportunistic_share": 0.25}
    shown.status["devices"][0]["use"] = use | {"oracle_share": 0.39, "efficiency": 0.64}
    text = lines(shown, 100)
    assert "guaranteed 62 %, opportunistic 25 % of 39 % to be had, efficiency 0.64" in text
    told = [line for line in text if line.startswith("gaps of")]
    assert [line.split()[2] for line in told] == ["g0:", "g1:", "g2:"]
    assert (
        told[0]
        == "gaps of g0: loader 60 a minute of 500 ms (90 % up to 600 ms), 50.0 % of the time"
    )
    assert max(map(len, lines(shown, 60))) <= 60
    shown.status["devices"][0]["use"] = dict.fromkeys(use)
    assert not any("to be had" in line for line in lines(shown, 100))


def test_says_how_many_jobs_have_no_room_and_keeps_some_decisions() -> None:
    shown = lines(frame(*(job(f"train_{number}") for number in range(40))))
    [rest] = [line for line in shown if "more" in line]
    named = {line.split()[0] for line in shown if "opportunistic, busy" in line}
    assert rest == f"and {40 - len(named)} more: 'commensal status'"
    assert len(named) >= 4
    assert any("limit 1 GiB" in line for line in shown)


def test_a_pipe_gets_everything() -> None:
    shown = lines(frame(*(job(f"train_{number}") for number in range(40))), height=None)
    assert all(any(f"train_{number} " in line for line in shown) for number in range(40))


def test_the_bars_show_the_tiers_and_the_limit() -> None:
    spilled = job("spilled")
    spilled["memory"] |= {
        "device_bytes": 512 << 20,
        "host_bytes": 512 << 20,
        "limit_bytes": 512 << 20,
    }
    [bar] = [line.split()[0] for line in lines(frame(spilled)) if "512 MiB, 512 MiB" in line]
    assert bar[0] == "█"
    assert bar[-1] == "▒"
    assert bar[len(bar) // 2] == "┃"
    assert bar.count("█") + bar.count("▒") == len(bar) - 1


def test_a_terminal_without_unicode_gets_other_characters() -> None:
    assert "\n".join(lines(frame(*TWO), encoding="ascii")).isascii()


def test_says_that_nobody_answers() -> None:
    assert "no answer for 7 s" in lines(frame(*TWO, trouble="no answer for 7 s"))[0]


def test_decisions_are_what_changed_with_the_reason() -> None:
    watch = Watch()
    watch.observe(machine(job("a")), NOW)
    assert [d.at_seconds for d in watch.decisions] == [None, None]  # limit and share stand
    assert watch.observe(machine(job("a")), NOW + 1) == []
    changed = job("a", lease={"target_bytes": 1 << 29, "reason": "needed by b"}, paused=True)
    changed["share"] = {"now": 0.03, "reason": "the objective is kept"}  # no decision: the same
    new = watch.observe(machine(changed), NOW + 2)
    assert [(d.at_seconds, d.job, d.what, d.reason) for d in new] == [
        (NOW + 2, "a", "limit 512 MiB", "needed by b"),
        (NOW + 2, "a", "paused", ""),
    ]
    resumed = watch.observe(machine({**changed, "paused": False}), NOW + 3)
    assert [d.what for d in resumed] == ["resumed"]
    gone = {**changed, "paused": False, "ended": True, "exit_reason": "killed"}
    assert [(d.what, d.reason) for d in watch.observe(machine(gone), NOW + 4)] == [
        ("ended", "killed")
    ]


def test_jobs_that_ended_before_are_no_news() -> None:
    watch = Watch()
    assert watch.observe(machine(job("a", ended=True, exit_reason="ended")), NOW) == []


def test_the_closed_share_is_that_of_the_last_seconds() -> None:
    watch, record = Watch(), job("a")
    assert watch.closed_shares(machine(record)) == {"a-1234abcd": 0.0}
    for second in range(20):
        record["gate"] = {"law": "gap", "closed_seconds_total": max(0, second - 15) * 0.8}
        watch.observe(machine(record), NOW + second)
    assert watch.closed_shares(machine(record)) == {"a-1234abcd": pytest.approx(0.64, abs=0.17)}


def test_busy_cores_are_those_that_may_be_used(tmp_path: Path) -> None:
    text = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 10 0 5 80 5 0 0 0 0 0\ncpu1 99 0 0 1 0 0 0 0 0 0\nintr 1\n"
    )
    assert busy_ticks(text, {0}) == (15, 100)
    assert busy_ticks(text, {0, 1}) == (114, 200)
    cores = sorted(os.sched_getaffinity(0))
    stat = tmp_path / "stat"
    stat.write_text(f"cpu{cores[0]} 0 0 0 0 0 0 0 0\n")
    busy = BusyCores(stat)
    assert busy.share() is None
    stat.write_text(f"cpu{cores[0]} 30 0 0 70 0 0 0 0\n")
    assert busy.share() == pytest.approx(0.3)
    assert busy.share() == pytest.approx(0.3)  # no tick has passed: as before


def test_one_picture_and_lines_of_json_from_a_real_daemon(world: World) -> None:
    process = start_job(world, "trainer", "--guaranteed", "--memory", "256MiB")
    picture = world.commensal("top", "--once")
    assert picture.returncode == 0, picture.stderr
    assert "\x1b" not in picture.stdout
    assert "trainer" in picture.stdout
    assert max(map(len, picture.stdout.splitlines())) <= 80
    piped = world.commensal("top")  # on a pipe: one picture, too
    assert piped.stdout.startswith("commensal top  default")
    once = world.commensal("top", "--once", "--json")
    [line] = once.stdout.splitlines()
    first = json.loads(line)
    assert first["schema"] == 1
    assert first["status"]["jobs"][0]["job"]["name"] == "trainer"
    assert 0 <= first["devices"][0]["busy_share"] <= 1
    assert {"trainer"} == {decision["job"] for decision in first["decisions"]}
    stream = world.start([str(COMMENSAL), "top", "--json", "--interval", "0.1"])
    assert stream.stdout is not None
    assert [json.loads(stream.stdout.readline())["schema"] for _ in range(3)] == [1, 1, 1]
    stream.send_signal(2)
    assert stream.wait(DEADLINE) == 0
    stop_job(world, "trainer", process)


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}])
def test_live_on_a_terminal_until_q(world: World, environ: dict[str, str]) -> None:
    assert world.commensal("run", "--quiet", "--", "true").returncode == 0  # leaves a daemon
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [str(COMMENSAL), "top", "--interval", "0.1"],
        env=world.environ | {"TERM": "xterm-256color"} | environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        seen = b""

        def shows(words: bytes) -> bool:
            nonlocal seen
            seen += os.read(ours, 65536)
            return words in seen

        wait_until("a picture", lambda: shows(b"no jobs"))
        assert b"\x1b[?1049h" in seen  # on the alternate screen
        assert (b"\x1b[2m" in seen or b"\x1b[35m" in seen) or environ
        assert not (environ and b"\x1b[35m" in seen)
        os.write(ours, b"q")
        wait_until("the screen is left", lambda: shows(b"\x1b[?1049l"))
        assert process.wait(DEADLINE) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)
