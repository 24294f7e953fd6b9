"""Class names that people write in more than one way."""

from __future__ import annotations

import re


def looks_like(name: str) -> str:
    """What is left of a name when case, spaces, underscores and hyphens do not count."""
    return re.sub(r"[\s_\-]+", "", name).casefold()
