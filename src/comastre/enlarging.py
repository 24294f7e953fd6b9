"""Maps enlarged to the size of an image part by part, so that a photograph of any size needs little memory.

A value of an enlarged map is a weighted mean of few values of the map. So a part can be computed alone, and is known to
lie between the smallest and the largest of those values without being computed at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.segmentation import Frame, Size, enlarge

AT_ONCE = 16_000_000
"""Values of enlarged maps; up to so many are computed at once."""
_ROUNDING = 1e-5
"""By how much rounding may carry a mean beyond the values that it is of, relative to them; some hundred times less."""


@dataclass(frozen=True, eq=False)
class Band:
    """Neighbouring rows, or columns, of the result as weighted sums of those of the maps."""

    place: slice
    """In the result."""
    source: slice
    """In the maps."""
    weights: Tensor
    """(n, m): of m rows of the maps for n of the result."""

    @property
    def length(self) -> int:
        return int(self.place.stop - self.place.start)


@dataclass(frozen=True, eq=False)
class Enlarged:
    """Maps (N, h, w) at another size, in a grid of tiles that are computed when they are asked for.

    They are enlarged as `enlarge` does it, to the same values but for rounding.
    """

    maps: Tensor
    size: Size
    rows: tuple[Band, ...]
    columns: tuple[Band, ...]

    @classmethod
    def of(cls, maps: Tensor, size: Size, frame: Frame | None, tile: Size) -> Enlarged:
        """In tiles of at most the size `tile`."""
        rows, columns = (
            tuple(
                _bands(
                    maps.shape[1 + axis],
                    (maps.shape[1 + axis],) * 2 if frame is None else (frame.padded[axis], frame.content[axis]),
                    size[axis],
                    tile[axis],
                    maps,
                )
            )
            for axis in (0, 1)
        )
        return cls(maps, size, rows, columns)

    @property
    def pixels(self) -> Tensor:
        """(R, C) long, on the host: how many each tile has."""
        heights, widths = (torch.tensor([band.length for band in bands]) for bands in (self.rows, self.columns))
        return heights[:, None] * widths

    def place(self, row: int, column: int) -> tuple[slice, slice]:
        """Where a tile lies in the result."""
        return self.rows[row].place, self.columns[column].place

    def bounds(self) -> tuple[Tensor, Tensor]:
        """(N, R, C) each: values that no value of a tile is below or above."""
        smallest, largest = (
            torch.stack([least(maps[:, :, band.source], 2) for band in self.columns], dim=2)
            for least, maps in (
                (torch.amin, torch.stack([self.maps[:, band.source].amin(1) for band in self.rows], dim=1)),
                (torch.amax, torch.stack([self.maps[:, band.source].amax(1) for band in self.rows], dim=1)),
            )
        )
        margin = _ROUNDING * torch.maximum(smallest.abs(), largest.abs())
        return smallest - margin, largest + margin

    def tile(self, row: int, column: int, chosen: Tensor | None = None) -> Tensor:
        """(K, t, u): the tile of the maps `chosen` (K,), or of all."""
        rows, columns = self.rows[row], self.columns[column]
        maps = self.maps[:, rows.source, columns.source]
        maps = maps if chosen is None else maps[chosen]
        with torch.autocast(maps.device.type, enabled=False):  # products would fall to half precision
            # A product for each map, not one of all their rows: its rounding would depend on which maps are chosen.
            across = columns.weights.T.expand(len(maps), -1, -1)
            return (rows.weights @ maps).bmm(across)


def strips(maps: Tensor, size: Size, frame: Frame | None, values: int = AT_ONCE) -> Iterator[tuple[slice, Tensor]]:
    """All maps (N, h, w) at another size, some rows (N, t, W) at a time: about `values` numbers at once."""
    if len(maps) * size[0] * size[1] <= values:
        yield slice(0, size[0]), enlarge(maps, size, frame)
        return
    height = max(1, values // max(1, len(maps) * size[1]))
    enlarged = Enlarged.of(maps, size, frame, (height, size[1]))
    for row, band in enumerate(enlarged.rows):
        yield band.place, enlarged.tile(row, 0)


def _bands(source: int, frame: tuple[int, int], result: int, length: int, like: Tensor) -> Iterator[Band]:
    """Every `length` rows of a result that comes from `source` rows by way of a padded size that is cut to content."""
    padded, content = frame
    first, second = _weights(source, padded, like), _weights(content, result, like)
    for start in range(0, result, length):
        place = slice(start, min(start + length, result))
        between, outer = _rows_of(second, place, like)
        used, inner = _rows_of(first, between, like)
        yield Band(place, used, (outer @ inner).to(like.device))


def _weights(source: int, result: int, like: Tensor) -> Tensor | None:
    """As `linear_weights`; None where nothing is resized."""
    return None if source == result else linear_weights(source, result, like.dtype)


def linear_weights(source: int, result: int, dtype: torch.dtype) -> Tensor:
    """(result, source) on the host: what linear interpolation takes of each row, as PyTorch's own says."""
    one_each = torch.eye(source, dtype=dtype)
    return F.interpolate(one_each[None], size=result, mode="linear", align_corners=False)[0].T


def _rows_of(weights: Tensor | None, place: slice, like: Tensor) -> tuple[slice, Tensor]:
    """Some rows of weights without the columns of zeros around: those that are left, and the weights (n, m)."""
    if weights is None:
        return place, torch.eye(place.stop - place.start, dtype=like.dtype)
    columns = weights[place].any(dim=0).nonzero()
    used = slice(int(columns[0]), int(columns[-1]) + 1)
    return used, weights[place, used]
