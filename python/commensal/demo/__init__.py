# SPDX-License-Identifier: Apache-2.0
"""The main job on real data: two training jobs share this machine, measured and checked.

`main` runs it; `plan` says how much, `conductor` runs the windows, `figures` computes the numbers,
`report` draws them. `quiet` tells whether the machine was quiet enough to judge a window.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["main"]


def main(out: Path, seconds: int | None = None, json_file: Path | None = None) -> int:
    """Run the demo and write `report.html`, `sharing.png` and `demo.json` into `out`.

    `seconds` scales the amount of work down; the figures are then not judged. Returns 0 if the
    demo's own checks hold, 1 if one failed, and prints the reason.
    """
    from commensal.demo.conductor import run_demo  # loads matplotlib and numpy

    return run_demo(out, seconds, json_file)
