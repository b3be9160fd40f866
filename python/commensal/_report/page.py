# SPDX-License-Identifier: Apache-2.0
"""A page with plots that needs nothing but itself: no network, no file beside it."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from plotly.offline import get_plotlyjs

from commensal._report.plot import Plot

__all__ = ["encoded", "render", "table_rows"]

FILES = Path(__file__).with_name("page")
ICON = (
    b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 2 2">'
    b'<circle cx="1" cy="1" r="1" fill="#0f8b8d"/></svg>'
)


def render(
    template: Path,
    plots: Mapping[str, Sequence[Plot]],
    parts: Mapping[str, str],
    style: str = "",
) -> str:
    """Return a page: a template with `{{name}}` where the part of that name belongs.

    Beside `parts` there are `icon`, `style` (with more of it behind), `script`, `plots` by their
    section, and `library`, plotly.js.
    """
    data = {section: [asdict(plot) for plot in drawn] for section, drawn in plots.items()}
    found = {
        **parts,
        "icon": encoded(ICON),
        "style": (FILES / "page.css").read_text() + style,
        "script": (FILES / "page.js").read_text(),
        # Nothing in it ends the script element.
        "plots": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        "library": encoded(gzip.compress(get_plotlyjs().encode(), mtime=0)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda name: found[name[1]], template.read_text())


def table_rows(lines: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """Return rows of a table; a narrow page shows a cell's heading beside it."""

    def cell(index: int, text: str) -> str:
        of = f' data-of="{html.escape(headings[index])}"' if index and headings else ""
        return f"<td{of}>{html.escape(text)}</td>"

    return "".join(
        f"<tr>{''.join(cell(index, text) for index, text in enumerate(line))}</tr>"
        for line in lines
    )


def encoded(data: bytes) -> str:
    """Return bytes as text for a `data:` address."""
    return base64.b64encode(data).decode()
