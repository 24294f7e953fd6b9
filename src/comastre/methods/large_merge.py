"""The merge of `merge.py` for large images: tile after tile, computed only where masks compete or end.

The values of masks at their own small size already tell of most tiles who wins everywhere in them, and that no mask
begins or ends there. Only the others are computed, and of them only the masks that can matter. A pixel gets what
`merge_masks` gives it, but for rounding where two masks are as good as equal or a mask just ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.allocator import hand_back_freed_memory
from comastre.enlarging import AT_ONCE, Enlarged
from comastre.methods.merge import Counts, Decision, Merged, MergeRule, decide, keeps_enough, merge_masks
from comastre.segmentation import Frame, Size, mask_probabilities

_TILE = 128
_NOBODY = -1


@dataclass(frozen=True, eq=False)
class Contest:
    """The masks of one image that compete for its pixels."""

    logits: Tensor
    """(N, h, w) of all queries."""
    queries: Tensor
    """(K,): those that compete, at least one."""
    scores: Tensor
    """(K,)."""
    classes: Tensor
    """(K,)."""
    softmax: bool = False
    """Whether masks are a softmax over all queries, which share each pixel, in place of a sigmoid."""


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of K masks in R x C tiles without computing any, on the host."""

    could_win: Tensor
    """(K, R, C): nobody is surely better everywhere in the tile."""
    surely_in: Tensor
    """(K, R, C): the tile lies inside the mask."""
    maybe_in: Tensor
    """(K, R, C): some of it may."""
    pixels: Tensor
    """(R, C): of each tile."""

    @cached_property
    def ends(self) -> Tensor:
        """(K, R, C): the mask may end in the tile."""
        return self.maybe_in & ~self.surely_in

    @cached_property
    def contested(self) -> Tensor:
        """(R, C): more than one mask could win."""
        return self.could_win.sum(dim=0) > 1


def merge_contest(
    contest: Contest, size: Size, frame: Frame | None, rule: MergeRule, stuff: Collection[int] = ()
) -> Merged:
    """Who has each pixel of an image of this size: all masks at once where they are few and small, else in tiles."""
    needed = len(contest.logits if contest.softmax else contest.queries)
    if needed * size[0] * size[1] > AT_ONCE:
        return merge_large(contest, size, frame, rule, stuff)
    # A softmax is over all queries, also those that do not compete.
    masks = (
        mask_probabilities(contest.logits, size, frame, softmax=True)[contest.queries]
        if contest.softmax
        else mask_probabilities(contest.logits[contest.queries], size, frame)
    )  # (K, H, W)
    return merge_masks(masks, contest.scores, contest.classes, contest.queries, rule, stuff)


def merge_large(
    contest: Contest, size: Size, frame: Frame | None, rule: MergeRule, stuff: Collection[int] = ()
) -> Merged:
    """What `merge_masks` gives for the masks that `mask_probabilities` makes at `size`."""
    hand_back_freed_memory()  # the network's, which labels of millions of pixels do not fit into
    tiles = _Tiles(contest, size, frame, rule)
    known = tiles.known()
    theirs = rule.merge == "transformers"  # it gives a segment all that it wins, inside or not
    could_keep = torch.ones_like(known.contested) if theirs else (known.could_win & known.maybe_in).any(dim=0)
    computed = known.ends.any(dim=0) | (known.contested & could_keep)

    winner = known.could_win.int().argmax(dim=0)  # (R, C): where it is one
    settled = ~computed & ~known.contested
    kept = settled if theirs else settled & known.surely_in.gather(0, winner[None])[0]
    owner = torch.where(kept, winner, _NOBODY)  # (R, C)
    counts = Counts(*(torch.zeros(len(contest.queries), dtype=torch.long) for _ in range(3)))
    counts.areas.index_add_(0, winner[kept], known.pixels[kept])
    counts.whole.add_((known.surely_in * known.pixels).sum(dim=(1, 2)))
    counts.won.index_add_(0, winner[settled], known.pixels[settled])
    owners = {place: tiles.compute(place, known, counts) for place in _places(computed)}
    if rule.merge == "mask2former":
        # Who wins outside all masks matters only where it lets a mask keep enough.
        outside = known.contested & ~computed
        undecided = _undecided(counts, (known.could_win & outside) * known.pixels, rule)
        for place in _places(outside & known.could_win[undecided].any(dim=0)):
            tiles.compute(place, known, counts)
    columns = (contest.scores.cpu(), contest.classes.cpu(), contest.queries.cpu())
    return tiles.painted(decide(counts, *columns, rule, stuff), owner, owners)


