# SPDX-License-Identifier: Apache-2.0
"""Numbers of descriptors are the program's: closed streams, files in place of what it closed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from world import COMMENSAL, World

from commensal import _say

pytestmark = pytest.mark.fresh_process("which descriptors a program begins with")

# Becomes the command behind it with some standard streams closed.
CLOSED = {
    "stdin": "exec <&-",
    "stdout": "exec >&-",
    "stderr": "exec 2>&-",
    "all": "exec <&- >&- 2>&-",
}
STREAMS = """
import json, os, sys
def target(number):
    try:
        return os.readlink(f"/proc/self/fd/{number}").split(":")[0]
    except OSError:
        return "closed"
found = {"links": [target(n) for n in range(3)], "open": [s is not None for s in STREAMS]}
json.dump(found, open(sys.argv[1], "w"))
""".replace("STREAMS", "(sys.stdin, sys.stdout, sys.stderr)")


@pytest.mark.parametrize("which", ["stdin", "stdout", "stderr", "all"])
def test_run_passes_closed_streams_on_as_they_are(world: World, which: str) -> None:
    script = world.script(STREAMS)

    def seen_by(*command: str) -> object:
        shell = ["/bin/sh", "-c", CLOSED[which] + '; exec "$@"', "sh", *command]
        # Not `quiet`: there are lines of ours that have nowhere to go.
        done = world.run([*shell, sys.executable, script, str(world.folder / "found")])
        assert done.returncode == 0, done.stderr
        assert done.stdout == "", "no line of ours goes to the script's stdout"
        return json.loads((world.folder / "found").read_text())

    assert seen_by(str(COMMENSAL), "run", "--") == seen_by()


def test_the_command_line_does_without_streams(world: World) -> None:
    for command in ("version", "status --json", "status", "doctor --help"):
        words = f'exec >&- 2>&- <&-; exec "{COMMENSAL}" {command}'
        assert world.run(["/bin/sh", "-c", words]).returncode in (0, 3), command
    words = f'exec 2>&-; exec "{COMMENSAL}" status no-such-job'
    assert world.run(["/bin/sh", "-c", words]).stdout == "", "an error is no result"


# Has none of the three streams. A second thread closes all descriptors and opens 24 files, over and
# over, while memory moves and a coordinator watches.
RESTLESS = """
import json, os, sys, threading, time, torch, commensal
folder = sys.argv[1]
text = b"user data\\n"
wrong_files = rounds = 0
end = False
def at_rest():
    global wrong_files, rounds
    while not end:
        os.closerange(0, 65536)  # 0, 1 and 2 become files, too
        files = [os.open(f"{folder}/user{i}", os.O_CREAT | os.O_RDWR) for i in range(24)]
        os.dup2(files[0], 1000 + rounds % 1000)
        for file in files:
            os.pwrite(file, text, 0)
        for i, file in enumerate(files):
            mine = os.stat(f"{folder}/user{i}").st_ino == os.fstat(file).st_ino
            wrong_files += not (mine and os.pread(file, 100, 0) == text)
        rounds += 1
tensors = [torch.full((1 << 20,), i) for i in range(8)]
links = [os.path.exists(f"/proc/self/fd/{n}") for n in range(3)]
wrong_words = 0
parameter = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([parameter], lr=0.0)
parameter.grad = torch.ones(1)
optimizer.step()  # imports, for which Python needs descriptors
thread = threading.Thread(target=at_rest, daemon=True)
thread.start()
until = time.monotonic() + 60
k = moved = 0
while (k < 24 or moved == 0) and time.monotonic() < until:
    commensal.set_memory_limit("16MiB" if k % 2 == 0 else "1GiB")
    tensors[k % 8] += 8
    k += 1
    wrong_words += sum(int((t % 8 != i).sum()) for i, t in enumerate(tensors))
    parameter.grad = torch.ones(1)
    optimizer.step()
    moved = commensal.stats()["memory"]["moved_out_bytes_total"]
stats = commensal.stats()
end = True
thread.join()
found = {"links": links, "wrong files": wrong_files, "wrong words": wrong_words,
         "moved": moved > 0, "rounds": rounds > 10, "active": commensal.is_active(),
         "coordinator": stats["job"]["coordinator_pid"] > 0}
json.dump(found, open(sys.argv[2], "w"))
"""


def test_a_program_may_close_all_descriptors_and_open_its_own(world: World) -> None:
    files = world.folder / "files"
    files.mkdir()
    found = world.folder / "found"
    inner = ["/bin/sh", "-c", CLOSED["all"] + '; exec "$@"', "sh", sys.executable]
    done = world.commensal(
        *("run", "--no-idle-class", "--memory", "1GiB", "--", *inner),
        *(world.script(RESTLESS), str(files), str(found)),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(found.read_text()) == {
        "links": [False] * 3,
        "wrong files": 0,
        "wrong words": 0,
        "moved": True,
        "rounds": True,
        "active": True,
        "coordinator": True,
    }
    assert {path.read_bytes() for path in files.iterdir()} == {b"user data\n"}
    assert done.stdout == ""


class TestALineOfOurs:
    def test_goes_nowhere_without_stderr(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(sys, "stderr", None)
        _say.say("a line")
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize("mode", ["w", "a"])
    def test_goes_into_another_file_only_if_that_is_appended_to(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
    ) -> None:
        with (tmp_path / "file").open(mode) as file:
            monkeypatch.setattr(_say, "_STDERR", file.fileno())
            monkeypatch.setattr(sys, "stderr", file)
            _say.say("a line")
        expected = "commensal: a line\n" if mode == "a" else ""
        assert (tmp_path / "file").read_text() == expected
