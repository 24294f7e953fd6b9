"""Several looks at an image become one segmentation: the surest segments first."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.evaluation.looks import combined
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


def test_what_only_one_look_finds_stays_and_what_both_find_is_the_surers() -> None:
    first = look(("##....", 1, 0.9), ("...##.", 2, 0.5))
    second = look((".##...", 3, 0.6), ("...###", 4, 0.7))
    found = combined([first, second])
    # The 3 keeps half of itself, the 2 nothing.
    assert found.label_map.tolist() == [[1, 1, 3, 4, 4, 4]]
    assert found.segment_map.tolist() == [[1, 1, 3, 2, 2, 2]]
    assert [(each.label, each.score, each.area, each.number, each.query) for each in found.segments] == [
        (1, 0.9, 2, 1, 11),
        (4, 0.7, 3, 2, None),
        (3, 0.6, 1, 3, None),
    ]
    assert all(each.segment_map is found.segment_map for each in found.segments)


def test_one_look_twice_is_that_look() -> None:
    once = look(("##..", 1, 0.9), ("...#", 2, 0.5))
    twice = combined([once, once])
    assert torch.equal(twice.label_map, once.label_map)
    assert len(twice.segments) == 2 and [each.query for each in twice.segments] == [11, 12]


def slow(looks: list[Segmentation]) -> list[list[int]]:
    """The rule a pixel at a time."""
    segments = [(segment, place) for place, each in enumerate(looks) for segment in each.segments]
    segments.sort(key=lambda pair: (-pair[0].score, pair[1], pair[0].number))
    height, width = looks[0].label_map.shape
    labels = [[0] * width for _ in range(height)]
    for segment, _ in segments:
        inside = [
            (row, column)
            for row in range(height)
            for column in range(width)
            if segment.segment_map[row, column] == segment.number
        ]
        free = [(row, column) for row, column in inside if labels[row][column] == 0]
        if free and 2 * len(free) >= len(inside):
            for row, column in free:
                labels[row][column] = segment.label
    return labels


def random_look(generator: torch.Generator) -> Segmentation:
    segment_map = torch.randint(0, 4, (4, 5), generator=generator)
    numbers = [number for number in (1, 2, 3) if bool((segment_map == number).any())]
    again: Tensor = torch.zeros_like(segment_map)
    segments = []
    for place, number in enumerate(numbers, start=1):
        again[segment_map == number] = place
        score = int(torch.randint(1, 5, (), generator=generator)) / 5  # equal ones are common
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
