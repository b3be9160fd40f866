# SPDX-License-Identifier: Apache-2.0
"""What two twins know of each other, and what follows from it for each."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Record", "Step", "Twin", "covers", "exit_code_of", "step_of_guaranteed"]

GUARANTEED = "guaranteed"
OPPORTUNISTIC = "opportunistic"
_WAITS = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_OVER = {
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"),
    *("DEADLINE", "OUT_OF_MEMORY", "REVOKED"),
}
_FORGOTTEN_DAYS = 60  # after which it is asked whether a pair's folder is nobody's


@dataclass(frozen=True)
class Twin:
    """A job as Slurm shows it. A state that is not known counts as running."""

    job: int
    state: str

    @property
    def waits(self) -> bool:
        return self.state in _WAITS

    @property
    def is_over(self) -> bool:
        return self.state in _OVER

    @property
    def ends(self) -> bool:
        """Whether Slurm is taking it off its nodes: to end it or to run it again."""
        return self.state == "COMPLETING"


class Step(Enum):
    """What the guaranteed twin does next."""

    RUN = "run the script"
    TAKE = "take the script over from a twin that waits"
    HOLD = "hold the devices for the twin that runs"
    WAIT = "ask again"
    LEAVE = "end as the twin has ended"


def step_of_guaranteed(owner: str, other: Twin | None, *, answered: bool) -> Step:
    """Decide for the twin that has started with whole devices.

    `owner` is the class of the one that the script belongs to; `other` the opportunistic one,
    nothing if Slurm has none (any more); not `answered`: Slurm did not say.
    """
    if owner == GUARANTEED:
        return Step.RUN
    if not answered:
        return Step.WAIT
    if other is None or other.is_over:
        return Step.LEAVE
    if other.waits:  # it was requeued
        return Step.TAKE
    return Step.WAIT if other.ends else Step.HOLD


def exit_code_of(recorded: int | None, other: Twin | None) -> int:
    """Return the code to leave with when the other twin is over: its own, else one by its state."""
    if recorded is not None:
        return recorded
    return 0 if other is not None and other.state == "COMPLETED" else 1


def covers(given: Mapping[str, Iterable[int]], used: Mapping[str, Iterable[int]]) -> bool:
    """Return whether all devices that are used, by node, are among those that are given."""
    return all(set(devices) <= set(given.get(node, ())) for node, devices in used.items())


class Record:
    """The folder of a pair, in a home that all nodes share: whose the script is, how it ended.

    `owner` is made whole and then linked, which one of two succeeds in on local disks and on NFS.
    """

    def __init__(self, home: Path, pair: str) -> None:
        self.base = home / ".commensal-slurm"
        self.folder = self.base / pair

    def claim(self, name: str) -> str:
        """Make the script the one's of class `name` unless it is somebody's; return whose it is.

        @raises OSError if the folder cannot be written to.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mine = self._write(name)
        try:
            os.link(mine, self.folder / "owner")
        except FileExistsError:
            return self.owner()
        finally:
            mine.unlink(missing_ok=True)
        return name

    def owner(self) -> str:
        return (self.folder / "owner").read_text()

    def take(self) -> None:
        """Make the script the guaranteed twin's: the other one is over for good."""
        self._write(GUARANTEED).replace(self.folder / "owner")

    def begin(self) -> None:
        (self.folder / "ended").unlink(missing_ok=True)

    def end(self, code: int) -> None:
        self._write(str(code)).replace(self.folder / "ended")

    def ended(self) -> int | None:
        """Return the code that the opportunistic twin's script has ended with."""
        try:
            return int((self.folder / "ended").read_text())
        except FileNotFoundError:
            return None

    def keep_script(self, text: bytes, name: str) -> Path:
        """Write the script to where it can be run from; each twin has a file of its own."""
        script = self.folder / f"script-{name}"
        new = script.with_suffix(".new")
        new.write_bytes(text)
        new.chmod(0o700)
        new.replace(script)
        return script

    def forget(self, pairs: Callable[[], set[str] | None]) -> None:
        """Remove the folder: both twins are over. Those that are old go too, if Slurm says that it
        has no job of theirs; `pairs` are those of which it has one, nothing if it does not answer.

        The script of a pair without its folder would run again.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        oldest = time.time() - _FORGOTTEN_DAYS * 86400
        with contextlib.suppress(OSError):
            old = [folder for folder in self.base.iterdir() if folder.stat().st_mtime < oldest]
            alive = pairs() if old else None
            for folder in old:
                if alive is not None and folder.name not in alive:
                    shutil.rmtree(folder, ignore_errors=True)

    def _write(self, text: str) -> Path:
        number, name = tempfile.mkstemp(prefix="new-", dir=self.folder)
        with os.fdopen(number, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return Path(name)
