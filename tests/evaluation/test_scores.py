from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.classification import MulticlassJaccardIndex

from comastre.evaluation.confusion import ConfusionMatrix
from comastre.evaluation.scores import (
    CONVENTIONS,
    Miou,
    all_conventions,
    average,
    fold,
    forgetting,
    iou_per_label,
    task_confusion,
)

# Background, two base classes, one incremented class, one class not learned yet.
# Rows are the truth: the future class's 8 pixels went to background (5) and class 1 (3).
MATRIX = torch.tensor(
    [
        [50, 2, 0, 3, 0],
        [4, 10, 1, 0, 0],
        [0, 0, 20, 5, 0],
        [6, 0, 0, 12, 0],
        [5, 3, 0, 0, 0],
    ]
)


def test_hand_computed_scores_of_every_convention() -> None:
    # The background row is [55, 5, 0, 3] with the future class in it: unions 63 + 65 - 55, 15 + 15 - 10, ...
    background, first, second, new = 5500 / 73, 1000 / 20, 2000 / 26, 1200 / 26
    # It is [50, 2, 0, 3] without: unions 55 + 60 - 50 and 15 + 12 - 10.
    background_ignored, first_ignored = 5000 / 65, 1000 / 17
    expected = {
        "paper": Miou((background + first + second) / 3, new, (background + first + second + new) / 4),
        "no_background_in_base": Miou((first + second) / 2, new, (background + first + second + new) / 4),
        "future_ignored": Miou(
            (background_ignored + first_ignored + second) / 3,
            new,
            (background_ignored + first_ignored + second + new) / 4,
        ),
        "no_background": Miou((first + second) / 2, new, (first + second + new) / 3),
    }
    scores = all_conventions(MATRIX, tasks=[2, 1])
    assert scores.keys() == expected.keys() == CONVENTIONS.keys()
    for name, score in expected.items():
        assert scores[name].base == pytest.approx(score.base), name
        assert scores[name].inc == pytest.approx(score.inc), name
        assert scores[name].all == pytest.approx(score.all), name


def test_step_zero_has_no_increment_and_base_is_all() -> None:
    matrix = torch.tensor([[5, 1, 0], [2, 4, 0], [3, 3, 0]])
    scores = all_conventions(matrix, tasks=[1])
    assert all(score.inc is None for score in scores.values())
    assert scores["paper"].base == scores["paper"].all == pytest.approx((100 * 8 / 14 + 100 * 4 / 10) / 2)


def test_a_class_that_is_nowhere_is_left_out_of_means_and_a_missed_class_counts_zero() -> None:
    matrix = torch.zeros(4, 4, dtype=torch.int64)
    matrix[0, 0], matrix[1, 1], matrix[2, 0] = 6, 4, 2  # class 2 missed, class 3 nowhere
    ious = iou_per_label(matrix)
    assert ious[:3].tolist() == [75.0, 100.0, 0.0]
    assert math.isnan(ious[3])
    score = all_conventions(matrix, tasks=[2, 1])["paper"]
    assert score.base == pytest.approx(175 / 3)
    assert score.all == pytest.approx(175 / 3)
    assert score.inc is not None and math.isnan(score.inc)


def test_predicting_a_class_before_it_is_learned_is_an_error() -> None:
    with pytest.raises(ValueError, match="beyond the 2 learned"):
        fold(MATRIX, num_learned=2)


def test_confusion_between_tasks_by_hand() -> None:
    # Background with the future class in it; class 1 and 2 together; the new class.
    assert task_confusion(MATRIX, tasks=[2, 1]).tolist() == [[55, 5, 3], [4, 31, 5], [6, 0, 12]]


def slow_miou(predictions: list[int], truths: list[int], labels: list[int], learned: int, ignore_future: bool) -> float:
    """Mean IoU in percent straight from pixels: no matrix, no tensors."""
    pixels = []
    for predicted, true in zip(predictions, truths, strict=True):
        if true == 255 or (ignore_future and true > learned):
            continue
        pixels.append((predicted, true if true <= learned else 0))
    ious = []
    for label in labels:
        intersection = sum(1 for predicted, true in pixels if predicted == label and true == label)
        union = sum(1 for predicted, true in pixels if predicted == label or true == label)
        if union:
            ious.append(100 * intersection / union)
    return sum(ious) / len(ious) if ious else math.nan


