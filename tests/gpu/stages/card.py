# SPDX-License-Identifier: Apache-2.0
"""The card's name. Asked in a process of its own, so that nobody holds the driver afterwards."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

__all__ = ["card_name", "short_name"]

MAKERS = r"\b(nvidia|tesla|geforce|quadro|graphics|device)\b"


def short_name(name: str) -> str:
    """Return how file names begin: h100 for `NVIDIA H100 80GB HBM3`."""
    words = re.sub(MAKERS, " ", name.lower())
    found = re.search(r"\b(?:[rg]tx )?[a-z]*\d+[a-z]*\b", words)
    return re.sub(r"[^a-z0-9]+", "-", (found[0] if found else words).strip()) or "card"


def card_name() -> tuple[str, str]:
    """Return the name of the machine's first card, or an empty one and why there is none."""
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=60, check=False
    )
    words = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    last = words[-1] if words else "no answer"
    return (last, "") if done.returncode == 0 else ("", last)


def main() -> int:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    for what, code in (
        ("cuInit", driver.cuInit(0)),
        ("cuDeviceGet", driver.cuDeviceGet(ctypes.byref(device), 0)),
        ("cuDeviceGetName", driver.cuDeviceGetName(name, 256, device)),
    ):
        if code:
            print(f"{what} fails with {code}", file=sys.stderr)
            return 1
    print(name.value.decode(errors="replace"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
