# SPDX-License-Identifier: Apache-2.0
"""The report is one page that needs nothing else."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects
import pytest
from rich.console import Console

from commensal.demo import report
from commensal.demo.figures import Measurement, figures_of
from commensal.demo.plan import FULL, plan_for
from commensal.demo.plots import plots_of


class Elements(HTMLParser):
    """Collects the tags, what they point at, and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_self_contained(measurement: Measurement, tmp_path: Path) -> None:
    notes = ("Something <odd> & noteworthy.",)
    figures = replace(figures_of(measurement), notes=notes)
    page = report.write(tmp_path, measurement, figures)
    elements = Elements()
    elements.feed(page.read_text())
    assert not {"iframe", "object", "embed"} & set(elements.tags)
    assert all(link.startswith(("#", "data:")) for link in elements.links)
    assert elements.tags.count("noscript") == 1
    assert figures.headline() in elements.text
    assert notes[0] in elements.text
    assert "+1.0 %" in elements.text
    assert "a processor" in elements.text
    assert "{{" not in elements.text
    assert page.stat().st_size < 5 << 20


def test_the_plots_are_what_plotly_takes(measurement: Measurement) -> None:
    """The library for Python knows every property that plotly.js has, and refuses others."""
    for plots in plots_of(measurement).values():
        for plot in plots:
            text = json.dumps({"data": plot.traces, "layout": plot.layout})
            figure = plotly.graph_objects.Figure(json.loads(re.sub(r"\$[a-z-]+", "red", text)))
            assert figure.data
            for trace in figure.data:
                assert len(trace.x) == len(trace.y) > 0
                assert trace.name


def test_the_limit_says_why(measurement: Measurement) -> None:
    limit = next(t for t in plots_of(measurement)["memory"][0].traces if t["name"] == "its limit")
    assert limit["y"][:4] == [224, 224, 72, 72]
    assert limit["customdata"][2] == "what guaranteed jobs leave"


def test_the_picture_is_a_png(measurement: Measurement, tmp_path: Path) -> None:
    report.write(tmp_path, measurement, figures_of(measurement))
    assert (tmp_path / "sharing.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_too_short_to_sample_is_drawn_all_the_same(
    measurement: Measurement, tmp_path: Path
) -> None:
    short = replace(
        measurement, windows=tuple(replace(window, cpu=()) for window in measurement.windows)
    )
    assert report.write(tmp_path, short, figures_of(short)).exists()


def test_the_table_names_every_figure(measurement: Measurement) -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(report.table(figures_of(measurement)))
    text = console.export_text()
    for value in (r"\+100\.0 %", r"\+1\.0 %", "600 MiB, 3 live shrinks", "4.0 ms", "yes"):
        assert re.search(value, text), value


def test_the_full_plan_keeps_what_is_promised() -> None:
    assert FULL.opportunistic_steps >= 200
    assert FULL.guaranteed_steps >= 200
    assert FULL.least_shrinks >= 3
    assert FULL.least_moved_bytes >= 256 << 20
    assert len([c for c in FULL.limit_changes if c.max_bytes < 100 << 20]) >= 3
    assert plan_for(None) == plan_for(10_000) == FULL


@pytest.mark.parametrize("seconds", [1, 30, 60, 120])
def test_a_shorter_plan_does_less_and_is_not_judged(seconds: int) -> None:
    plan = plan_for(seconds)
    assert not plan.judged
    assert plan.opportunistic_steps < FULL.opportunistic_steps * 1.01
    assert 0 < plan.double_at < plan.guaranteed_steps
    steps = [change.at_step for change in plan.limit_changes]
    assert steps == sorted(set(steps))
    assert 0 < steps[0] < steps[-1] < plan.opportunistic_steps


def test_no_time_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="seconds must be positive: 0"):
        plan_for(0)
