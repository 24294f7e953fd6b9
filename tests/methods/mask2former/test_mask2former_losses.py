"""The training losses and their gradients are those of transformers' Mask2Former, for the same weights and points."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from comastre.bundle.imported import import_model
from comastre.bundle.mask2former_names import to_ours
from comastre.config.sections import MaskLossConfig
from comastre.data.targets import Targets
from comastre.losses.points import PointCounts
from comastre.losses.query_classes import class_log_probabilities, query_cross_entropy, query_focal_loss
from comastre.methods.mask2former.config import QueryLossConfig, QueryMatchingConfig
from comastre.methods.mask2former.objective import supervise
from reference_mask2former import make_reference

POINTS = 160
MASKS = MaskLossConfig(points=POINTS)
CONFIG = QueryLossConfig(matching=QueryMatchingConfig(points=POINTS), masks=MASKS)
LABELS = ([2, 0, 4], [1, 1])


class FixedPoints:
    """Points by their number, the same for us and for transformers."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        counts = PointCounts.of(MASKS)
        numbers = (POINTS, counts.candidates, counts.uniform)
        self.points = {number: torch.rand(len(LABELS), number, 2, generator=generator) for number in numbers}

    def draw(self, number: int) -> Tensor:
        return self.points[number]

    def rand(self, rows: int, number: int, _: int, device: Any = None) -> Tensor:
        """What transformers' draws give: for its matching one image after the other, else a row for each mask."""
        if rows == 1 and number == POINTS:
            self.points[POINTS] = self.points[POINTS].roll(-1, 0)
            return self.points[POINTS][-1:]
        counts = torch.tensor([len(labels) for labels in LABELS])
        return self.points[number].repeat_interleave(counts, dim=0)


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Targets]:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(len(LABELS), 3, 64, 96, generator=generator)
    masks = [torch.rand(len(labels), 8, 12, generator=generator) > 0.6 for labels in LABELS]
    whole = [each.repeat_interleave(8, 1).repeat_interleave(8, 2) for each in masks]
    return images, Targets.stack(whole, [torch.tensor(labels) for labels in LABELS], ["one", "two"])


def test_losses_and_gradients_equal_transformers(
    batch: tuple[Tensor, Targets], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = make_reference("resnet")
    reference.save_pretrained(tmp_path)
    ours = import_model(tmp_path).model
    for parameter in ours.parameters():
        parameter.requires_grad_()  # those of BatchNorm too, which an imported model holds still
    images, targets = batch
    predicted = ours(images)
    terms = supervise(predicted, targets, FixedPoints(), CONFIG)  # type: ignore[arg-type]
    total = 2 * terms["classification"] + 5 * terms["mask_bce"] + 5 * terms["mask_dice"]
    total.backward()

    points = FixedPoints()
    monkeypatch.setattr(torch, "rand", points.rand)
    reference.zero_grad()
    expected = reference(
        ours.backbone.normalise(images, None),
        mask_labels=[targets.masks[image, :count].float() for image, count in enumerate(targets.counts)],
        class_labels=[targets.labels[image, :count] for image, count in enumerate(targets.counts)],
        output_auxiliary_logits=True,
    )
    monkeypatch.undo()
    torch.testing.assert_close(predicted.class_logits[-1], expected.class_queries_logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(predicted.layers[-1].mask_logits, expected.masks_queries_logits, atol=1e-4, rtol=0)
    assert total.item() == pytest.approx(expected.loss.item(), rel=1e-4)
    expected.loss.backward()
    theirs = to_ours({name: value.grad for name, value in reference.named_parameters()}, "resnet")
    for name, parameter in ours.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        scale = max(theirs[name].abs().max().item(), 1e-3)
        assert (gradient - theirs[name]).abs().max().item() / scale < 2e-3, name


def test_each_term_equals_transformers(batch: tuple[Tensor, Targets], monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make_reference("resnet")
    generator = torch.Generator().manual_seed(8)
    shape = (3, len(LABELS), 12)
    class_logits = 2 * torch.randn(*shape, 6, generator=generator)
    mask_logits = 3 * torch.randn(*shape, 16, 24, generator=generator)
    from comastre.methods.mask2former.model import Prediction
    from comastre.nets.outputs import QueryMasks

    layers = tuple(QueryMasks(torch.zeros(len(LABELS), 12, 1), masks) for masks in mask_logits)
    targets = batch[1]
    terms = supervise(Prediction((), layers, class_logits), targets, FixedPoints(), CONFIG)  # type: ignore[arg-type]
    monkeypatch.setattr(torch, "rand", FixedPoints().rand)
    expected = {"loss_cross_entropy": 0.0, "loss_mask": 0.0, "loss_dice": 0.0}
    for of_classes, of_masks in zip(class_logits, mask_logits, strict=True):
        masks = [targets.masks[image, :count].float() for image, count in enumerate(targets.counts)]
        labels = [targets.labels[image, :count] for image, count in enumerate(targets.counts)]
        losses = reference.criterion(of_masks, of_classes, masks, labels)
        expected = {name: value + losses[name].item() for name, value in expected.items()}
    assert terms["classification"].item() == pytest.approx(expected["loss_cross_entropy"], rel=1e-4)
    assert terms["mask_bce"].item() == pytest.approx(expected["loss_mask"], rel=1e-4)
    assert terms["mask_dice"].item() == pytest.approx(expected["loss_dice"], rel=1e-4)


def test_cross_entropy_by_hand() -> None:
    """One layer, one image, two queries: class 0 with probability 1/2, and no object with 1/4."""
    logits = torch.tensor([[[[2.0, 1.0, 1.0], [1.0, 2.0, 1.0]]]]).log()
    labels = torch.tensor([[[0, 2]]])
    expected = (torch.tensor(2.0).log() + 0.1 * torch.tensor(4.0).log()) / 1.1
    logs = class_log_probabilities(logits)
    torch.testing.assert_close(query_cross_entropy(logs, labels, 0.1, 1.1), expected)
    # 5 (1 - 1/2) log 2 + 5 (1 - 1/4) log 4, over two queries.
    focal = (2.5 * torch.tensor(2.0).log() + 3.75 * torch.tensor(4.0).log()) / 2
    torch.testing.assert_close(query_focal_loss(logs, labels, 5.0, 1.0, 2.0), focal)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_focal_loss_of_certain_queries_has_a_gradient(gamma: float) -> None:
    logits = torch.tensor([[[[200.0, 0.0], [0.0, 200.0], [0.0, 0.0]]]], requires_grad=True)
    loss = query_focal_loss(class_log_probabilities(logits), torch.tensor([[[0, 0, 1]]]), 5.0, gamma, 3.0)
    loss.backward()
    assert logits.grad is not None and bool(logits.grad.isfinite().all()) and loss.item() > 300
