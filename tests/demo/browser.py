# SPDX-License-Identifier: Apache-2.0
"""Opens a page in a browser without a window, at a width, and asks it what it shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Goes first into the page: what it says on the console, and, once it is drawn, what it measures.
PROBE = """<script>
(() => {
  const said = [];
  addEventListener("error", (event) => said.push(String(event.message)));
  addEventListener("unhandledrejection", (event) => said.push(String(event.reason)));
  for (const level of ["error", "warn"]) {
    const before = console[level];
    console[level] = (...all) => { said.push(all.map(String).join(" ")); before(...all); };
  }
  const count = (what) => document.querySelectorAll(what).length;
  const tell = () => {
    const root = document.documentElement;
    if (!root.dataset.shows) return setTimeout(tell, 50);
    const still = document.querySelector(".still img");
    parent.postMessage({
      shows: root.dataset.shows,
      said,
      width: innerWidth,
      scroll_width: root.scrollWidth,
      page: getComputedStyle(document.body).backgroundColor,
      plot: [...document.querySelectorAll(".main-svg")].map((svg) => svg.style.background)[0] || "",
      still: still ? still.getBoundingClientRect().width * (still.naturalWidth > 0) : 0,
      columns: new Set([...document.querySelectorAll("#steps > div")]
        .map((div) => Math.round(div.getBoundingClientRect().left))).size,
      plots: [...document.querySelectorAll(".canvas")].map((canvas) => ({
        width: canvas.getBoundingClientRect().width,
        right: canvas.getBoundingClientRect().right,
        lines: canvas.querySelectorAll(".scatterlayer .trace .js-line").length,
        bars: canvas.querySelectorAll(".barlayer .point").length,
        legend: canvas.querySelectorAll(".legend .traces").length,
      })),
    }, "*");
  };
  tell();
})();
</script>"""
# A window has a least width; a frame in it has none.
FRAME = """<!doctype html><body style="margin:0"><pre id="found" hidden></pre>
<script>addEventListener("message", (event) => {
  document.getElementById("found").textContent = JSON.stringify(event.data);
});</script>
<style>iframe { border: 0; display: block; width: WIDTHpx; height: HEIGHTpx; }</style>
<iframe SANDBOX src="page.html"></iframe>
"""


@dataclass(frozen=True)
class Seen:
    """What a page said of itself, the console's lines, and the picture of it (0..1)."""

    found: dict[str, Any]
    console: list[str]
    picture: np.ndarray[Any, np.dtype[np.float64]]

    def pixels(self, colour: str) -> int:
        """Count the pixels of a colour such as "#d64545"."""
        wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        return int((np.abs(self.picture[..., :3] - wanted).max(axis=-1) < 0.02).sum())


def browser() -> str | None:
    """Return the browser's path, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def look(
    page: str,
    folder: Path,
    *,
    width: int = 1280,
    height: int = 3000,
    dark: bool = False,
    scripts: bool = True,
    before: str = "",
) -> Seen:
    """Open a page; `before` is a script that runs first."""
    program = browser()
    assert program is not None
    first = f"<script>{before}</script>{PROBE}"
    (folder / "page.html").write_text(page.replace("<head>", f"<head>{first}", 1))
    frame = FRAME.replace("WIDTH", str(width)).replace("HEIGHT", str(height))
    frame = frame.replace("SANDBOX ", "" if scripts else "sandbox ")
    (folder / "frame.html").write_text(frame)
    shot = folder / "shot.png"
    shot.unlink(missing_ok=True)
    done = subprocess.run(
        [
            program,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            # A frame in a process of its own may not be painted when the virtual time is over.
            *("--disable-features=IsolateSandboxedIframes", "--disable-site-isolation-trials"),
            *(f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *(f"--window-size={max(width, 500)},{height}", "--virtual-time-budget=30000"),
            *("--dump-dom", f"--screenshot={shot}"),
            (folder / "frame.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    told = re.search(r'<pre id="found" hidden="">(.*?)</pre>', done.stdout, re.DOTALL)
    assert told, done.stdout[-2000:] + done.stderr[-2000:]
    return Seen(
        found=json.loads(unescape(told[1]) or "{}"),
        console=[line for line in done.stderr.splitlines() if "CONSOLE" in line],
        picture=imread(shot)[:, :width],
    )
