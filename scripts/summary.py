# SPDX-License-Identifier: Apache-2.0
"""Adds up JUnit result files and prints the closing line `N passed, N failed, N skipped`.

Every failed case is named before it, with the end of what it printed. Where ctest runs many cases
in one process, its file has one case, NAME, and another one, cases/NAME.xml, has those of the
process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

# As much of a failed case's output as tells what went wrong without burying the next one.
TOLD_LINES = 25


def told(case: ElementTree.Element) -> str:
    """Return the end of what a failed case said, each line marked with "  | "."""
    texts = (case.findtext(tag) for tag in ("failure", "error", "system-out"))
    text = next((text for text in texts if text and text.strip()), "")
    return "".join(f"  | {line}\n" for line in text.rstrip().splitlines()[-TOLD_LINES:])


def failed(case: ElementTree.Element) -> bool:
    """Tell whether a case failed."""
    return case.find("failure") is not None or case.find("error") is not None


def cases_of(path: Path) -> list[ElementTree.Element]:
    """Return the cases of one file, in place of a whole program its own."""
    found: list[ElementTree.Element] = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        parts = path.parent / "cases" / f"{case.get('name', '')}.xml"
        own = cases_of(parts) if parts.exists() else []
        found += own
        # A program that fails beside its cases, at its end perhaps, is one more.
        if not own or (failed(case) and not any(map(failed, own))):
            found.append(case)
    return found


def count(path: str) -> tuple[int, int, int]:
    """Return passed, failed and skipped cases of one file; an unreadable file is one failure."""
    try:
        cases = cases_of(Path(path))
    except (OSError, ElementTree.ParseError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 0, 1, 0
    passed = bad = skipped = 0
    for case in cases:
        if failed(case):
            bad += 1
            print(f"failed: {case.get('classname', '')} {case.get('name', '')}", file=sys.stderr)
            print(told(case), end="", file=sys.stderr)
        elif case.find("skipped") is not None:
            skipped += 1
        elif case.get("status") != "notrun":  # not disabled
            passed += 1
    return passed, bad, skipped


def main(argv: Sequence[str]) -> int:
    """Print the sums; return 1 if anything failed or nothing passed."""
    totals = [sum(column) for column in zip(*map(count, argv), strict=True)] or [0, 0, 0]
    passed, bad, skipped = totals
    print(f"{passed} passed, {bad} failed, {skipped} skipped")
    return 0 if passed and not bad else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
