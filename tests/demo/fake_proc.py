# SPDX-License-Identifier: Apache-2.0
"""A /proc that tests can write."""

from __future__ import annotations

from pathlib import Path


class FakeProc:
    """A folder that looks like /proc to `QuietGuard`. Times are in ticks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine()

    def machine(self, user: int = 0, idle: int = 0, steal: int = 0) -> None:
        (self.folder / "stat").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1\n")

    def process(
        self, pid: int, parent: int, own: int = 0, waited: int = 0, name: str = "python"
    ) -> None:
        (self.folder / str(pid)).mkdir(exist_ok=True)
        fields = f"S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {waited} 0 20 0 1 0 5"
        (self.folder / str(pid) / "stat").write_text(f"{pid} ({name}) {fields}")
