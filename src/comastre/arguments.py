"""What callers give from Python, checked at the door: one sentence there, not an error from deep inside."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from comastre.errors import UserError
from comastre.text import brief


def whole_number(name: str, given: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number from `least` to `most`; `name` is how the caller knows it."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        raise UserError(f"{name} is {brief(given)} but must be a whole number, {least} or more")
    number = int(given)
    if number < least:
        raise UserError(f"{name} is {brief(number)} but must be {least} or more")
    if most is not None and number > most:
        raise UserError(f"{name} is {brief(number)}, which cannot be meant: give {most:,} or less")
    return number


def positive_number(name: str, given: Any) -> float:
    """A finite number above 0."""
    if isinstance(given, bool) or not isinstance(given, Real):
        raise UserError(f"{name} is {brief(given)} but must be a number")
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise UserError(f"{name} is {brief(given)} but must be more than 0, and have an end")
    return number


def texts(name: str, given: Any) -> tuple[str, ...]:
    """Several texts; a single one is a list of one, not of its letters."""
    if isinstance(given, str):
        return (given,)
    try:
        found = tuple(given)
    except TypeError:
        raise UserError(f"{name} is {brief(given)} but must be a list of texts") from None
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise UserError(f"{name} holds {brief(wrong[0])} but must be a list of texts")
    return found
