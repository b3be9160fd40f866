# SPDX-License-Identifier: Apache-2.0
"""The page that compares policies on a trace; it needs nothing but itself."""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from commensal._report.page import encoded, table_rows
from commensal._report.page import render as render_page
from commensal.simulation import picture
from commensal.simulation.durations import Unit, unit_of, words
from commensal.simulation.plots import has_times, plots_of
from commensal.simulation.tables import (
    best,
    compare,
    failure_classes,
    failures,
    groups,
    predictions,
)

__all__ = ["write"]

PAGE = Path(__file__).with_name("page")
TIMES_SAID = """<p>The completion time of a job (JCT) is from its submission to its end;
the wait is the part of it in which it did not run. Bold: the shortest.</p>"""


def write(out: Path, answer: dict[str, Any]) -> Path:
    """Write `report.html` and `simulation.png` into a folder, whole; return the page's path."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".part") as name:
        part = Path(name)
        picture.draw(part / "simulation.png", answer)
        still = (part / "simulation.png").read_bytes()
        (part / "report.html").write_text(render(answer, still), encoding="utf-8")
        for file in ("simulation.png", "report.html"):
            os.replace(part / file, out / file)
    return out / "report.html"


def render(answer: dict[str, Any], still: bytes) -> str:
    """Return the whole page."""
    results = answer["results"]
    timed = has_times(results)
    unit = unit_of(max((r["metrics"].get("avg_jct", 0.0) for r in results), default=0.0))
    parts = {
        "headline": html.escape(headline(answer)),
        "picture": encoded(still),
        "explained": TIMES_SAID if timed else "",
        "plotted": (PAGE / ("timed.html" if timed else "packed.html")).read_text(),
        "compared": html_table(compare(results, unit), best(results)),
        "failures": failure_section(results),
        "predictions": prediction_section(results),
        "classes": group_section("class", results, "classes", unit),
        "tenants": group_section("tenant", results, "tenants", unit),
        "facts": table_rows(facts(answer)),
    }
    style = (PAGE / "colours.css").read_text()
    return render_page(PAGE / "page.html", plots_of(answer), parts, style)


def headline(answer: dict[str, Any]) -> str:
    """Say which policy's jobs were done soonest, in the mean."""
    results = [result for result in answer["results"] if "avg_jct" in result["metrics"]]
    if not results:
        return f"{answer['trace']['jobs']:,} jobs on {answer['cluster']['gpus']:,} GPUs"
    least = min(results, key=lambda result: result["metrics"]["avg_jct"])
    jobs, gpus = answer["trace"]["jobs"], answer["cluster"]["gpus"]
    begin = f"{jobs:,} jobs on {gpus:,} GPUs"
    time = words(least["metrics"]["avg_jct"])
    if len(results) == 1:
        return f"{begin}: {least['policy']} completes a job in {time} in the mean."
    worst = max(results, key=lambda result: result["metrics"]["avg_jct"])
    ratio = worst["metrics"]["avg_jct"] / max(least["metrics"]["avg_jct"], 1e-9)
    return (
        f"{begin}: {least['policy']} completes a job in {time} in the mean, "
        f"{worst['policy']} takes {ratio:.2f} times as long."
    )


def facts(answer: dict[str, Any]) -> list[tuple[str, str]]:
    trace, cluster, results = answer["trace"], answer["cluster"], answer["results"]
    types = ", ".join(f"{count} of type {name}" for name, count in cluster["gpu_types"].items())
    options = ", ".join(f"{k}={v}" for k, v in results[0]["options"].items())
    return [
        ("trace", f"{Path(trace['file']).name}, format {trace['format']}"),
        ("rows that were left out", str(trace["skipped_rows"])),
        ("cluster", f"{cluster['nodes']} nodes, GPUs: {types}"),
        ("semantics", results[0]["semantics"]),
        ("options of the policies", options or "none"),
    ]


def failure_section(results: list[dict[str, Any]]) -> str:
    """Return a section about what failed; nothing where nothing could."""
    rows = failures(results)
    if not rows:
        return ""
    words = html.escape(results[0]["failures"]["options"])
    return (
        f"<section><h2>Failures</h2><p>Injected with --failures {words}. Wasted are GPU-seconds "
        "of which no completed job has anything, those of pre-runs included; the first report is "
        "counted from the submission of a job that fails.</p>"
        f"{html_table(rows)}{html_table(failure_classes(results), grouped=True)}</section>"
    )


def prediction_section(results: list[dict[str, Any]]) -> str:
    """Return a section about predicted durations; nothing where no policy saw any."""
    rows = predictions(results)
    if not rows:
        return ""
    return (
        "<section><h2>Predictions</h2>"
        "<p>How far they were from the truth, in percent of it. Durations are predicted when a "
        "job arrives, from jobs that have ended; jobs alike share more than that with it. "
        "Optimus predicts, at each epoch of a job, the steps that it has left, from its losses, "
        f"and the time of a step.</p>{html_table(rows)}</section>"
    )


def group_section(what: str, results: list[dict[str, Any]], key: str, unit: Unit) -> str:
    """Return a section with a table, or nothing if all jobs are of one group without a name."""
    if all(not group["name"] for result in results for group in result[key]):
        return ""
    table = html_table(groups(what, results, key, unit), grouped=True)
    return f"<section><h2>By {what}</h2>\n{table}</section>"


def html_table(
    lines: Sequence[Sequence[str]],
    marked: Container[tuple[int, int]] = (),
    *,
    grouped: bool = False,
) -> str:
    """Return a table with a heading; `grouped`: a name in the first column stands once."""

    def cell(row: int, column: int) -> str:
        text = lines[row][column]
        if grouped and column == 0 and row > 1 and lines[row - 1][0] == text:
            text = ""
        return f"<td{' class=best' * ((row, column) in marked)}>{html.escape(text)}</td>"

    def begins(row: int) -> bool:
        return grouped and lines[row][0] != lines[row - 1][0]

    names = [html.escape(text).replace(", ", ",&nbsp;") for text in lines[0]]
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        f"<tr{' class=begins' * begins(row)}>"
        f"{''.join(cell(row, column) for column in range(len(lines[row])))}</tr>"
        for row in range(1, len(lines))
    )
    kind = ' class="grouped"' if grouped else ""
    table = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide">{table}</div>'
