# SPDX-License-Identifier: Apache-2.0
"""The main job on real data: two training jobs share this machine, measured and checked.

`main` runs it; `gpu` finds the device, `plan` says how much, `conductor` runs the windows,
`figures` computes the numbers, `report` draws them. `quiet` tells whether the machine was quiet
enough to judge a window.
"""

from __future__ import annotations

import sys
from pathlib import Path

__all__ = ["main"]


def main(
    out: Path, seconds: int | None = None, json_file: Path | None = None, device: str = "auto"
) -> int:
    """Run the demo and write `report.html`, `sharing.png` and `demo.json` into `out`.

    `seconds` scales the amount of work down; the figures are then not judged. `device` is `cpu`,
    `cuda` or `auto`: a GPU where there is a usable one. Returns 0 if the demo's own checks hold, 1
    if one failed, and prints the reason.
    """
    try:
        from commensal.demo.command import run_demo
    except ImportError as error:
        print(
            f"commensal: the demo needs a package that is missing: {error}"
            " (pip install 'commensal[demo]')",
            file=sys.stderr,
        )
        return 1
    return run_demo(out, seconds, json_file, device)
