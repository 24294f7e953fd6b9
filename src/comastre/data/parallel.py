"""One function over many items in several processes, with a progress bar; errors of users come back as values."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from comastre.errors import UserError

Answer = TypeVar("Answer")
WORTH_PROCESSES = 256
"""Fewer items are done before processes have started."""
_CHUNK = 32

_function: Callable[[int], object] | None = None  # of a worker process: sent once, not with every item


def each_in_parallel(
    function: Callable[[int], Answer], num: int, title: str, processes: int | None = None
) -> list[Answer | UserError]:
    """function(0), ..., function(num - 1) in order; a UserError is an answer like any other."""
    processes = processes or _available_processors()
    if num < WORTH_PROCESSES or processes == 1:
        return list(_shown((_answer(function, index) for index in range(num)), num, title))
    # Forked workers share what the dataset holds; other platforms send it once to each.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
        with ProcessPoolExecutor(processes, context, _begin, (function,)) as pool:
            chunks = [range(first, min(first + _CHUNK, num)) for first in range(0, num, _CHUNK)]
            parts: Iterator[list[Any]] = pool.map(_work, chunks)
            answers = (answer for part in parts for answer in part)
            try:
                return list(_shown(answers, num, title))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _available_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin(function: Callable[[int], object]) -> None:
    global _function
    _function = function
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers


def _work(indices: range) -> list[object]:
    assert _function is not None
    return [_answer(_function, index) for index in indices]


def _answer(function: Callable[[int], Answer], index: int) -> Answer | UserError:
    try:
        return function(index)
    except UserError as error:
        return error


def _shown(items: Iterator[Answer], num: int, title: str) -> Iterator[Answer]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # A bar in a log file is noise, and one that is over at once is, too.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal or num < 50) as bar:
        yield from bar.track(items, total=num, description=title)
