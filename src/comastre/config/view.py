"""The size at which a model sees an image: a property of a run and of the model that it makes, whatever its method."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import field_validator

from comastre.arguments import whole_number
from comastre.config.sections import PositiveInt
from comastre.errors import UserError
from comastre.section import Section
from comastre.text import brief

CROP: Final = "crop"
NATIVE: Final = "native"
LARGEST = 16_384
"""Longest side in pixels that anybody can mean."""
MULTIPLE = 32
"""Images are padded to a multiple of this, the coarsest stride of the backbones."""


class ViewConfig(Section):
    short_side: Literal["crop", "native"] | tuple[PositiveInt, ...] = "crop"
    """Short side of the image that the model sees: as the training crop, the image's own, pixels, or several sizes."""
    max_side: PositiveInt | None = 2048
    """Limit of its long side, for which the short side becomes shorter."""

    @field_validator("short_side", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        try:
            return read_short_side(given)
        except UserError as error:
            raise ValueError(str(error)) from None

    def at(self, crop: int) -> ViewConfig:
        """The same in numbers, for a model that was trained on crops of this size."""
        return self.model_copy(update={"short_side": (crop,)}) if self.short_side == CROP else self

    def changed(self, short_side: int | str | Sequence[int] | None = None, max_side: int | None = None) -> ViewConfig:
        """With what a user asks for; None leaves a field as it is."""
        wanted = self.short_side if short_side is None else read_short_side(short_side)
        if max_side is not None:
            whole_number("max_side", max_side, most=LARGEST)
        return ViewConfig(short_side=wanted, max_side=max_side or self.max_side)

    def scaled(self, factor: float) -> ViewConfig:
        """Sizes in pixels times `factor`."""
        if isinstance(self.short_side, str):
            return self
        return self.model_copy(update={"short_side": tuple(max(1, round(factor * side)) for side in self.short_side)})

    @property
    def sides(self) -> tuple[int | None, ...]:
        """The short side of every look at an image; None where it keeps its own."""
        if self.short_side == CROP:
            raise ValueError("a view of the training crop has no size before `at` gave it one")
        return (None,) if isinstance(self.short_side, str) else self.short_side

    def seen_sizes(self, height: int, width: int) -> tuple[tuple[int, int], ...]:
        """Height and width of an image in every look, rounded as Mask2Former does."""
        return tuple(_resized(height, width, side, self.max_side) for side in self.sides)


def read_short_side(given: Any) -> Literal["crop", "native"] | tuple[int, ...]:
    """A number, several, or their text; refused in one sentence."""
    if given in (CROP, NATIVE):
        return given
    sides = given
    if isinstance(given, str):
        text = given.strip().removeprefix("[").removesuffix("]")
        sides = [int(part) if re.fullmatch(r"\s*[0-9]{1,6}\s*", part) else None for part in text.split(",")]
    elif not isinstance(given, Sequence):
        sides = [given]
    if not sides or not all(type(side) is int and 0 < side <= LARGEST for side in sides):
        raise UserError(
            f"short_side is {brief(given)} but must be a number of pixels such as 512, several as 224,320, or native"
        )
    return tuple(sides)


def padded_size(height: int, width: int) -> tuple[int, int]:
    """The next multiple of 32 of both sides."""
    return -(-height // MULTIPLE) * MULTIPLE, -(-width // MULTIPLE) * MULTIPLE


def padded_sizes(view: ViewConfig, height: int, width: int) -> tuple[tuple[int, int], ...]:
    """What the model sees of an image in every look, padded."""
    return tuple(padded_size(*size) for size in view.seen_sizes(height, width))


def _resized(height: int, width: int, short_side: int | None, max_side: int | None) -> tuple[int, int]:
    factor = 1.0 if short_side is None else short_side / min(height, width)
    if max_side is not None:
        factor = min(factor, max_side / max(height, width))
    if factor == 1.0:
        return height, width
    return max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))


UNWRITTEN = ViewConfig(short_side=NATIVE, max_side=None)
"""How models saw images before bundles said it."""
