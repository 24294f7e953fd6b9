"""Work beside the main thread, so that a model does not wait for files: what it needs next, and what it has made."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
_SECONDS = 0.2
"""Between looks at signals: on some systems a thread that waits hears of no Ctrl-C."""


def one_ahead(items: Iterable[Item], work: Callable[[Item], Made]) -> Iterator[tuple[Item, Made]]:
    """Each item with what `work` makes of it, of which another thread makes the next while this one is used."""
    with ThreadPoolExecutor(1) as pool:
        before: tuple[Item, Future[Made]] | None = None
        for item in items:
            coming = item, pool.submit(work, item)
            if before is not None:
                yield before[0], before[1].result()
            before = coming
        if before is not None:
            yield before[0], before[1].result()


class InOrder(Generic[Item]):
    """Hands items to another thread, which does `work` on one after the other.

    What goes wrong there is raised where items are handed over, or at the end of the block; nothing more is done then.
    A block that ends with an error leaves what waits undone.
    """

    def __init__(self, work: Callable[[Item], None], most: int) -> None:
        """Items whose sizes add up to `most` may wait or be in work; one always may."""
        self._work = work
        self._most = most
        self._waiting: deque[tuple[Item, int]] = deque()
        self._size = 0  # of all that wait or are in work
        self._over = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def add(self, item: Item, size: int) -> None:
        """Hand over an item, as soon as there is room for it."""
        self._wait(lambda: self._size == 0 or self._size + size <= self._most)
        with self._changed:
            self._waiting.append((item, size))
            self._size += size
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not self._changed.wait_for(lambda: self._error is not None or ready(), _SECONDS):
                pass
            if self._error is not None:
                raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._over)
                if not self._waiting:
                    return
                item, size = self._waiting.popleft()
            try:
                self._work(item)
            except BaseException as error:  # raised again where somebody can tell the user
                with self._changed:
                    self._error = error
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            del item  # not kept while the next one is waited for
            with self._changed:
                self._size -= size
                self._changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._wait(lambda: self._size == 0)
        finally:
            with self._changed:
                self._waiting.clear()
                self._over = True
                self._changed.notify_all()
            self._thread.join()  # what is being written is finished
