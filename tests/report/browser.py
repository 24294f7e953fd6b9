"""A real browser for tests: playwright, driving the Chromium that this machine has; nothing is downloaded.

Started as a script it takes the pictures of a report that a person should look at, and the one of the README:

    python tests/report/browser.py comastre-demo/report.html PICTURES
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def installed() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own that ends with the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=installed(), headless=True, args=FLAGS)
        try:
            yield started
        finally:
            started.close()


@dataclass(frozen=True)
class Opened:
    """One open file: its page, what the page complained about, and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the page has drawn itself, and with that has heard of all that happened before."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")


@contextmanager
def open_file(started: Browser, file: Path, width: int, height: int = 800, dark: bool = False) -> Iterator[Opened]:
    """Load a file in a window of this size, in a browser without cookies, memory and network."""
    context = started.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        is_mobile=width < 600,
        offline=True,
    )
    try:
        opened = Opened(context.new_page())

        def note(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning", "assert"):
                opened.complaints.append(f"{message.type}: {message.text}")

        opened.page.on("console", note)
        opened.page.on("pageerror", lambda error: opened.complaints.append(f"not caught: {error}"))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(file.resolve().as_uri())
        yield opened
    finally:
        context.close()


def main(report: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as started:
        for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("phone", 390, False)):
            with open_file(started, report, width, dark=dark) as opened:
                opened.page.screenshot(path=folder / f"{name}.png", full_page=True)
        with open_file(started, report, 1280) as opened:
            # The README's picture: the charts and some of the examples, without what lies between.
            unwanted = "section:not(:first-of-type):not(.looks), .scroll, details, .note, .said, footer, #theme"
            chosen = json.dumps(f"{unwanted}, .card:nth-child(n+5)")
            opened.page.evaluate(f"document.querySelectorAll({chosen}).forEach((part) => part.remove())")
            opened.page.evaluate("document.body.style.paddingBottom = '24px'")
            opened.page.screenshot(path=folder / "readme.png", full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
