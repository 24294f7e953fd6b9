"""The one result of every method: segments drawn from the segment map, proposals only where a model has some."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from comastre.segmentation import Frame, ProposedMasks, Segment, Segmentation, box_of

LABELS = torch.tensor([[0, 2, 2, 0], [5, 2, 0, 0], [5, 5, 0, 2]])


def proposals(objectness: Tensor, class_scores: Tensor, confident: float = 0.5) -> ProposedMasks:
    return ProposedMasks(objectness, class_scores, confident, torch.zeros(len(objectness), 2, 2), (3, 4))


def test_a_segment_reads_mask_and_box_from_the_segment_map() -> None:
    numbers = torch.zeros(6, 8, dtype=torch.long)
    numbers[1:3, 2:7] = 1
    numbers[4, 0] = 2
    first = Segment(3, 0.25, 10, 1, numbers, query=4, name="ring")
    second = Segment(1, 0.5, 1, 2, numbers)
    assert (first.class_index, second.class_index) == (2, 0)
    assert np.array_equal(first.mask, (numbers == 1).numpy())
    assert (first.box, second.box) == ((2, 1, 5, 2), (0, 4, 1, 1))
    assert (first.query, second.query, second.name) == (4, None, "")
    assert first.as_json() == {
        "class": "ring",
        "category_id": 3,
        "score": 0.25,
        "area": 10,
        "bbox": [2, 1, 5, 2],
        "segmentation": first.rle,
    }
    assert "segment_map" not in repr(first) and "mask" not in repr(first)


def test_an_empty_mask_has_an_empty_box() -> None:
    assert box_of(np.zeros((4, 5), bool)) == (0, 0, 0, 0)


def test_labels_of_pixels_make_one_segment_per_class() -> None:
    confidence = torch.arange(12.0).reshape(3, 4) / 12
    found = Segmentation.of_labels(LABELS.to(torch.uint8), confidence)
    assert torch.equal(found.label_map, LABELS) and found.label_map.dtype == torch.long
    assert found.segment_map.tolist() == [[0, 1, 1, 0], [2, 1, 0, 0], [2, 2, 0, 1]]
    assert [(each.label, each.area, each.number, each.query) for each in found.segments] == [
        (2, 4, 1, None),
        (5, 3, 2, None),
    ]
    assert [each.score for each in found.segments] == pytest.approx([(1 + 2 + 5 + 11) / 48, (4 + 8 + 9) / 36])
    assert all(np.array_equal(each.mask, (each.label == LABELS).numpy()) for each in found.segments)
    assert found.proposals is None
    assert [each.score for each in Segmentation.of_labels(LABELS).segments] == [1.0, 1.0]
    nothing = Segmentation.of_labels(torch.zeros(2, 3))
    assert nothing.segments == () and nothing.segment_map.sum() == 0


def test_a_proposal_is_recognised_above_the_bound_and_never_at_it() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.0, 0.0]])
    found = proposals(torch.tensor([0.6, 0.5, 0.1]), scores)
    assert found.classes.tolist() == [1, -1, -1]
    assert proposals(torch.tensor([0.6, 0.5, 0.1]), scores, confident=0.4).classes.tolist() == [1, 0, -1]
    assert proposals(torch.tensor([0.6]), torch.zeros(1, 0)).classes.tolist() == [-1]


def test_masks_are_cut_from_the_padded_input() -> None:
    logits = torch.full((1, 4, 6), -9.0)
    logits[0, :2, :3] = 9.0
    found = ProposedMasks(torch.ones(1), torch.ones(1, 1), 0.5, logits, (2, 4), frame=Frame((4, 6), (2, 4)))
    assert found.masks().tolist() == [[[True, True, True, False]] * 2]
    strict = ProposedMasks(torch.ones(1), torch.ones(1, 1), 0.5, logits, (2, 4), 0.99999, Frame((4, 6), (2, 4)))
    assert not strict.masks().any()


def test_everything_moves() -> None:
    found = Segmentation.of_labels(LABELS)
    whole = Segmentation(found.label_map, found.segment_map, found.segments, proposals(torch.ones(2), torch.ones(2, 3)))
    moved = whole.to("meta")
    tensors = [moved.label_map, moved.segment_map, *(each.segment_map for each in moved.segments)]
    assert moved.proposals is not None
    tensors += [moved.proposals.objectness, moved.proposals.class_scores, moved.proposals.logits]
    assert {each.device.type for each in tensors} == {"meta"}
    assert all(each.segment_map is moved.segment_map for each in moved.segments)  # one map, however many segments
    assert found.to("meta").proposals is None
    back = whole.cpu()
    assert torch.equal(back.label_map, LABELS) and back.proposals is not None
    assert [each.box for each in back.segments] == [each.box for each in whole.segments]
