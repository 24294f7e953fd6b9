"""The pixels of one object from its polygons or run lengths, drawn by pycocotools.

It is C that trusts its numbers: a corner at 1e18, or runs that are longer than the image, take all memory or end the
process. So all numbers are looked at here first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class BadOutline(ValueError):  # noqa: N818 (it reads as what is wrong: raise BadOutline)
    """What is wrong with a segmentation, as the rest of a sentence about its annotation."""


def draw(segmentation: Any, height: int, width: int) -> np.ndarray:
    """The pixels (H, W) bool of COCO's field `segmentation`: a list of polygons, or run lengths."""
    if isinstance(segmentation, dict) and "counts" in segmentation and "size" in segmentation:
        runs: Any = _checked_runs(segmentation, height, width)
    elif isinstance(segmentation, list) and all(isinstance(polygon, list) for polygon in segmentation):
        polygons = [_checked_polygon(polygon, height, width) for polygon in segmentation if len(polygon) >= 6]
        if not polygons:
            return np.zeros((height, width), dtype=bool)
        runs = polygons
    else:
        raise BadOutline("has no segmentation (a box alone is not enough): add one, or remove the annotation.")
    return _drawn(runs, height, width)


def _drawn(runs: Any, height: int, width: int) -> np.ndarray:
    from pycocotools import mask as run_length

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # between pycocotools and numpy; not about the data
            packed = run_length.frPyObjects(runs, height, width)
            return run_length.decode(run_length.merge(packed) if isinstance(runs, list) else packed).astype(bool)
    except Exception as error:  # pycocotools raises bare exceptions of many kinds
        raise BadOutline(f"has a segmentation that cannot be read ({error}).") from None


def _checked_polygon(polygon: Sequence[Any], height: int, width: int) -> list[float]:
    """The polygon x, y, x, y, ... whose corners lie near the image and whose outline fits into it."""
    if len(polygon) % 2:
        raise BadOutline(f"has a polygon of {len(polygon)} numbers, but corners are pairs: correct it.")
    try:
        corners = np.asarray(polygon, dtype=np.float64)  # (2 K,)
    except (ValueError, TypeError, OverflowError):
        corners = np.full(2, np.nan)
    if corners.ndim != 1 or not np.isfinite(corners).all() or any(isinstance(number, str) for number in polygon):
        raise BadOutline("has a segmentation that cannot be read (a corner of a polygon is no number): correct it.")
    # Tools round corners to just outside; what lies farther away than the image is wide belongs to another image.
    x, y = corners[0::2], corners[1::2]
    for values, side, axis in ((x, width, "x"), (y, height, "y")):
        if values.min() < -side or values.max() > 2 * side:
            wrong = values.min() if values.min() < -side else values.max()
            raise BadOutline(
                f"has a corner at {axis} = {wrong:g}, far outside the image of {width} x {height}: correct it."
            )
    # No outline is longer than the edges of all pixels; one that crosses the image to and fro would take all memory.
    length = np.abs(np.diff(x)).sum() + np.abs(np.diff(y)).sum()
    if length > 4 * (height + 2) * (width + 2):
        raise BadOutline(f"has an outline of {length:,.0f} pixels in an image of {width} x {height}: correct it.")
    return [float(number) for number in corners]


def _checked_runs(segmentation: Mapping[str, Any], height: int, width: int) -> dict[str, Any]:
    """Run lengths as a list of whole numbers that cover the image."""
    size, counts = segmentation["size"], segmentation["counts"]
    if not isinstance(size, list) or len(size) != 2 or not all(type(side) is int for side in size):
        raise BadOutline(f"has a mask whose size is {str(size)[:40]} but must be [height, width]: correct it.")
    if size != [height, width]:
        raise BadOutline(
            f"has a mask of {size[1]} x {size[0]} but the image is {width} x {height}: make them the same size."
        )
    if isinstance(counts, str):
        runs = unpacked(counts)
    elif isinstance(counts, list) and all(type(run) is int and 0 <= run <= height * width for run in counts):
        runs = counts
    else:
        raise BadOutline("has run lengths that are no whole numbers from 0 on: correct them.")
    if sum(runs) != height * width or (runs and min(runs) < 0):
        raise BadOutline(f"has run lengths that do not cover its {height * width:,} pixels: correct them.")
    return {"size": size, "counts": runs}


def unpacked(text: str) -> list[int]:
    """The run lengths of COCO's compressed text.

    Characters from 48 on hold 5 bits each, the lowest first, and a sixth that says that more follow; the last one's
    fifth bit is the sign. From the fourth number on it is the difference to the one before the last.
    """
    try:
        codes = np.frombuffer(text.encode("ascii"), dtype=np.uint8).astype(np.int64) - 48  # (K,)
    except UnicodeEncodeError:
        codes = np.array([-1])
    if not codes.size:
        return []
    last = (codes & 32) == 0
    starts = np.flatnonzero(np.concatenate([[True], last[:-1]]))
    lengths = np.diff(np.append(starts, codes.size))
    if codes.min() < 0 or codes.max() > 63 or not last[-1] or lengths.max() > 7:
        raise BadOutline("has run lengths in a text that is not COCO's: correct it.")
    place = np.arange(codes.size) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((codes & 31) << (5 * place), starts)
    negative = codes[last] & 16 > 0
    numbers = np.where(negative, numbers - (1 << (5 * lengths)), numbers)
    for parity in (1, 2):  # numbers 3, 5, 7, ... add up on number 1, and 4, 6, 8, ... on number 2
        numbers[parity::2] = np.cumsum(numbers[parity::2])
    return [int(number) for number in numbers]
