"""For the reference: examples in docstrings (`>>>`) are shown as code, though they stand there without a heading."""

from __future__ import annotations

import re
from typing import Any

import griffe

# A block begins with >>> and ends at an empty line, as doctest reads it.
EXAMPLE = re.compile(r"^>>> (?:.+\n?)+", flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Fences every example before the docstring is read as Markdown."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
