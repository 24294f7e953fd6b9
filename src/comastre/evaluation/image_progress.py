"""How far a command is with its images: a live bar on a terminal or in a notebook, a plain line now and then else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console

from comastre.live_line import LiveLine
from comastre.text import readable_time

SECONDS_BETWEEN_LINES = 10.0


class ImageProgress:
    """Counts images; a line says `title`, how many of how many, the time left and the speed."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._line = LiveLine(console or Console(stderr=True), stays=False)
        self._began = self._said = time.monotonic()

    @property
    def done(self) -> int:
        """How many are done."""
        return self._done

    def advance(self, images: int = 1) -> None:
        """So many more are done."""
        self._done += images
        now = time.monotonic()
        speed = self._done / max(now - self._began, 1e-9)
        left = readable_time((self._total - self._done) / speed) if speed > 0 else "?"
        self._line.show(self._title, self._done, self._total, (f"{left} left", f"{speed:.1f} images/s"))
        if not self._line.in_place and self._done < self._total and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            self._line.say(f"{self._title}: {self._done:,} of {self._total:,} images, {speed:.1f} images/s")

    def __enter__(self) -> Self:
        self._line.__enter__()
        self._line.show(self._title, 0, self._total, ("images",))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)
