# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: everything is drawn, at the width of a desk and of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import NAMES, browser, look
from recorded import recorded_measurement

from commensal.demo import report
from commensal.demo.figures import figures_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason=f"no browser here: {' or '.join(NAMES)}"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = recorded_measurement()
    return report.write(tmp_path_factory.mktemp("report"), run, figures_of(run)).read_text()


@pytest.mark.parametrize(("width", "columns"), [(1280, 2), (390, 1)])
@pytest.mark.parametrize("dark", [False, True])
def test_every_plot_is_drawn_and_the_page_fits(
    page: str, tmp_path: Path, width: int, columns: int, dark: bool
) -> None:
    seen = look(page, tmp_path, width=width, height=4200, dark=dark)
    found = seen.found
    assert (found["shows"], found["said"], seen.console) == ("plots", [], [])
    assert (found["width"], found["scroll_width"]) == (width, width)
    assert found["columns"] == columns
    plots = found["plots"]
    assert [plot["lines"] for plot in plots] == [3, 3, 4, 1, 1]
    assert [plot["legend"] for plot in plots] == [3, 3, 5, 3, 3]
    assert all(plot["bars"] > 5 for plot in plots[3:])
    assert all(0.7 * width / columns < plot["width"] < plot["right"] < width for plot in plots)
    assert found["page"] == ("rgb(17, 22, 28)" if dark else "rgb(245, 247, 250)")
    assert found["plot"] == ("rgb(27, 35, 44)" if dark else "rgb(255, 255, 255)")
    for colour in ("#f07878", "#1f7577", "#8fb3d9") if dark else ("#d64545", "#3fa2a3", "#334e68"):
        assert seen.pixels(colour) > 100, colour


def test_without_scripts_the_still_picture_stays(page: str, tmp_path: Path) -> None:
    own_colour = "#339c9e"  # the picture's area, which no plot of the page has
    drawn = look(page, tmp_path)
    still = look(page, tmp_path, scripts=False)
    assert (drawn.found["still"], still.found) == (0, {})  # no script told anything
    assert drawn.pixels(own_colour) < 1000 < still.pixels(own_colour)


def test_a_browser_that_cannot_unpack_shows_the_still_picture(page: str, tmp_path: Path) -> None:
    seen = look(page, tmp_path, width=390, before="delete globalThis.DecompressionStream;")
    assert seen.found["shows"] == "still"
    assert seen.found["plots"] == []
    assert 300 < seen.found["still"] < 390
    assert seen.found["scroll_width"] == 390
    assert "no interactive plots" in seen.found["said"][0]
