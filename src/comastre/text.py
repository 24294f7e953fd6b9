"""What the program says on the terminal: plain lines, so that pipes and logs stay readable."""

from __future__ import annotations

import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

Say = Callable[[str], None]
"""Takes one line, as `say` does."""


def say(line: str = "") -> None:
    """One line on standard output."""
    sys.stdout.write(f"{visible(line)}\n")
    sys.stdout.flush()  # in a file, too, it should stand before the progress that follows


def complain(line: str) -> None:
    """One line on standard error, however many lines the text had; where that is closed or full, nobody reads it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"comastre: {visible(' '.join(line.split()))}\n")
        sys.stderr.flush()


def visible(text: str) -> str:
    """The text with control characters written out: names of files and classes must not steer a terminal."""
    steering = {each for each in set(text) - {"\n", "\t"} if unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")}
    for each in steering:
        text = text.replace(each, ascii(each)[1:-1])
    return text


def shortened(names: Sequence[str], most: int = 12) -> str:
    """The names with commas between, the last of many only counted; 'none' where there are none."""
    shown = ", ".join(names[:most]) or "none"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def brief(value: Any, most: int = 60) -> str:
    """A value as it is written in Python, cut where it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # a list in a list in a list, or a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def readable_time(seconds: float) -> str:
    """'2:05' or '1:02:05'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table(rows: Sequence[Sequence[str]], indent: int = 2) -> str:
    """Columns of text; the last column wraps at the terminal's width under its own start."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    start = indent + sum(widths) + 2 * len(widths)
    room = max(30, shutil.get_terminal_size((120, 24)).columns - start)
    lines = []
    for row in rows:
        head = " " * indent + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
        # Paths and commands stay whole, so that they can be copied.
        first, *more = textwrap.wrap(row[-1], room, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{head}{first}".rstrip(), *(" " * start + line for line in more)]
    return "\n".join(lines)
