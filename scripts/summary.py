# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit result files and prints the closing line `N passed, N failed, N skipped`.

Every failed case is named before it, with the end of what it printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from xml.etree import ElementTree

# As much of a failed case's output as tells what went wrong without burying the next one.
TOLD_LINES = 25


def told(case: ElementTree.Element) -> str:
    """Return the end of what a failed case said, each line marked with "  | "."""
    texts = (case.findtext(tag) for tag in ("failure", "error", "system-out"))
    text = next((text for text in texts if text and text.strip()), "")
    return "".join(f"  | {line}\n" for line in text.rstrip().splitlines()[-TOLD_LINES:])


def count(path: str) -> tuple[int, int, int]:
    """Return passed, failed and skipped cases of one file; an unreadable file is one failure."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 0, 1, 0
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            print(f"failed: {case.get('classname', '')} {case.get('name', '')}", file=sys.stderr)
            print(told(case), end="", file=sys.stderr)
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main(argv: Sequence[str]) -> int:
    """Print the sums; return 1 if anything failed or nothing passed."""
    totals = [sum(column) for column in zip(*map(count, argv), strict=True)] or [0, 0, 0]
    passed, failed, skipped = totals
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
