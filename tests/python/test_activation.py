# SPDX-License-Identifier: Apache-2.0
"""The entry point at the end of `import torch`, and activation by hand."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
from training import TELL, TRAIN, facts_of
from world import World

from commensal import _activation

pytestmark = pytest.mark.fresh_process("how commensal comes into a process")


class TestAutoload:
    """`autoload` alone, in this process: it must never raise."""

    def test_does_nothing_without_the_launcher(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("COMMENSAL_RUN", raising=False)
        monkeypatch.setattr(_activation, "_autoload", lambda: pytest.fail("went on"))
        _activation.autoload()
        monkeypatch.setenv("COMMENSAL_RUN", "0")
        _activation.autoload()

    @pytest.mark.parametrize(
        "error",
        [ValueError("COMMENSAL_MEMORY: 'x'"), SystemExit(3), MemoryError(), OSError(5, "io")],
    )
    def test_prints_one_line_and_goes_on(
        self,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        error: BaseException,
    ) -> None:
        def fail() -> None:
            raise error

        monkeypatch.setenv("COMMENSAL_RUN", "1")
        monkeypatch.setenv("COMMENSAL_SUMMARY_FILE", str(tmp_path / "summary"))
        monkeypatch.setattr(_activation, "_autoload", fail)
        _activation.autoload()
        line = capsys.readouterr().err
        assert line.startswith("commensal: not active, the script runs unmanaged: ")
        assert line.count("\n") == 1
        # `commensal run` can repeat the reason.
        assert (tmp_path / f"summary.{os.getpid()}.failed").read_text() in line

    def test_survives_a_closed_stderr(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COMMENSAL_RUN", "1")
        monkeypatch.setenv("COMMENSAL_CLASS", "vip")
        monkeypatch.setattr(sys, "stderr", None)
        _activation.autoload()

    def test_lets_the_user_interrupt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        monkeypatch.setenv("COMMENSAL_RUN", "1")
        monkeypatch.setattr(_activation, "_autoload", interrupt)
        with pytest.raises(KeyboardInterrupt):
            _activation.autoload()


def test_another_pytorch_gets_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "libcommensal_torch-2.11.so").touch()
    (tmp_path / "libcommensal_runtime.so").touch()
    found = _activation.find_adaptor("2.11.1+cpu", tmp_path)
    assert found.name == "libcommensal_torch-2.11.so"
    with pytest.raises(_activation.ActivationError) as caught:
        _activation.find_adaptor("2.12.0", tmp_path)
    assert "built for PyTorch 2.11, this is 2.12" in str(caught.value)
    with pytest.raises(_activation.ActivationError, match="built without PyTorch"):
        _activation.find_adaptor("2.11.0", tmp_path / "missing")


def test_the_entry_point_is_installed() -> None:
    [point] = [p for p in metadata.entry_points(group="torch.backends") if p.name == "commensal"]
    assert point.load() is _activation.autoload


def test_import_alone_changes_nothing(world: World) -> None:
    script = world.script(
        """
import sys, threading
import commensal
assert "torch" not in sys.modules and "commensal._core" not in sys.modules
import torch
assert "commensal._activation" in sys.modules  # the entry point was called, and returned
assert "commensal._core" not in sys.modules and not commensal.is_active()
assert threading.active_count() == 1
try:
    commensal.stats()
except commensal.CommensalError as error:
    print(error)
commensal.step()  # may stay in a script
"""
    )
    done = world.run([sys.executable, script])
    assert done.returncode == 0, done.stderr
    assert "commensal is not active in this process" in done.stdout
    assert done.stderr == ""


def test_a_failed_activation_prints_one_line_and_the_script_trains(world: World) -> None:
    script = world.script(TRAIN + TELL)
    done = world.run([sys.executable, script, "5"], COMMENSAL_RUN="1", COMMENSAL_MEMORY="2GiB:1GiB")
    facts = facts_of(done)
    assert not facts["active"]
    assert done.stderr == (
        "commensal: not active, the script runs unmanaged: "
        "COMMENSAL_MEMORY: MIN above MAX: '2GiB:1GiB'\n"
    )


def test_init_misused_gets_one_clear_sentence_each(world: World) -> None:
    script = world.script(
        """
