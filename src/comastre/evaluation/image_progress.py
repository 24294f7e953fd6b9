"""How far a command is with its images: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class ImageProgress:
    """Counts images; a line says `title`, how many of how many, and the speed."""

    def __init__(self, title: str, total: int, console: Console | None = None) -> None:
        self._title = title
        self._total = total
        self._done = 0
        self._console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        self._line = self._bar.add_task(title, total=total)
        self._began = self._said = time.monotonic()

    @property
    def done(self) -> int:
        """How many are done."""
        return self._done

    def advance(self, images: int = 1) -> None:
        """So many more are done."""
        self._done += images
        self._bar.update(self._line, completed=self._done)
        now = time.monotonic()
        if not self._console.is_terminal and self._done < self._total and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            speed = self._done / max(now - self._began, 1e-9)
            line = f"{self._title}: {self._done:,} of {self._total:,} images, {speed:.1f} images/s"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
