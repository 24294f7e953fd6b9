"""One line that says how far something is, in place: on a terminal and in a notebook; elsewhere nothing is in place."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_BAR = 16
_SECONDS_BETWEEN = 0.25


class LiveLine:
    """Title, bar and count, then as many details as the width has room for: what comes first matters most."""

    def __init__(self, console: Console, quiet: bool = False, stays: bool = True) -> None:
        """`stays` leaves the last line on a terminal when it is over."""
        self._console = console
        self._title, self._done, self._total = "", 0, 0
        self._details: Sequence[str] = ()
        self._notebook: Any = None
        self._updated = -math.inf
        in_notebook = console.is_jupyter and not quiet
        on_terminal = console.is_terminal and not in_notebook and not quiet
        self.in_place = in_notebook or on_terminal
        self._shows_in_notebook = in_notebook
        self._live = (
            Live(console=console, get_renderable=self._renderable, refresh_per_second=4, transient=not stays)
            if on_terminal
            else None
        )

    def show(self, title: str, done: int, total: int, details: Sequence[str] | None = None) -> None:
        """`done` of `total`; without `details` those of before stay."""
        self._title, self._done, self._total = title, done, total
        self._details = self._details if details is None else details
        if self._shows_in_notebook and (time.monotonic() - self._updated > _SECONDS_BETWEEN or done >= total):
            self._updated = time.monotonic()
            self._update_notebook()

    def text(self, width: int) -> str:
        """The line without its bar, for `width` columns with it."""
        count = f"{self._done:,}/{self._total:,}"
        left = width - len(self._title) - _BAR - len(count) - 2
        shown = [count]
        for detail in self._details:
            left -= len(detail) + 3
            if left < 0:
                break
            shown.append(detail)
        return " · ".join(shown)

    def _renderable(self) -> RenderableType:
        if not self._total:
            return Text("")
        line = Table.grid(padding=(0, 1))
        for _ in range(3):
            line.add_column(no_wrap=True)
        bar = ProgressBar(total=self._total, completed=self._done, width=_BAR)
        # The last column is not used: some terminals wrap a line that is just full.
        line.add_row(Text(self._title), bar, Text(self.text(self._console.width - 1)))
        return line

    def _update_notebook(self) -> None:
        display = import_module("IPython.display").display  # not ours to require: a notebook has it
        full = round(_BAR * self._done / self._total) if self._total else 0
        content = {"text/plain": f"{self._title} {'█' * full}{'░' * (_BAR - full)} {self.text(120)}"}
        if self._notebook is None:
            self._notebook = display(content, raw=True, display_id=True)
        else:
            self._notebook.update(content, raw=True)

    def say(self, message: str) -> None:
        """One plain line above; where standard error is closed or full, nobody reads it, and work goes on."""
        with suppress(OSError, ValueError):
            self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            with suppress(OSError, ValueError):
                self._live.stop()
