# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window, driven through its WebDriver: what the page's tests need of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from world import wait_until

__all__ = ["PageBrowser", "missing_browser"]


def missing_browser() -> str:
    """Return what this machine lacks; empty: nothing."""
    lacking = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(lacking)} here" if lacking else ""


class PageBrowser:
    """One browser with one tab."""

    def __init__(self, folder: Path) -> None:
        options = Options()
        options.binary_location = str(shutil.which("chromium"))
        for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(word)
        options.add_argument(f"--user-data-dir={folder / 'profile'}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(str(shutil.which("chromedriver")), log_output=str(folder / "driver.log"))
        self.driver = webdriver.Chrome(options=options, service=service)

    def close(self) -> None:
        self.driver.quit()

    def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        """Make the window as large as a screen; a window of its own has a least width."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, address: str) -> None:
        """Open an address anew, with nothing left of another page, and wait until it is live."""
        self.driver.get("about:blank")
        self.driver.get(address)
        self.wait_live()

    def wait_live(self) -> None:
        self.wait("the page is live", lambda: self.text("#connection") == "live")

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        def holds() -> object:
            try:
                return condition()
            except StaleElementReferenceException:  # drawn anew meanwhile
                return False

        wait_until(what, holds)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of all elements that match, as it is in the page."""
        script = (
            "return [...document.querySelectorAll(arguments[0])]"
            ".map(e => e.textContent.trim()).join('\\n')"
        )
        return str(self.driver.execute_script(script, selector))

    def rows(self, table: str) -> list[list[str]]:
        """Return what a table says, cell by cell."""
        script = (
            "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(row => "
            "[...row.cells].map(c => c.innerText.replace(/\\s+/g, ' ').trim()))"
        )
        return [list(row) for row in self.driver.execute_script(script, table)]

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """Return what the browser said of the page since the last call: errors, refused content."""
        lines = self.driver.get_log("browser")
        return [line["message"] for line in lines if line["level"] in ("WARNING", "SEVERE")]

    def picture(self, file: Path, width: int, *, dark: bool) -> None:
        """Write the page, or its upper part if it is long, small enough to be kept."""
        height = int(self.run("return document.documentElement.scrollHeight"))
        height = min(height, 1500)
        self.screen(width, height, dark=dark)
        shot = Image.open(BytesIO(self.driver.get_screenshot_as_png())).convert("RGB")
        shot.quantize(64, method=Image.Quantize.MEDIANCUT).save(file, optimize=True)
