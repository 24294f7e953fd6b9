"""Recognition losses: torchvision's focal loss, torch's cross-entropy, gradients, padding and empty cases."""

import pytest
import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss

from comastre.losses.classification import (
    across_tasks_loss,
    auxiliary_loss,
    cross_entropy_loss,
    focal_loss,
    negatives_loss,
)

LABELS = torch.tensor([[0, 3, 2], [1, -7, 99]])  # -7 and 99 stand in padding rows
VALID = torch.tensor([[True, True, True], [True, False, False]])

LOSSES = {
    "focal": lambda logits, labels, valid: focal_loss(logits, labels, valid, 2.0),
    "cross_entropy": cross_entropy_loss,
    "negatives": lambda logits, labels, valid: negatives_loss(logits, valid, 2.0),
    "auxiliary": auxiliary_loss,
}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_focal_equals_torchvisions_summed_over_classes_and_averaged_over_proposals(gamma):
    logits = 3 * torch.randn(2, 3, 4)
    truth = F.one_hot(LABELS[VALID], 4).float()
    expected = sigmoid_focal_loss(logits[VALID], truth, alpha=-1, gamma=gamma, reduction="sum") / 4
    torch.testing.assert_close(focal_loss(logits, LABELS, VALID, gamma), expected)
    expected = sigmoid_focal_loss(logits[VALID], torch.zeros(4, 4), alpha=-1, gamma=gamma, reduction="sum") / 4
    torch.testing.assert_close(negatives_loss(logits, VALID, gamma), expected)


@pytest.mark.parametrize("loss", [cross_entropy_loss, auxiliary_loss])
def test_cross_entropy_equals_torchs_over_the_valid(loss):
    logits = torch.randn(2, 3, 4)
    torch.testing.assert_close(loss(logits, LABELS, VALID), F.cross_entropy(logits[VALID], LABELS[VALID]))


@every_loss
def test_gradients_are_exact_and_padding_gets_none(loss):
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda values: loss(values, LABELS, VALID), logits)
    (gradient,) = torch.autograd.grad(loss(logits, LABELS, VALID), logits)
    assert torch.equal(gradient.abs().sum(-1) > 0, VALID)


@every_loss
@pytest.mark.parametrize("num_proposals", [0, 3])
def test_nothing_valid_gives_an_exact_zero_with_a_graph(loss, num_proposals):
    logits = torch.randn(2, num_proposals, 4, requires_grad=True)
    nothing = torch.zeros(2, num_proposals, dtype=torch.bool)
    zero = loss(logits, nothing.long(), nothing)
    zero.backward()
    assert zero.item() == 0 and logits.grad is not None and not logits.grad.any()


@every_loss
def test_a_batch_equals_the_mean_of_its_images_when_they_have_equally_many_proposals(loss):
    logits, labels, valid = torch.randn(3, 2, 4), torch.randint(4, (3, 2)), torch.ones(3, 2, dtype=torch.bool)
    singles = [loss(logits[image, None], labels[image, None], valid[image, None]) for image in range(3)]
    torch.testing.assert_close(loss(logits, labels, valid), torch.stack(singles).mean())


def test_a_given_normaliser_replaces_the_count():
    logits = torch.randn(2, 3, 4)
    torch.testing.assert_close(focal_loss(logits, LABELS, VALID, 2.0, 8.0), focal_loss(logits, LABELS, VALID, 2.0) / 2)
    for loss in (cross_entropy_loss, auxiliary_loss):
        torch.testing.assert_close(loss(logits, LABELS, VALID, 8.0), loss(logits, LABELS, VALID) / 2)
    torch.testing.assert_close(negatives_loss(logits, VALID, 2.0, 8.0), negatives_loss(logits, VALID, 2.0) / 2)


@every_loss
def test_half_precision_is_finite_and_close(loss):
    logits = torch.randn(2, 3, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(logits.bfloat16(), LABELS, VALID)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, loss(logits, LABELS, VALID), atol=0.0, rtol=0.03)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_extreme_logits_keep_loss_and_gradient_finite(gamma):
    logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4]]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([[0, 0]]), torch.ones(1, 2, dtype=torch.bool), gamma)
    loss.backward()
    assert loss.item() == pytest.approx(1e4) and logits.grad.isfinite().all()


def test_across_tasks_is_a_cross_entropy_where_every_class_comes_equally_often():
    logits, of_objects, old = torch.randn(2, 3, 5), torch.randn(2, 2, 5), torch.randn(2, 2, 3)
    labels, objects = torch.tensor([[3, 4, 3], [4, -7, 99]]), torch.tensor([[True, False], [True, True]])
    found = across_tasks_loss(logits, labels, VALID, of_objects, old, objects)

    def says(rows):  # cross-entropy of one object at a time, and what the old model says of its own classes
        values = []
        for new_row, old_row in rows:
            target = torch.cat((old_row.softmax(0), torch.zeros(2)))
            entropy = -(old_row.softmax(0) * old_row.log_softmax(0)).sum()
            values.append(-(target * new_row.log_softmax(0)).sum() - entropy)
        return torch.stack(values).mean()

    matched = F.cross_entropy(logits[VALID], labels[VALID])
    expected = 2 / 5 * matched + 3 / 5 * says(zip(of_objects[objects], old[objects], strict=True))
    torch.testing.assert_close(found, expected)


def test_across_tasks_is_zero_for_old_objects_that_are_still_called_the_same():
    old = torch.randn(2, 2, 3)
    new = torch.cat((old - 4, torch.full((2, 2, 2), -60.0)), dim=-1).requires_grad_()  # all sunk, none taken over
    nobody = torch.zeros(2, 0, dtype=torch.bool)
    loss = across_tasks_loss(torch.zeros(2, 0, 5), nobody.long(), nobody, new, old, torch.ones(2, 2, dtype=torch.bool))
    loss.backward()
    assert abs(loss.item()) < 1e-6 and new.grad.abs().max() < 1e-6


def test_across_tasks_gradients_are_exact_and_the_old_model_gets_none():
    logits, of_objects, old = (
        torch.randn(2, number, classes, dtype=torch.float64, requires_grad=True)
        for number, classes in ((3, 5), (2, 5), (2, 3))
    )
    labels, objects = torch.tensor([[3, 4, 3], [4, -7, 99]]), torch.tensor([[True, False], [True, True]])

    def loss(first, second):
        return across_tasks_loss(first, labels, VALID, second, old, objects)

    assert torch.autograd.gradcheck(loss, (logits, of_objects))
    loss(logits, of_objects).backward()
    assert old.grad is None
    assert torch.equal(of_objects.grad.abs().sum(-1) > 0, objects)