@settings(deadline=None, max_examples=60)
@given(data=st.data(), tasks=st.lists(st.integers(1, 3), min_size=1, max_size=3), num_future=st.integers(0, 3))
def test_every_convention_equals_the_slow_count_over_pixels(
    data: st.DataObject, tasks: list[int], num_future: int
) -> None:
    learned = sum(tasks)
    num_pixels = data.draw(st.integers(1, 40))
    predictions = data.draw(st.lists(st.integers(0, learned), min_size=num_pixels, max_size=num_pixels))
    true_labels = st.one_of(st.integers(0, learned + num_future), st.just(255))
    truths = data.draw(st.lists(true_labels, min_size=num_pixels, max_size=num_pixels))
    confusion = ConfusionMatrix(learned + num_future + 1)
    confusion.update(torch.tensor([predictions]), torch.tensor([truths]))
    scores = all_conventions(confusion.reduce(), tasks)

    base, new = list(range(1, tasks[0] + 1)), list(range(tasks[0] + 1, learned + 1))
    groups = {
        "paper": ([0, *base], [0, *base, *new], False),
        "no_background_in_base": (base, [0, *base, *new], False),
        "future_ignored": ([0, *base], [0, *base, *new], True),
        "no_background": (base, base + new, False),
    }
    for name, (in_base, in_all, ignore) in groups.items():
        score = scores[name]
        assert score.base == pytest.approx(slow_miou(predictions, truths, in_base, learned, ignore), nan_ok=True)
        assert score.all == pytest.approx(slow_miou(predictions, truths, in_all, learned, ignore), nan_ok=True)
        if len(tasks) == 1:
            assert score.inc is None
        else:
            assert score.inc == pytest.approx(slow_miou(predictions, truths, new, learned, ignore), nan_ok=True)


def test_all_equals_torchmetrics_jaccard_index() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 7, (2, 40, 30), generator=generator)
    prediction = torch.where(torch.rand(truth.shape, generator=generator) < 0.6, truth, truth.roll(1))
    truth[0, :5] = 255
    peer = MulticlassJaccardIndex(7, average=None, ignore_index=255)
    peer.update(prediction, truth)
    confusion = ConfusionMatrix(7)
    confusion.update(prediction, truth)
    torch.testing.assert_close(iou_per_label(confusion.reduce()).float(), 100 * peer.compute())


def test_ade_identity_of_the_papers_convention() -> None:
    """(101 base + 50 inc) / 151 = all on ADE20K 100-50: what shows that the paper counts background."""
    generator = torch.Generator().manual_seed(1)
    matrix = torch.randint(1, 50, (151, 151), generator=generator)
    matrix += torch.diag(torch.randint(1000, 20000, (151,), generator=generator))
    scores = all_conventions(matrix, tasks=[100, 50])
    paper, other = scores["paper"], scores["no_background_in_base"]
    assert paper.inc is not None and other.inc is not None
    assert (101 * paper.base + 50 * paper.inc) / 151 == pytest.approx(paper.all)
    assert (101 * other.base + 50 * other.inc) / 151 != pytest.approx(other.all, abs=1e-3)
    assert scores["future_ignored"] == paper  # nothing is in the future after the last step


def test_average_over_steps() -> None:
    assert average([Miou(0.0, None, 60.0), Miou(0.0, 0.0, 50.0), Miou(0.0, 0.0, 43.0)]) == 51.0
    assert average([Miou(0.0, None, 60.0), Miou(0.0, 0.0, math.nan)]) == 60.0
    assert math.isnan(average([]))


def test_forgetting_by_hand() -> None:
    history = [
        {"disk": 60.0, "ring": 50.0, "star": 10.0, "moon": None},
        {"disk": 70.0, "ring": 40.0, "star": 12.0, "moon": 30.0, "tree": 20.0},
        {"disk": 55.0, "ring": 45.0, "star": 14.0, "moon": 18.0, "tree": None, "boat": 33.0},
    ]
    assert forgetting(history) == {"disk": 15.0, "ring": 5.0, "star": 0.0, "moon": 12.0, "tree": None}
    assert forgetting(history[:1]) == {}
    assert forgetting([]) == {}


def test_unscored_labels_are_in_no_mean() -> None:
    with_all, without = all_conventions(MATRIX, [2, 1])["paper"], all_conventions(MATRIX, [2, 1], {2})["paper"]
    background, first, second, new = 5500 / 73, 1000 / 20, 2000 / 26, 1200 / 26
    assert with_all.base == pytest.approx((background + first + second) / 3)
    assert without.base == pytest.approx((background + first) / 2)
    assert without.all == pytest.approx((background + first + new) / 3)
    assert math.isnan(all_conventions(MATRIX, [2, 1], {3})["paper"].inc or 0.0)
