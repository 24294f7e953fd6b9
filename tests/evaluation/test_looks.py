"""Several looks at an image become one segmentation: a vote on every pixel, and one segment for one object."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.evaluation.looks import NOTHING, combined
from comastre.segmentation import Segment, Segmentation


def look(*rows: tuple[str, int, float]) -> Segmentation:
    """A one-row image of segments: where ('#'), label, score."""
    width = len(rows[0][0])
    segment_map = torch.zeros(1, width, dtype=torch.long)
    labels = torch.zeros(1, width, dtype=torch.long)
    segments = []
    for number, (where, label, score) in enumerate(rows, start=1):
        mine = torch.tensor([[mark == "#" for mark in where]])
        segment_map[mine], labels[mine] = number, label
        segments.append(Segment(label, score, int(mine.sum()), number, segment_map, query=10 + number))
    return Segmentation(labels, segment_map, tuple(segments))


def test_surer_segments_win_and_unsure_ones_need_a_second_look() -> None:
    first = look(("##.....", 1, 0.9), ("...##..", 2, 0.5))
    second = look((".##....", 3, 0.7), ("....##.", 4, 0.8))
    found = combined([first, second])
    # The 1 beats the 3 on the second pixel, and both beat nothing; the 2 alone does not.
    assert found.label_map.tolist() == [[1, 1, 3, 0, 4, 4, 0]]
    assert found.segment_map.tolist() == [[1, 1, 2, 0, 3, 3, 0]]
    assert [(each.label, each.score, each.area, each.number, each.query) for each in found.segments] == [
        (1, 0.9, 2, 1, 11),
        (3, 0.7, 1, 2, None),
        (4, 0.8, 2, 3, None),
    ]
    assert all(each.segment_map is found.segment_map for each in found.segments)


def test_what_both_looks_find_is_one_object_with_what_either_is_sure_of() -> None:
    first, second = look((".###...", 1, 0.5)), look(("..####.", 1, 0.9))
    found = combined([first, second])
    # Where the unsure look stands alone, nothing wins; where both agree, they win together.
    assert found.label_map.tolist() == [[0, 0, 1, 1, 1, 1, 0]]
    assert [(each.label, each.score, each.area, each.query) for each in found.segments] == [(1, 0.9, 4, 11)]
    apart = combined([look(("##.....", 1, 0.9)), look(("....##.", 1, 0.8))])
    assert [(each.area, each.number) for each in apart.segments] == [(2, 1), (2, 2)]


def test_one_look_twice_is_that_look() -> None:
    once = look(("##..", 1, 0.9), ("...#", 2, 0.5))
    twice = combined([once, once])
    assert torch.equal(twice.label_map, once.label_map)
    assert len(twice.segments) == 2 and [each.query for each in twice.segments] == [11, 12]


def slow(looks: list[Segmentation]) -> list[list[int]]:
    """The vote a pixel at a time."""
    height, width = looks[0].label_map.shape
    labels = [[0] * width for _ in range(height)]
    for row in range(height):
        for column in range(width):
            votes: dict[int, float] = {}
            for each in looks:
                number, label = int(each.segment_map[row, column]), int(each.label_map[row, column])
                votes[label] = votes.get(label, 0.0) + (each.segments[number - 1].score if number else NOTHING)
            labels[row][column] = max(votes, key=lambda label: round(votes[label], 5))  # of equals the first
    return labels


def random_look(generator: torch.Generator) -> Segmentation:
    segment_map = torch.randint(0, 4, (4, 5), generator=generator)
    numbers = [number for number in (1, 2, 3) if bool((segment_map == number).any())]
    again: Tensor = torch.zeros_like(segment_map)
    segments = []
    for place, number in enumerate(numbers, start=1):
        again[segment_map == number] = place
        score = int(torch.randint(1, 8, (), generator=generator)) / 8  # equal ones are common
        area = int((segment_map == number).sum())
        segments.append(Segment(int(torch.randint(1, 4, (), generator=generator)), score, area, place, again))
    labels = torch.zeros_like(again)
    for segment in segments:
        labels[again == segment.number] = segment.label
    return Segmentation(labels, again, tuple(segments))


def test_two_and_three_looks_equal_a_loop_over_pixels() -> None:
    generator = torch.Generator().manual_seed(0)
    for case in range(150):
        looks = [random_look(generator) for _ in range(2 + case % 2)]
        found = combined(looks)
        assert found.label_map.tolist() == slow(looks)
        assert [each.area for each in found.segments] == [int(each.mask.sum()) for each in found.segments]
        assert [each.number for each in found.segments] == list(range(1, len(found.segments) + 1))
        assert torch.equal(found.segment_map > 0, found.label_map > 0)
        for each in found.segments:
            assert set(found.label_map[found.segment_map == each.number].tolist()) == {each.label}
