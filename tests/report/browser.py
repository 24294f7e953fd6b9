"""A real browser for tests: headless Chromium, spoken to over a pipe in its own protocol, without another package.

Started as a script it takes the pictures of a report that a person should look at, and the one of the README:

    python tests/report/browser.py comastre-demo/report.html PICTURES
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def installed() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One open page: commands of the DevTools protocol, and what the page complained about meanwhile."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
        raise TimeoutError(method)

    def open(self, file: Path, width: int, height: int = 800, dark: bool = False) -> None:
        """Load a file in a window of this size."""
        self.complaints.clear()
        self.requests.clear()
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.command("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.readyState") != "complete" or self.run("location.href") == "about:blank":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{file} did not load")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def hover(self, selector: str) -> None:
        """Move the pointer to the middle of the first element that fits."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        # The page hears of the scrolling with its next frame.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        box = self.run(
            f"(() => {{ const b = {found}.getBoundingClientRect(); return [b.x, b.y, b.width, b.height] }})()"
        )
        x, y = box[0] + box[2] / 2, box[1] + box[3] / 2
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        """Press a key, such as ArrowLeft."""
        codes = {"ArrowLeft": 37, "ArrowRight": 39, "Enter": 13, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def picture(self, file: Path, top: int = 0, height: int | None = None) -> None:
        """Save the page, or the part of it from `top` on, as PNG."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        answer = self.command("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._read, 1 << 16) if ready else b""
            if not part:
                raise TimeoutError("the browser does not answer")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, details: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(details["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(details["args"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.complaints.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])


@contextmanager
def browser() -> Iterator[Page]:
    """A page in a browser that ends with the block."""
    executable = installed()
    assert executable is not None
    commands_out, commands_in = os.pipe()
    answers_out, answers_in = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads commands from its descriptor 3 and answers on 4: a small program puts ours there.
        start = (
            "import os, sys; ends = [os.dup(os.dup(os.dup(int(end)))) for end in sys.argv[1:3]]; "
            "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
        )
        ends = [str(commands_out), str(answers_in)]
        process = subprocess.Popen(
            [sys.executable, "-c", start, *ends, executable, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(commands_out, answers_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            yield Page(answers_out, commands_in)
        finally:
            process.terminate()
            process.wait(30)
            os.close(commands_in)
            os.close(answers_out)


def main(report: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        for name, width, dark in (("light", 1280, False), ("dark", 1280, True), ("phone", 390, False)):
            page.open(report, width, dark=dark)
            page.picture(folder / f"{name}.png")
        page.open(report, 1280)
        # The README's picture: the charts and some of the examples, without what lies between.
        unwanted = "section:not(:first-of-type):not(.looks), .scroll, details, .note, .said, footer, #theme"
        examples = ".card:nth-child(n+5)"
        page.run(f"document.querySelectorAll({json.dumps(f'{unwanted}, {examples}')}).forEach((part) => part.remove())")
        page.run("document.body.style.paddingBottom = '24px'")
        page.picture(folder / "readme.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
