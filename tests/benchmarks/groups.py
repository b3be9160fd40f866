# SPDX-License-Identifier: Apache-2.0
"""Two control groups beside each other, with weights: the kernel's own way to rank jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Groups", "NoGroups", "two_groups"]

_USUAL = 100  # version 2's weight of a group; version 1's is 1024 shares


class NoGroups(RuntimeError):
    """Says why there can be no such groups here."""


@dataclass(frozen=True)
class Groups:
    """The folders of two groups."""

    low: Path
    high: Path

    @staticmethod
    def launcher(group: Path) -> list[str]:
        """Return the command that goes before another one to run it in a group."""
        enter = f'echo $$ > "{group / "cgroup.procs"}" && exec "$@"'
        return ["sh", "-c", enter, "sh"]


@dataclass(frozen=True)
class _Place:
    version: int
    folder: Path


@contextlib.contextmanager
def two_groups(low: int, high: int) -> Iterator[Groups]:
    """Make two groups with weights as of version 2 (1 to 10000), and remove them again.

    Raises:
        NoGroups: there is no group here that may be divided.
    """
    place = _place()
    made: list[Path] = []
    try:
        for name, weight in (("low", low), ("high", high)):
            made.append(_make(place, f"commensal-{os.getpid()}-{name}", weight))
        yield Groups(*made)
    finally:
        for group in made:
            _remove(group)


def _make(place: _Place, name: str, weight: int) -> Path:
    group = place.folder / name
    file, text = group / "cpu.weight", str(weight)
    if place.version == 1:
        file, text = group / "cpu.shares", str(max(2, 1024 * weight // _USUAL))
    try:
        group.mkdir()
    except OSError as error:
        raise NoGroups(f"cannot make {group}: {error.strerror}") from None
    try:
        with file.open("r+") as opened:
            opened.write(text)
    except OSError as error:
        group.rmdir()
        raise NoGroups(f"cannot write {file}: {error.strerror}") from None
    return group


def _remove(group: Path) -> None:
    """Remove a group once the processes in it have ended."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _place() -> _Place:
    """Return the group below which groups with weights can be made."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    own = {
        line.split(":", 2)[1]: line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
    }
    reason = "no hierarchy of control groups has the CPU controller"
    for line in lines:
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup" and "cpu" in options.split(","):
            named = next((path for names, path in own.items() if "cpu" in names.split(",")), "/")
            return _Place(1, _inside(mount, root, named))
        if kind == "cgroup2" and "" in own:
            group = _inside(mount, root, own[""])
            for folder in (group, group.parent):  # version 2 has processes in the leaves only
                control = folder / "cgroup.subtree_control"
                if control.exists() and "cpu" in control.read_text().split():
                    return _Place(2, folder)
            reason = f"groups beside {group} have no weights"
    raise NoGroups(reason)


def _inside(mount: str, root: str, group: str) -> Path:
    """Return the folder of a group; a container's mount shows a part of the hierarchy."""
    path = Path(group)
    if root != "/":
        path = path.relative_to(root) if path.is_relative_to(root) else Path("/")
    return Path(mount) / str(path).lstrip("/")
