"""What callers give from Python, checked at the door: one sentence there, not an error from deep inside."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from comastre.errors import UserError
from comastre.text import brief


def whole_number(name: str, given: Any, least: int = 1, most: int | None = None) -> int:
    """A whole number from `least` to `most`; `name` is how the caller knows it."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise UserError(f"{name} is {brief(given)} but must be a whole number, {least} or more")
    if given < least:
        raise UserError(f"{name} is {given} but must be {least} or more")
    if most is not None and given > most:
        raise UserError(f"{name} is {brief(int(given))}, which cannot be meant: give {most:,} or less")
    return int(given)


def positive_number(name: str, given: Any) -> float:
    """A finite number above 0."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.integer | np.floating):
        raise UserError(f"{name} is {brief(given)} but must be a number")
    if not 0 < given < math.inf:
        raise UserError(f"{name} is {given:g} but must be more than 0")
    return float(given)


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
