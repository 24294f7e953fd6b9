"""Ways a run ends before its last step: a signal, or a loss that is no longer a number."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from comastre.errors import UserError


class Interrupted(UserError):  # noqa: N818 (a request to stop is no error)
    """The run was asked to stop and can go on later; `exit_code` is what a shell expects after that signal."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message, signal_number)
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number

    def __str__(self) -> str:
        return str(self.args[0])


class Diverged(UserError):  # noqa: N818
    """A loss term or the weights became NaN or infinite."""


class StopRequest:
    """Remembers SIGTERM and Ctrl-C so that the loop can finish its iteration and save.

    A second signal is not remembered but obeyed at once, as a user expects who presses Ctrl-C twice.
    """

    def __init__(self, on_first: Callable[[int], None] | None = None) -> None:
        """`on_first` is called with the number of the first signal."""
        self.signal_number = 0
        self._received = 0.0
        self._message: str | None = None
        self._on_first = on_first

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Catch the signals inside this block; elsewhere than in the main thread Python cannot, and we do not."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, self._receive)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self, message: str) -> Iterator[None]:
        """Inside this block nothing is left to save: a signal ends the run without waiting."""
        if self.signal_number:
            raise Interrupted(message, self.signal_number)
        self._message = message
        try:
            yield
        finally:
            self._message = None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = bool(self.signal_number)
        if again and time.monotonic() - self._received < 1.0:
            return  # the same key press, passed on by the parent too
        self.signal_number = number
        self._received = time.monotonic()
        if self._message is not None:
            raise Interrupted(self._message, number)
        if again:
            raise KeyboardInterrupt
        if self._on_first is not None:
            self._on_first(number)
