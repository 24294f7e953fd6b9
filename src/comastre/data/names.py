"""Class names that people write in more than one way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


def looks_like(name: str) -> str:
    """What is left of a name when case, spaces, underscores and hyphens do not count."""
    return re.sub(r"[\s_\-]+", "", name).casefold()


def twin_of(name: str, known: Iterable[str]) -> str | None:
    """The first other known name that differs from `name` only in what does not count."""
    return next((each for each in known if each != name and looks_like(each) == looks_like(name)), None)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that looks most like `name`, whatever its case; None where none does."""
    plain = {looks_like(each): each for each in reversed(known)}
    found = difflib.get_close_matches(looks_like(name), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
