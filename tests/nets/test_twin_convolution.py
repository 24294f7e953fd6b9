"""RCIL's twins: folding keeps the output, a later step keeps the folded branch still, and any backbone's blocks fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from comastre.config.sections import BackboneConfig
from comastre.errors import UserError
from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab
from comastre.nets.twin_convolution import Mode, TwinConvolution, add_twins, twins_of


def a_twin() -> TwinConvolution:
    """Two branches with unlike kernels and norms, open."""
    torch.manual_seed(0)
    twin = TwinConvolution(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6))
    twin.open(later=False)
    for module in (twin.right, twin.left_norm, twin.right_norm):
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    for norm in (twin.left_norm, twin.right_norm):
        nn.init.normal_(norm.running_mean)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return twin.eval()


def test_folding_keeps_the_output_in_every_step():
    twin, features = a_twin(), torch.rand(2, 3, 8, 8)
    for later in (False, True, True):
        twin.open(later)
        with torch.no_grad():
            half = (twin.left_norm(twin.left(features)) if not later else twin.left(features)) / 2
            expected = half + twin.right_norm(twin.right(features)) / 2
            torch.testing.assert_close(twin(features), expected)
            twin.fold()
            torch.testing.assert_close(twin(features), expected, rtol=1e-4, atol=1e-5)
        assert twin.mode is Mode.FOLDED


def test_a_channel_is_left_right_or_half_of_both():
    twin, features = a_twin().train(), torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        left, right = twin.left_norm(twin.left(features)), twin.right_norm(twin.right(features))
        twin.draw(torch.tensor([0.0, 0.32, 0.34, 0.65, 0.67, 0.99]))
        found = twin(features)
    expected = torch.cat([left[:, :2], right[:, 2:4], (left[:, 4:] + right[:, 4:]) / 2], dim=1)
    torch.testing.assert_close(found, expected)


def test_in_a_later_step_the_right_branch_alone_learns():
    twin = a_twin()
    twin.fold()
    twin.open(later=True)
    twin.train()
    twin(torch.rand(4, 3, 8, 8)).sum().backward()
    learning = {name for name, parameter in twin.named_parameters() if parameter.grad is not None}
    assert learning == {"right.weight", "right_norm.weight", "right_norm.bias"}


@pytest.mark.parametrize(("name", "expected"), [("test_resnet", 7), ("test_efficientnet", 5)])
def test_twins_of_a_network_say_what_it_said_before(name, expected):
    """Both branches begin alike, so that nothing changes, folded or open."""
    torch.manual_seed(0)
    model = DeepLab(Backbone(BackboneConfig(name=name, weights="none"), 16), 8, (1, 2, 3), (2,)).eval()
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        before = model(images).logits
        add_twins(model)
        model.eval()
        twins = twins_of(model)
        assert len(twins) == expected + 4
        for twin in twins:
            twin.open(later=False)
        torch.testing.assert_close(model(images).logits, before, rtol=1e-4, atol=1e-5)
        for twin in twins:
            twin.fold()
        torch.testing.assert_close(model(images).logits, before, rtol=1e-4, atol=1e-5)


def test_a_backbone_without_batch_norm_is_refused_in_a_sentence():
    model = DeepLab(Backbone(BackboneConfig(name="test_convnext", weights="none"), 16), 8, (1, 2, 3), (2,))
    with pytest.raises(UserError, match="rcil folds convolutions with their BatchNorm, and test_convnext has none"):
        add_twins(model)
