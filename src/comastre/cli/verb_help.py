"""How `--help` of a verb reads: tyro's, with paragraphs that end where the screen does and without empty defaults."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_type_hints

import tyro

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_TITLES, _FRAME = ("positional arguments", "options"), "╭─╮│-| "
"""Of the frames, and what they are drawn with, with and without UTF-8."""


def readable(verb: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, as tyro is to read it: with the options and the words of `verb`, of which it tells what is chosen."""
    hints = get_type_hints(verb, include_extras=True)
    parameters = []
    for name, parameter in inspect.signature(verb).parameters.items():
        annotation = hints[name]
        if parameter.default is None or parameter.default is False:  # says no more than that nothing was given
            annotation = Annotated[annotation, tyro.conf.arg(help_behavior_hint="")]
        parameters.append(parameter.replace(annotation=annotation))
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # A docstring whose arguments have a line each: tyro would break theirs where the source does.
    call.__doc__ = re.sub(r"\n {8}(?=\S)", " ", inspect.getdoc(verb) or "")
    return call


@contextlib.contextmanager
def on_this_screen() -> Iterator[None]:
    """What is printed comes out with the paragraphs before its frames broken where the screen ends."""
    screen, held = sys.stdout, _Held()
    try:
        with contextlib.redirect_stdout(held):
            yield
    finally:
        screen.write(laid_out(held.getvalue(), shutil.get_terminal_size().columns))


def laid_out(text: str, width: int) -> str:
    """Help of tyro's: usage, paragraphs and frames. Lines that an empty hint has left in a frame are dropped."""
    lines = text.splitlines()
    seen = [_COLOURS.sub("", line).strip(_FRAME) for line in lines]
    opens = next((place for place, words in enumerate(seen) if words in _TITLES), None)
    if opens is None:
        return text
    usage, *paragraphs = "\n".join(lines[:opens]).strip("\n").split("\n\n")
    told = [textwrap.fill(each, width, break_long_words=False, break_on_hyphens=False) for each in paragraphs]
    framed = (line for line, words in zip(lines[opens:], seen[opens:], strict=True) if words or _draws(line))
    return "\n\n".join([usage, *told, "\n".join(framed)]) + "\n"


def _draws(line: str) -> bool:
    """Whether a line without words is an edge of a frame."""
    return "──" in line or "--" in line


class _Held(io.StringIO):
    """Looks like the screen to whoever asks whether there may be colours and frames."""

    encoding = property(lambda self: sys.__stdout__.encoding if sys.__stdout__ else "utf-8")

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()
