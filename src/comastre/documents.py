"""Text and JSON that others may have written: whatever a file holds, it is read, or one reason says why not."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

DEEPEST = 100
"""Levels of a document; nothing that we write has ten, and what goes deeper would end in the interpreter's limits."""


class Unreadable(ValueError):  # noqa: N818 (it reads as what is wrong: raise Unreadable)
    """Why a file's content cannot be used, for a sentence that names the file."""


def require_regular(path: Path) -> None:
    """Refuse what is no file: opening a named pipe would wait for ever, and a device has no end."""
    kind = path.stat().st_mode
    if stat.S_ISREG(kind):
        return
    what = "a folder" if stat.S_ISDIR(kind) else "a named pipe" if stat.S_ISFIFO(kind) else "a device or socket"
    raise Unreadable(f"it is {what}, not a file")


def text_of(path: Path) -> str:
    """The text of a file in UTF-8, without the byte-order mark that some editors put before it."""
    require_regular(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"it is not text in UTF-8: {error.reason} at byte {error.start}") from None


def read_json(path: Path, deepest: int | None = DEEPEST) -> Any:
    """The content of a JSON file."""
    return parse_json(text_of(path), deepest)


def parse_json(text: str, deepest: int | None = DEEPEST) -> Any:
    """The content of a JSON text; with `deepest` None its depth is not measured, which large files are spared."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(str(error)) from None
    except ValueError:
        raise Unreadable("it holds a number of thousands of digits") from None
    if deepest is not None and _deeper_than(content, deepest):
        raise Unreadable("it is nested too deeply")
    return content


def json_bytes(content: Any, indent: int | None = 1) -> bytes:
    """A document as it is written: letters of all alphabets stay readable.

    A file's name that is no UTF-8 reaches Python as halves of characters; JSON has an escape for each, so that the name
    comes back as it was.
    """
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return f"{text}\n".encode(errors="backslashreplace")


def is_text(content: Any) -> bool:
    """Whether all of a document can be written in UTF-8: JSON has escapes for halves of characters, too."""
    try:
        json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _deeper_than(content: Any, levels: int) -> bool:
    """Whether lists and objects lie in one another more than `levels` times."""
    below = [content]
    for _ in range(levels + 1):
        parts = (each.values() if isinstance(each, dict) else each for each in below if isinstance(each, dict | list))
        below = [each for part in parts for each in part if isinstance(each, dict | list)]
        if not below:
            return False
    return True
