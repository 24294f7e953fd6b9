"""Which query's mask a pixel belongs to: the panoptic-style merge of Mask2Former (docs/specification.md, Merge)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from comastre.segmentation import Segment, Size


class MergeRule(Protocol):
    """The fields of a method's section `inference` that decide."""

    @property
    def merge(self) -> str:
        """`mask2former`, `strict` (ours), or `transformers`, whose post-processing has a rule of its own."""

    @property
    def overlap(self) -> float:
        """A segment must keep this share of its own mask."""

    @property
    def mask_threshold(self) -> float:
        """Mask probability from which on a pixel is in a mask."""


@dataclass(frozen=True)
class Merged:
    """What the pixels of one image (H, W) are."""

    label_map: Tensor
    segment_map: Tensor
    segments: tuple[Segment, ...] = ()

    @classmethod
    def nothing(cls, size: Size, device: torch.device) -> Merged:
        """No segment at all."""
        empty = torch.zeros(size, dtype=torch.long, device=device)
        return cls(empty, empty.clone())


def merge_masks(
    masks: Tensor, scores: Tensor, classes: Tensor, queries: Tensor, rule: MergeRule, stuff: Collection[int] = ()
) -> Merged:
    """Give each pixel to the mask with the largest score x probability, of equal ones to the first.

    masks (K, H, W) in 0..1, at least one, their scores, classes and queries (K,). A mask gets the pixels that it wins
    inside itself, if what it has kept is at least `overlap` of it. Segments of a class in `stuff` are one.
    """
    scored = masks * scores[:, None, None]
    winner = scored.max(dim=0).indices  # (H, W); argmax gives the same, several times slower
    # transformers looks at scored masks, and gives a segment all that it wins.
    theirs = rule.merge == "transformers"
    inside = (scored if theirs else masks) >= rule.mask_threshold  # (K, H, W)
    # The pixel lies in its winner's own mask.
    mine = torch.ones_like(winner, dtype=torch.bool) if theirs else inside.gather(0, winner[None]).squeeze(0)  # (H, W)
    counts = Counts(
        torch.bincount(winner[mine], minlength=len(masks)),
        inside.flatten(1).sum(dim=1),
        torch.bincount(winner.flatten(), minlength=len(masks)),
    )
    decision = decide(counts, scores, classes, queries, rule, stuff)
    segment_map = torch.where(mine, decision.numbers[winner], 0)
    label_map = torch.where(segment_map > 0, classes[winner] + 1, 0)
    return Merged(label_map, segment_map, decision.segments(segment_map))


@dataclass(frozen=True, eq=False)
class Counts:
    """Pixels of each of K masks, (K,) long."""

    areas: Tensor
    """That it wins and may keep: inside itself."""
    whole: Tensor
    """Inside itself."""
    won: Tensor
    """That it wins, inside itself or not."""


@dataclass(frozen=True, eq=False)
class Decision:
    """Which masks become segments."""

    numbers: Tensor
    """(K,) long: the number of a mask's segment, 0 where it has none."""
    rows: tuple[tuple[int, int, int, float, int], ...]
    """Number, query, class, score and area of every mask that has one."""

    def segments(self, segment_map: Tensor) -> tuple[Segment, ...]:
        """Of a map (H, W) with these numbers."""
        found: dict[int, Segment] = {}
        for number, query, index, score, area in self.rows:
            if number in found:  # more of the same stuff: the surest query stands for it
                before = found[number]
                area += before.area
                query, score = (query, score) if score > before.score else (before.query or 0, before.score)
            found[number] = Segment(index + 1, score, area, number, segment_map, query)
        return tuple(found.values())


def decide(
    counts: Counts, scores: Tensor, classes: Tensor, queries: Tensor, rule: MergeRule, stuff: Collection[int] = ()
) -> Decision:
    """Number the masks that keep enough of themselves."""
    # Mask2Former also counts what a mask wins outside itself, so that a share may exceed 1.
    won = counts.areas if rule.merge == "strict" else counts.won
    accepted = (counts.areas > 0) & (counts.whole > 0) & keeps_enough(won, counts.whole, rule)
    columns = (queries[accepted], classes[accepted], scores[accepted], counts.areas[accepted])
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    of_segments = _numbers([index for _, index, _, _ in rows], stuff)
    numbers = torch.zeros_like(counts.areas)
    numbers[accepted] = torch.tensor(of_segments, dtype=torch.long, device=numbers.device)
    return Decision(numbers, tuple((number, *row) for number, row in zip(of_segments, rows, strict=True)))


def keeps_enough(won: Tensor, whole: Tensor, rule: MergeRule) -> Tensor:
    """(K,) bool: whether so many pixels are the share of a mask that it must keep."""
    if rule.merge == "transformers":
        return (won / whole.clamp(min=1)).double() > rule.overlap  # in single precision, as there
    # In Python's double precision, so that 4 of 5 pixels are 0.8 of a mask.
    shares = [area / max(total, 1) for area, total in zip(won.tolist(), whole.tolist(), strict=True)]
    return torch.tensor([share >= rule.overlap for share in shares], device=won.device)


def _numbers(classes: list[int], stuff: Collection[int]) -> list[int]:
    """1, 2, ... for each segment; a stuff class has one number."""
    numbers: list[int] = []
    of_stuff: dict[int, int] = {}
    for index in classes:
        number = of_stuff.get(index, max(numbers, default=0) + 1)
        if index in stuff:
            of_stuff[index] = number
        numbers.append(number)
    return numbers
