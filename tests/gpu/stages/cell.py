# SPDX-License-Identifier: Apache-2.0
"""A process that measures one thing, in one way of allocating memory (`cell_runs.py` starts it).

    cell.py NAME --answers DESCRIPTOR

Reads JSON from standard input, an object a line, and answers each with one: the cell's settings,
then orders. Before the settings have come it touches no card, so that it can be started early.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

# name: where its function is, which makes the things that the orders need and returns a handler
CELLS = {
    "card": "cells_card",
    "checkpoint": "cells_checkpoint",
    "traces": "cells_allocation",
    "give_back": "cells_allocation",
    "antman_shrink": "cells_allocation",
    "job": "cells_job",
    "graph": "cells_job",
    "steps": "cells_training",
    "resnet": "cells_training",
    "adam": "cells_training",
}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=sorted(CELLS))
    parser.add_argument("--answers", type=int, required=True)
    arguments = parser.parse_args(argv)
    make = getattr(importlib.import_module(CELLS[arguments.name]), arguments.name)
    handle: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    with os.fdopen(arguments.answers, "w") as answers:
        for line in sys.stdin:
            order: dict[str, Any] = json.loads(line)
            if handle is None:
                handle, told = make(order), {}
            else:
                told = handle(order)
            print(json.dumps(told), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
