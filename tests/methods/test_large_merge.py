"""The merge tile by tile decides as the merge of whole masks does, and computes little of large images."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from comastre.enlarging import Enlarged, strips
from comastre.methods import large_merge
from comastre.methods.large_merge import Contest, merge_contest, merge_large
from comastre.methods.mask2former.config import QueryInferenceConfig
from comastre.methods.merge import Merged, merge_masks
from comastre.segmentation import Frame, Size, mask_probabilities

Rule = Literal["mask2former", "strict", "transformers"]


def blobs(generator: torch.Generator, number: int, height: int, width: int, sharp: float) -> Tensor:
    """Mask logits (N, h, w) of smooth regions that overlap; in float64, so that rounding decides nothing."""
    coarse = torch.randn(1, number, 4, 4, generator=generator, dtype=torch.double)
    return sharp * F.interpolate(coarse, size=(height, width), mode="bicubic", align_corners=False)[0]


def whole(contest: Contest, size: Size, frame: Frame | None, rule: QueryInferenceConfig, stuff: set[int]) -> Merged:
    """All masks at full size, at once."""
    masks = mask_probabilities(contest.logits, size, frame, contest.softmax)[contest.queries]
    return merge_masks(masks, contest.scores, contest.classes, contest.queries, rule, stuff)


def assert_same(one: Merged, other: Merged) -> None:
    assert torch.equal(one.label_map, other.label_map) and torch.equal(one.segment_map, other.segment_map)
    facts = [
        [(each.number, each.label, each.score, each.area, each.query) for each in found.segments]
        for found in (one, other)
    ]
    assert facts[0] == facts[1]
    assert all(each.segment_map is one.segment_map for each in one.segments)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 9),
    source=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    cut=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    tile=st.sampled_from([4, 9, 16, 100]),
    sharp=st.sampled_from([0.5, 4.0, 40.0]),
    merge=st.sampled_from(["mask2former", "strict", "transformers"]),
    overlap=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    softmax=st.booleans(),
    framed=st.booleans(),
)
def test_tiles_equal_whole_masks(
    seed: int,
    number: int,
    source: Size,
    size: Size,
    cut: Size,
    tile: int,
    sharp: float,
    merge: Rule,
    overlap: float,
    softmax: bool,
    framed: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = blobs(generator, number, *source, sharp)
    kept = torch.rand(number, generator=generator) < 0.7
    kept[int(torch.randint(number, (), generator=generator))] = True
    queries = kept.nonzero().squeeze(1)
    scores = 0.5 + 0.5 * torch.rand(len(queries), generator=generator, dtype=torch.double)
    classes = torch.randint(0, 3, (len(queries),), generator=generator)
    frame = Frame((4 * source[0], 4 * source[1]), (4 * source[0] - cut[0], 4 * source[1] - cut[1])) if framed else None
    rule = QueryInferenceConfig(merge=merge, overlap=overlap, mask_threshold=0.4)
    contest = Contest(logits, queries, scores, classes, softmax)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_merge, "_TILE", tile)
        found = merge_large(contest, size, frame, rule, {1})
    assert_same(found, whole(contest, size, frame, rule, {1}))


def test_what_is_won_outside_decides_where_it_must() -> None:
    # The first mask loses most of itself, and is the likelier of two unlikely ones far from both.
    logits = torch.full((2, 1, 40), -3.0, dtype=torch.double)
    logits[0, 0, :6], logits[1, 0, 2:8], logits[0, 0, 12:] = 6.0, 9.0, -2.9
    contest = Contest(logits, torch.arange(2), torch.tensor([0.9, 0.95]).double(), torch.arange(2))
    for merge, labels in (("mask2former", [1, 1, 2, 2]), ("strict", [0, 0, 2, 2])):
        rule = QueryInferenceConfig(merge=merge, overlap=0.8)  # type: ignore[arg-type]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(large_merge, "_TILE", 4)
            found = merge_large(contest, (1, 40), None, rule)
        assert found.label_map[0, :4].tolist() == labels
        assert_same(found, whole(contest, (1, 40), None, rule, set()))


def test_little_of_a_large_image_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.full((8, 64, 96), -8.0)
    logits[3, 10:30, 10:40], logits[7, 40:60, 50:90] = 8.0, 8.0
    contest = Contest(logits, torch.arange(8), torch.linspace(0.5, 0.9, 8), torch.arange(8))
    asked = []
    tile = Enlarged.tile

    def watched(self: Enlarged, row: int, column: int, chosen: Tensor | None = None) -> Tensor:
        found = tile(self, row, column, chosen)
        asked.append(found.numel())
        return found

    monkeypatch.setattr(Enlarged, "tile", watched)
    found = merge_contest(contest, (1200, 1800), Frame((256, 384), (250, 384)), QueryInferenceConfig())
    assert [each.query for each in found.segments] == [3, 7]
    assert 0 < sum(asked) < 0.1 * 8 * 1200 * 1800
    whole_masks = whole(contest, (1200, 1800), Frame((256, 384), (250, 384)), QueryInferenceConfig(), set())
    assert (found.label_map != whole_masks.label_map).float().mean() < 1e-5  # in float32 rounding may move a pixel


@pytest.mark.parametrize("frame", [None, Frame((40, 48), (33, 48)), Frame((10, 12), (10, 9))])
@pytest.mark.parametrize("size", [(10, 12), (33, 48), (7, 100)])
def test_parts_of_an_enlarged_map_are_those_of_the_whole(frame: Frame | None, size: Size) -> None:
    maps = torch.randn(3, 10, 12, generator=torch.Generator().manual_seed(0))
    expected = mask_probabilities(maps, size, frame).logit()
    enlarged = Enlarged.of(maps, size, frame, (4, 7))
    low, high = enlarged.bounds()
    covered = torch.zeros(size)
    for row in range(len(enlarged.rows)):
        for column in range(len(enlarged.columns)):
            place, part = enlarged.place(row, column), enlarged.tile(row, column)
            torch.testing.assert_close(part, expected[:, *place], atol=1e-5, rtol=1e-4)
            assert (part >= low[:, row, column, None, None]).all() and (part <= high[:, row, column, None, None]).all()
            assert torch.equal(enlarged.tile(row, column, torch.tensor([2])), part[2:])
            covered[place] += 1
            assert enlarged.pixels[row, column] == part[0].numel()
    assert (covered == 1).all()
    parts = list(strips(maps, size, frame, values=3 * size[1] * 2))
    assert all(part.shape[1] <= 2 for _, part in parts)
    torch.testing.assert_close(torch.cat([part for _, part in parts], dim=1), expected, atol=1e-5, rtol=1e-4)