def _places(chosen: Tensor) -> list[tuple[int, int]]:
    """Row and column of the tiles that are true in (R, C)."""
    return [(row, column) for row, column in chosen.nonzero().tolist()]


def _undecided(counts: Counts, could_win: Tensor, rule: MergeRule) -> Tensor:
    """(K,) bool: masks that keep enough only if they win more pixels, of which they could win (K, R, C)."""
    more = counts.won + could_win.sum(dim=(1, 2))
    enough = keeps_enough(more, counts.whole, rule) & ~keeps_enough(counts.won, counts.whole, rule)
    return (counts.areas > 0) & (counts.whole > 0) & enough


class _Tiles:
    """The masks of a contest at an image's size, tile by tile."""

    def __init__(self, contest: Contest, size: Size, frame: Frame | None, rule: MergeRule) -> None:
        self._contest = contest
        self._rule = rule
        logits = contest.logits if contest.softmax else contest.logits[contest.queries]
        self._enlarged = Enlarged.of(logits, size, frame, (_TILE, _TILE))

    def known(self) -> _Known:
        """What the bounds of the masks' values say."""
        pixels = self._enlarged.pixels
        if self._contest.softmax:  # bounds of one mask say little: all are computed
            everywhere = torch.ones(len(self._contest.queries), *pixels.shape, dtype=torch.bool)
            return _Known(everywhere, ~everywhere, everywhere, pixels)
        scores = self._contest.scores[:, None, None]
        least, most = (bound.sigmoid() for bound in self._enlarged.bounds())  # (K, R, C)
        least_scored, most_scored = least * scores, most * scores
        could_win = most_scored >= least_scored.amax(dim=0)
        if self._rule.merge == "transformers":  # it looks at scored masks
            least, most = least_scored, most_scored
        threshold = self._rule.mask_threshold
        return _Known(could_win.cpu(), (least >= threshold).cpu(), (most >= threshold).cpu(), pixels)

    def compute(self, place: tuple[int, int], known: _Known, counts: Counts) -> Tensor:
        """Who has the pixels (t, u) of a tile, as an index of a mask or nobody; what is found is counted."""
        ends = known.ends[:, *place]
        chosen = (known.could_win[:, *place] | ends).nonzero().squeeze(1)  # (M,)
        at = chosen.to(self._contest.scores.device)
        if self._contest.softmax:
            masks = self._enlarged.tile(*place).softmax(dim=0)[self._contest.queries]
        else:
            masks = self._enlarged.tile(*place, at).sigmoid()
        scored = masks * self._contest.scores[at, None, None]
        winner = scored.max(dim=0).indices  # (t, u)
        theirs = self._rule.merge == "transformers"
        inside = (scored if theirs else masks) >= self._rule.mask_threshold  # (M, t, u)
        mine = torch.ones_like(winner, dtype=torch.bool) if theirs else inside.gather(0, winner[None])[0]
        owner = torch.where(mine, winner, _NOBODY)
        num = len(chosen)
        counts.areas.index_add_(0, chosen, torch.bincount((owner + 1).flatten(), minlength=num + 1)[1:].cpu())
        counts.won.index_add_(0, chosen, torch.bincount(winner.flatten(), minlength=num).cpu())
        # What lies inside a mask altogether has been counted.
        counts.whole.index_add_(0, chosen, inside.flatten(1).sum(dim=1).cpu() * ends[chosen])
        return torch.where(mine, at[winner], _NOBODY).to(torch.int16)

    def painted(self, decision: Decision, owner: Tensor, owners: dict[tuple[int, int], Tensor]) -> Merged:
        """The maps, from the owners of whole tiles (R, C) and of the pixels of others."""
        device, size = self._contest.logits.device, self._enlarged.size
        segment_map, label_map = (torch.empty(size, dtype=torch.long, device=device) for _ in range(2))
        numbers, classes = (F.pad(each, (1, 0)) for each in (decision.numbers, self._contest.classes.cpu() + 1))
        labels = torch.where(numbers > 0, classes, 0)  # (1 + K,), as the numbers: nobody first
        of_tiles = list(zip(numbers[owner + 1].flatten().tolist(), labels[owner + 1].flatten().tolist(), strict=True))
        numbers, labels = numbers.to(device), labels.to(device)
        for index, (number, label) in enumerate(of_tiles):
            row_and_column = divmod(index, owner.shape[1])
            place, pixels = self._enlarged.place(*row_and_column), owners.get(row_and_column)
            if pixels is None:
                segment_map[place], label_map[place] = number, label
            else:
                segment_map[place], label_map[place] = numbers[pixels.long() + 1], labels[pixels.long() + 1]
        return Merged(label_map, segment_map, decision.segments(segment_map))
