# SPDX-License-Identifier: Apache-2.0
"""What a stage measured so far, in a file with which a later run goes on.

Parts are what is measured together: a group of figures, a script, a mode of a pair, a question.
They are kept under a key, which `run_all.sh` makes of the card and of the sources: what was
measured of anything else is not taken.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

__all__ = ["KeptParts", "result_file"]

SCHEMA = 1


def result_file(out: Path, name: str) -> Path:
    """Return where a result is to lie: its name begins with the card's (STAGE_CARD)."""
    card = os.environ.get("STAGE_CARD")
    return out / (f"{card}-{name}" if card else name)


class KeptParts:
    """The parts of one stage; each is any JSON. Without STAGE_KEY nothing is kept or taken."""

    def __init__(self, stage: str, out: Path) -> None:
        self._path = result_file(out, f"{stage}.kept.json")
        self._key = os.environ.get("STAGE_KEY")
        self.parts: dict[str, Any] = {}
        if self._key and self._path.exists():
            try:
                told = json.loads(self._path.read_text())
                if (told["schema"], told["key"]) == (SCHEMA, self._key):
                    self.parts = dict(told["parts"])
            except (ValueError, KeyError, TypeError) as error:
                print(f"{self._path} is damaged, all is measured: {error!r}", file=sys.stderr)

    def put(self, part: str, told: Any) -> None:
        """Keep a part, from now on also if the process is killed."""
        self.parts[part] = told
        if self._key:
            beside = self._path.with_suffix(".part")
            text = {"schema": SCHEMA, "key": self._key, "parts": self.parts}
            beside.write_text(json.dumps(text) + "\n")
            beside.replace(self._path)
