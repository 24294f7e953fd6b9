from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as mask_tools
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from comastre.evaluation import recall as recall_module
from comastre.evaluation.recall import ErrorSplit, RecallCounter, error_split, mask_overlaps, match_greedily

ALPHA = 0.8


def encoded(mask: np.ndarray) -> dict[str, object]:
    return mask_tools.encode(np.asfortranarray(mask.astype(np.uint8)))


def coco_recall(images: list[tuple[np.ndarray, np.ndarray, np.ndarray]], minimum: float) -> float:
    """Average recall by pycocotools, class-agnostic, any number of detections, all areas."""
    annotations, detections = [], []
    for image, (proposals, scores, truths) in enumerate(images):
        for mask in truths:
            annotation = {"id": len(annotations) + 1, "image_id": image, "category_id": 1, "iscrowd": 0}
            annotations.append(annotation | {"area": float(mask.sum()), "segmentation": encoded(mask)})
        for mask, score in zip(proposals, scores, strict=True):
            if score > minimum:
                detection = {"image_id": image, "category_id": 1, "score": float(score), "area": float(mask.sum())}
                detections.append(detection | {"id": len(detections) + 1, "segmentation": encoded(mask)})
    shown = [{"id": image, "height": 12, "width": 14} for image in range(len(images))]
    everything = {"images": shown, "categories": [{"id": 1}], "info": {}}
    with contextlib.redirect_stdout(io.StringIO()):
        truth, found = COCO(), COCO()
        truth.dataset = everything | {"annotations": annotations}
        found.dataset = everything | {"annotations": detections}
        truth.createIndex()
        found.createIndex()
        evaluation = COCOeval(truth, found, "segm")
        evaluation.params.useCats = 0
        evaluation.params.maxDets = [1000]
        evaluation.params.areaRng = [[0, 1e10]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    return 100 * float(evaluation.eval["recall"].mean())


def random_image(
    random: np.random.Generator, num_proposals: int, num_truths: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True rectangles, some overlapping, and proposals that are truths with noise; scores with ties."""
    truths = np.zeros((num_truths, 12, 14), dtype=bool)
    for mask in truths:
        top, left = random.integers(0, 7, size=2)
        mask[top : top + random.integers(2, 6), left : left + random.integers(2, 7)] = True
    proposals = np.zeros((num_proposals, 12, 14), dtype=bool)
    for mask in proposals:
        source = truths[random.integers(num_truths)] if num_truths else mask
        mask[:] = source ^ (random.random(mask.shape) < random.choice([0.0, 0.02, 0.08]))
    scores = random.integers(1, 20, size=num_proposals) / 20
    return proposals, scores, truths


def count(images: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> RecallCounter:
    counter = RecallCounter(1)
    for proposals, scores, truths in images:
        overlaps = mask_overlaps(torch.from_numpy(proposals), torch.from_numpy(truths))
        counter.update(overlaps, scores, np.zeros(len(truths), dtype=np.int64), ALPHA)
    return counter


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**31),
    shapes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=4),
)
def test_equals_pycocotools(seed: int, shapes: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(seed)
    # pycocotools has no recall without a truth or without a detection in the whole set.
    images = [random_image(random, *shape) for shape in [*shapes, (4, 2)]]
    images[-1][1][0] = 0.95
    overall, _ = count(images).reduce()
    assert overall.all == pytest.approx(coco_recall(images, 0.0), abs=1e-9)
    assert overall.confident == pytest.approx(coco_recall(images, ALPHA), abs=1e-9)


def test_overlaps_equal_pycocotools_bit_for_bit_and_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    proposals, _, truths = random_image(np.random.default_rng(0), 9, 4)
    expected = mask_tools.iou([encoded(mask) for mask in proposals], [encoded(mask) for mask in truths], [0] * 4)
    for block in (1 << 18, 7):
        monkeypatch.setattr(recall_module, "_PIXELS_AT_ONCE", block)
        overlaps = mask_overlaps(torch.from_numpy(proposals), torch.from_numpy(truths))
        assert np.array_equal(overlaps, expected)


def test_empty_masks_overlap_nothing() -> None:
    empty, full = torch.zeros(1, 3, 3, dtype=torch.bool), torch.ones(2, 3, 3, dtype=torch.bool)
    assert mask_overlaps(empty, full).tolist() == [[0.0, 0.0]]
    assert mask_overlaps(empty, empty).tolist() == [[0.0]]
    assert mask_overlaps(full[:0], full).shape == (0, 2)


def test_matching_is_one_to_one_in_order_of_score() -> None:
    # Both proposals prefer truth 0; the surer one takes it, the other falls back to truth 1 where 0.6 is enough.
    overlaps = np.array([[0.9, 0.6], [0.8, 0.0]])
    matched = match_greedily(overlaps, np.array([0.3, 0.7]))
    assert matched[:, 0].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 0, -1]  # 0.50 .. 0.80, then 0.85 and 0.90, then none
    assert matched[:, 1].tolist() == [0, 0, 0, -1, -1, -1, -1, -1, -1, -1]


def test_of_equal_truths_the_last_is_taken_and_pycocotools_agrees() -> None:
    """Taking the first instead would leave nothing for the second proposal, which fits the first truth only."""
    overlaps = np.array([[0.5, 0.5], [1.0, 0.0]])
    assert match_greedily(overlaps, np.array([0.9, 0.85]))[0].tolist() == [1, 0]
    halves = np.zeros((2, 12, 14), dtype=bool)
    halves[0, :, :7], halves[1, :, 7:] = True, True
    proposals = np.stack([np.ones((12, 14), dtype=bool), halves[0]])
    images = [(proposals, np.array([0.9, 0.85]), halves)]
    # Both truths at 0.50, one at the other nine thresholds: 11 of 20.
    assert coco_recall(images, 0.0) == pytest.approx(55.0)
    assert count(images).reduce()[0].all == pytest.approx(55.0)


def test_hand_computed_recall_per_class() -> None:
    # One truth of class 0 covered at 0.72 by a confident proposal, one of class 1 at 1.0 by an unsure one; no class 2.
    counter = RecallCounter(3)
    counter.update(np.array([[0.72, 0.0], [0.0, 1.0]]), np.array([0.9, 0.8]), np.array([0, 1]), ALPHA)
    overall, (first, second, third) = counter.reduce()
    assert (first.all, first.confident) == (50.0, 50.0)  # 0.50, 0.55, 0.60, 0.65, 0.70
    assert (second.all, second.confident) == (100.0, 0.0)  # s = alpha is not above alpha
    assert math.isnan(third.all) and math.isnan(third.confident)
    assert (overall.all, overall.confident) == (75.0, 25.0)


def test_no_proposals_no_truths_and_zero_scores() -> None:
    counter = RecallCounter(1)
    counter.update(np.zeros((3, 0)), np.array([0.9, 0.5, 0.1]), np.zeros(0), ALPHA)
    assert math.isnan(counter.reduce()[0].all)
    counter.update(np.zeros((0, 2)), np.zeros(0), np.array([0, 0]), ALPHA)
    counter.update(np.array([[1.0], [1.0]]), np.array([0.0, 0.0]), np.array([0]), ALPHA)  # s > 0 leaves them out
    assert counter.reduce()[0].all == 0.0
    counter.update(np.array([[1.0]]), np.array([0.1]), np.array([0]), ALPHA)
    assert counter.reduce()[0].all == 25.0


def test_errors_are_split_by_where_the_mask_got_lost() -> None:
    # Truths:             0 missed  1 unsure  2 wrong  3 right by its second proposal
    overlaps = np.array(
        [
            [0.49, 0.0, 0.0, 0.0],
            [0.0, 0.9, 0.0, 0.0],
            [0.0, 0.0, 0.5, 0.6],
            [0.0, 0.0, 0.0, 0.7],
        ]
    )
    objectness = np.array([0.99, 0.8, 0.9, 0.9])
    classes = np.array([0, 1, 0, 1])
    truth_classes = np.array([0, 1, 1, 1])
    split = error_split(overlaps, objectness, classes, truth_classes, ALPHA, num_classes=2)
    assert split.not_proposed.tolist() == [1, 0]
    assert split.below_alpha.tolist() == [0, 1]
    assert split.wrong_class.tolist() == [0, 1]
    assert split.right.tolist() == [0, 1]
    total = (ErrorSplit.zeros(2) + split + split).reduce()
    assert total.wrong_class.tolist() == [0, 2]
    assert total.not_proposed.tolist() == [2, 0]
    nothing = error_split(np.zeros((0, 1)), np.zeros(0), np.zeros(0), np.array([1]), ALPHA, num_classes=2)
    assert nothing.not_proposed.tolist() == [0, 1]
