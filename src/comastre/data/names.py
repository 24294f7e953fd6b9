"""Class names as people write them: in more than one way, twice, or too many."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from comastre.data.dataset import IGNORE
from comastre.errors import UserError


def refuse_unlearnable(file: Path, names: Sequence[str]) -> None:
    """Say what is wrong with the list of names in a file, where classes 1..C cannot be made of it."""
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise UserError(f"{file} names the class {twice[0]} twice: give every class a name of its own.")
    if not 1 <= len(names) < IGNORE:
        raise UserError(f"{file} names {len(names)} classes but 1 to {IGNORE - 1} can be learned.")


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
