"""Activations that are computed again change memory and time, and no gradient."""

import pytest
import small_step as small
import torch

from comastre.config.sections import BackboneConfig
from comastre.methods.comastre.terms import total_loss
from comastre.nets.backbone import Backbone
from comastre.nets.recompute import set_recompute


def step(recompute: bool, frozen: bool = True, autocast: bool = False):
    """Gradients of one step, BatchNorm's statistics after it, and how often each part ran."""
    torch.manual_seed(0)
    model, old = small.grow(small.first_learner(torch.float32))
    model.backbone.frozen_batch_norm = frozen
    set_recompute(model.train(), recompute)
    images, targets = small.new_batch(dtype=torch.float32)
    config = small.loss_config()
    runs = {"backbone": 0, "encoder layer": 0, "finest map": 0, "decoder layer": 0}
    parts = (
        list(model.backbone.network.children())[-1],
        model.pixel_decoder.layers[0],
        model.pixel_decoder.smooth[0],
        model.mask_decoder.layers[1],
    )
    for name, part in zip(runs, parts, strict=True):
        part.register_forward_pre_hook(lambda *_, name=name: runs.update({name: runs[name] + 1}))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        terms = small.terms_of(model, old, images, targets, config)
    gradients = small.gradients_of(model, total_loss(terms, config.weights))
    return gradients, {name: value.clone() for name, value in model.backbone.named_buffers()}, runs


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_and_statistics_are_the_same_to_the_bit(frozen: bool, autocast: bool) -> None:
    kept, statistics, once = step(False, frozen, autocast)
    again, same, twice = step(True, frozen, autocast)
    assert kept.keys() == again.keys() and kept
    for name, gradient in kept.items():
        assert torch.equal(gradient, again[name]), name
    assert statistics.keys() == same.keys() and statistics
    for name, value in statistics.items():
        assert torch.equal(value, same[name]), name
    assert set(once.values()) == {1}
    # Statistics that follow the data would follow it twice, so that backbone is never run again.
    assert twice == {"backbone": 2 if frozen else 1, "encoder layer": 2, "finest map": 2, "decoder layer": 2}


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0"])
def test_any_backbone_gives_the_same(name: str) -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(name=name, weights="none", freeze_batch_norm="always")).train()
    images = torch.rand(1, 3, 64, 64)

    def gradients(recompute: bool) -> list[torch.Tensor]:
        set_recompute(backbone, recompute)
        features = backbone(images)
        return list(torch.autograd.grad(sum(each.square().sum() for each in features), list(backbone.parameters())))

    for kept, again in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(kept, again)


def test_without_gradients_nothing_runs_twice() -> None:
    model = small.first_learner(torch.float32)
    set_recompute(model, True)
    runs = []
    model.pixel_decoder.layers[0].register_forward_hook(lambda *_: runs.append(1))
    images, _ = small.new_batch(dtype=torch.float32)
    with torch.no_grad():
        model.propose(images)
    assert len(runs) == 1
