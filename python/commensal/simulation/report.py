# SPDX-License-Identifier: Apache-2.0
"""The page that compares policies on a trace; it needs nothing but itself."""

from __future__ import annotations

import gzip
import html
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from commensal.demo.report import ICON, encoded, table_rows
from commensal.demo.report import PAGE as DEMO_PAGE
from commensal.simulation import picture
from commensal.simulation.plots import plots_of
from commensal.simulation.tables import compare, failure_classes, failures, groups, predictions

__all__ = ["write"]

PAGE = Path(__file__).with_name("page")


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
    plots = {name: [asdict(plot) for plot in drawn] for name, drawn in plots_of(answer).items()}
    results = answer["results"]
    heading, *rows = compare(results)
    parts = {
        "icon": encoded(ICON),
        "style": (DEMO_PAGE / "page.css").read_text() + (PAGE / "colours.css").read_text(),
        "script": (DEMO_PAGE / "page.js").read_text(),
        "headline": html.escape(headline(answer)),
        "picture": encoded(still),
        "head": "".join(f"<th>{html.escape(cell)}</th>" for cell in heading),
        "body": table_rows(rows, heading),
        "failures": "".join(failure_section(results)),
        "predictions": "".join(prediction_section(results)),
        "tenants": "".join(group_table("tenant", results, "tenants")),
        "classes": "".join(group_table("class", results, "classes")),
        "facts": table_rows(facts(answer)),
        "plots": json.dumps(plots, separators=(",", ":")).replace("<", "\\u003c"),
        "library": encoded(gzip.compress(get_plotlyjs().encode(), mtime=0)),
    }
    page = (PAGE / "page.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], page)


def headline(answer: dict[str, Any]) -> str:
    """Say which policy's jobs were done soonest, in the mean."""
    results = [result for result in answer["results"] if "avg_jct" in result["metrics"]]
    if not results:
        return f"{answer['trace']['jobs']:,} jobs on {answer['cluster']['gpus']:,} GPUs"
    best = min(results, key=lambda result: result["metrics"]["avg_jct"])
    jobs, gpus = answer["trace"]["jobs"], answer["cluster"]["gpus"]
    begin = f"{jobs:,} jobs on {gpus:,} GPUs"
    time = f"{best['metrics']['avg_jct']:,.0f} s"
    if len(results) == 1:
        return f"{begin}: {best['policy']} completes a job in {time} in the mean."
    worst = max(results, key=lambda result: result["metrics"]["avg_jct"])
    ratio = worst["metrics"]["avg_jct"] / max(best["metrics"]["avg_jct"], 1e-9)
    return (
        f"{begin}: {best['policy']} completes a job in {time} in the mean, "
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


def failure_section(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a section about what failed, where anything could."""
    rows = failures(results)
    if not rows:
        return
    words = html.escape(results[0]["failures"]["options"])
    yield f"<section><h2>Failures</h2><p>Injected with --failures {words}. Wasted are GPU-seconds "
    yield "of which no completed job has anything, those of pre-runs included; the first report is "
    yield 'counted from the submission of a job that fails.</p><div class="wide">'
    yield from table(rows)
    yield from table(failure_classes(results))
    yield "</div></section>"


def prediction_section(results: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a section about predicted durations, where any policy saw some."""
    rows = predictions(results)
    if not rows:
        return
    yield "<section><h2>Predictions</h2>"
    yield "<p>How far they were from the truth, in percent of it. Durations are predicted when a "
    yield "job arrives, from jobs that have ended; jobs alike share more than that with it. "
    yield "Optimus predicts, at each epoch of a job, the steps that it has left, from its losses, "
    yield 'and the time of a step.</p><div class="wide">'
    yield from table(rows)
    yield "</div></section>"


def group_table(what: str, results: list[dict[str, Any]], key: str) -> Iterator[str]:
    yield from table(groups(what, results, key))


def table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield a heading and rows."""
    heading, *lines = rows
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in heading)
    yield f'<table class="figures"><thead><tr>{head}</tr></thead>'
    yield f"<tbody>{table_rows(lines, heading)}</tbody></table>"
