# SPDX-License-Identifier: Apache-2.0
"""Another process's memory by the driver's checkpoint calls, which take all of it at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from driver_segments import DriverError, call
from free_memory import Watch

NEARLY_ALL = 0.9
PATIENCE = 10.0


def checkpoint(settings: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a handler that parks the process `pid`, or wakes it."""
    watch = Watch(settings["watch"])
    orders = {
        "park": ("cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint"),
        "wake": ("cuCheckpointProcessRestore", "cuCheckpointProcessUnlock"),
    }

    def handle(order: dict[str, Any]) -> dict[str, Any]:
        freed = int(order["bytes"] * NEARLY_ALL) if order["do"] == "park" else 0
        try:
            call("cuInit", 0)
            if freed:
                watch.arm(watch.free() + freed, PATIENCE)
            begin = time.monotonic()
            for name in orders[order["do"]]:
                call(name, order["pid"], None)
        except DriverError as error:
            return {"reason": str(error)}
        told: dict[str, Any] = {"reason": "", "seconds": time.monotonic() - begin}
        if freed:
            told["visible"] = watch.seen() is not None
            told["left_bytes"] = watch.held(order["pid"]) or 0
        return told

    return handle
