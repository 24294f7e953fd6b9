from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_confusion_matrix

from comastre.evaluation.confusion import ConfusionMatrix


def slow_confusion(prediction: torch.Tensor, truth: torch.Tensor, num_labels: int) -> list[list[int]]:
    """Pixel by pixel, in plain Python."""
    matrix = [[0] * num_labels for _ in range(num_labels)]
    for predicted, true in zip(prediction.flatten().tolist(), truth.flatten().tolist(), strict=True):
        if true != 255:
            matrix[true][predicted] += 1
    return matrix


def random_maps(seed: int, num_labels: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    prediction = torch.randint(0, num_labels, shape, generator=generator)
    truth = torch.randint(0, num_labels, shape, generator=generator)
    truth[torch.rand(shape, generator=generator) < 0.2] = 255
    return prediction, truth


def test_hand_computed_counts() -> None:
    confusion = ConfusionMatrix(3)
    confusion.update(torch.tensor([[0, 1, 2], [2, 2, 0]]), torch.tensor([[0, 1, 1], [2, 255, 1]]))
    assert confusion.reduce().tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 1]]
    assert confusion.reduce().dtype == torch.int64


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31), num_labels=st.integers(1, 8), height=st.integers(1, 9), width=st.integers(1, 9))
def test_equals_the_slow_count(seed: int, num_labels: int, height: int, width: int) -> None:
    confusion = ConfusionMatrix(num_labels)
    expected = torch.zeros(num_labels, num_labels, dtype=torch.int64)
    for image in range(2):
        prediction, truth = random_maps(seed + image, num_labels, (height, width))
        confusion.update(prediction, truth)
        expected += torch.tensor(slow_confusion(prediction, truth, num_labels))
    assert torch.equal(confusion.reduce(), expected)


def test_equals_torchmetrics_and_a_batch_equals_its_images() -> None:
    prediction, truth = random_maps(3, 21, (4, 30, 20))
    batched, single = ConfusionMatrix(21), ConfusionMatrix(21)
    batched.update(prediction, truth)
    for one_prediction, one_truth in zip(prediction, truth, strict=True):
        single.update(one_prediction, one_truth.to(torch.uint8))  # label maps come in small types too
    peer = multiclass_confusion_matrix(prediction, truth, num_classes=21, ignore_index=255)
    assert torch.equal(batched.reduce(), peer)
    assert torch.equal(single.reduce(), peer)


def test_reading_twice_does_not_count_twice() -> None:
    confusion = ConfusionMatrix(2)
    confusion.update(torch.tensor([[0, 1]]), torch.tensor([[0, 0]]))
    # As numbers: a matrix that grows would be equal to itself.
    assert [confusion.reduce().tolist() for _ in range(2)] == [[[1, 1], [0, 0]]] * 2


@pytest.mark.parametrize(("predicted", "true"), [(3, 0), (0, 3), (-1, 1), (255, 1)])
def test_labels_out_of_range_are_reported_not_mixed_into_other_bins(predicted: int, true: int) -> None:
    confusion = ConfusionMatrix(3)
    confusion.update(torch.tensor([[predicted, 1]]), torch.tensor([[true, 1]]))
    with pytest.raises(ValueError, match=r"1 pixels have labels outside 0\.\.2"):
        confusion.reduce()


def test_any_prediction_is_fine_where_the_truth_is_ignored() -> None:
    confusion = ConfusionMatrix(2)
    confusion.update(torch.tensor([[7, 1]]), torch.tensor([[255, 1]]))
    assert confusion.reduce().tolist() == [[0, 0], [0, 1]]


def test_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) but truth is \(3, 2\)"):
        ConfusionMatrix(2).update(torch.zeros(2, 3), torch.zeros(3, 2))