import commensal
def attempt(action):
    try:
        action()
        print("went through")
    except (commensal.CommensalError, ValueError) as error:
        print(type(error).__name__ + ":", error)
attempt(lambda: commensal.init())
import torch
attempt(lambda: commensal.init(job_class="vip"))
attempt(lambda: commensal.init(memory="lots"))
attempt(lambda: commensal.init(memory=0))
attempt(lambda: commensal.init(memory=-1))
attempt(lambda: commensal.init(share=1.5))
attempt(lambda: commensal.init(law="chaos"))
assert not commensal.is_active()
attempt(lambda: commensal.init(job_class="guaranteed", memory="1GiB", name="mine"))
attempt(lambda: commensal.init())
attempt(lambda: commensal.set_compute_share(-1))
attempt(lambda: commensal.set_memory_limit("x"))
assert commensal.stats()["memory"]["limit_bytes"] == 2**30
assert commensal.stats()["job"]["class"] == "guaranteed"
"""
    )
    done = world.run([sys.executable, script])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    expected = [
        "CommensalError: commensal.init() came before 'import torch'",
        "ValueError: neither guaranteed nor opportunistic: 'vip'",
        "ValueError: not a size: 'lots'",
        "ValueError: MAX of zero leaves no device memory: 0",
        "ValueError: size out of range: -1",
        "ValueError: not a share between 0 and 1: 1.5",
        "ValueError: not a pacing law: 'chaos'",
        "went through",
        "CommensalError: commensal is active already",
        "ValueError: not a share between 0 and 1: -1",
        "ValueError: not a size: 'x'",
    ]
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)
    assert done.stderr == ""


def test_by_hand_without_a_daemon_live_memory_moves(world: World) -> None:
    script = world.script(
        """
import torch, commensal, json, os, time
commensal.init(job_class="opportunistic", memory="256MiB", share=1.0)
tensors = [torch.full((4 * 2**20,), float(i)) for i in range(8)]  # 16 MiB each
before = commensal.stats()
ticket = commensal.set_memory_limit("64MiB")
shrunk = commensal.stats()["memory"]
assert [t[123].item() for t in tensors] == list(range(8))  # reads only: stays where it is
assert [t.sum().item() for t in tensors] == [float(i) * 4 * 2**20 for i in range(8)]
grown = commensal.set_memory_limit(256 * 2**20)
end = time.monotonic() + 30  # an opportunistic job's memory comes back in the background
while not commensal.stats()["memory"]["moved_in_bytes_total"] and time.monotonic() < end:
    time.sleep(0.01)
commensal.set_compute_share(0.5)
child = os.fork()
if child == 0:
    inert = not commensal.is_active() and tensors[3][0].item() == 3.0
    os._exit(0 if inert else 1)
inert = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(json.dumps({"before": before, "ticket": vars(ticket), "shrunk": shrunk, "inert": inert,
                  "grown": vars(grown), "after": commensal.stats(),
                  "text": commensal.memory_summary()}))
"""
    )
    facts = facts_of(world.run([sys.executable, script]))
    assert facts["before"]["job"]["active"]
    assert facts["before"]["job"]["coordinator"] == ""
    assert facts["before"]["memory"]["limit_bytes"] == 256 << 20
    assert facts["ticket"]["limit_bytes"] == 64 << 20
    assert facts["shrunk"]["moved_out_bytes_total"] >= 64 << 20
    assert facts["shrunk"]["device_bytes"] <= (64 << 20) + facts["ticket"]["deferred_bytes"]
    assert facts["grown"]["revision"] > facts["ticket"]["revision"]
    assert facts["after"]["memory"]["moved_in_bytes_total"] > 0
    assert facts["after"]["gate"]["share"] == 0.5
    assert facts["inert"]
    assert "on the slower tier" in facts["text"]
    assert "256 MiB" in facts["text"]


def test_a_compiled_step_calls_the_hooks(world: World) -> None:
    script = world.script(
        """
import torch, commensal, json
commensal.init(job_class="guaranteed")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@torch.compile(backend="eager")
def step(x):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
for _ in range(12):
    step(torch.ones(2, 4))
print(json.dumps(commensal.stats()))
"""
    )
    assert facts_of(world.run([sys.executable, script]))["step"]["number"] == 12
