"""DeepLabv3: shapes on several backbones, growth from the background, padding that never counts."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from comastre.config.sections import BackboneConfig
from comastre.errors import UserError
from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab, ImagePooling, Pyramid, resize
from comastre.nets.stage_taps import Tap

TINY = BackboneConfig(name="test_resnet", weights="none")


def a_model(tasks: tuple[int, ...] = (3,), stride: int = 8) -> DeepLab:
    torch.manual_seed(0)
    return DeepLab(Backbone(TINY, stride), 16, (1, 2, 3), tasks)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("stride", [8, 16])
def test_maps_and_their_strides(images, stride):
    model = a_model((3, 2), stride)
    output = model(images)
    assert model.tasks == (3, 2)
    assert [tuple(each.shape[2:]) for each in output.stages] == [(64 // min(s, stride),) * 2 for s in (4, 8, 16, 32)]
    assert output.body.shape == (2, 96, 64 // stride, 64 // stride)
    assert output.head.shape == (2, 16, 64 // stride, 64 // stride)
    assert output.logits.shape == (2, 6, 64 // stride, 64 // stride)


def test_stages_of_a_resnet_are_those_before_the_activation(images):
    model = a_model().eval()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # timm lets the last one of a block begin at 0
            torch.nn.init.normal_(module.weight)
    stages = model(images).stages
    after = model.backbone(images)
    for before, features in zip(stages, after, strict=True):
        assert before.min() < 0
        assert torch.equal(before.relu(), features)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_convnext"])
def test_a_backbone_without_a_last_activation_gives_its_stages_as_they_are(name, images):
    model = DeepLab(Backbone(BackboneConfig(name=name, weights="none"), 16), 16, (1, 2, 3), (3,)).eval()
    assert not [module for module in model.modules() if isinstance(module, Tap)]
    output = model(images)
    assert torch.equal(output.stages[-1], output.body) and output.logits.shape == (2, 4, 4, 4)


def test_a_copy_keeps_its_own_stages(images):
    model = a_model().eval()
    teacher = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.mul_(1.5)
    before = teacher(images).stages
    model(1 - images)
    assert all(torch.equal(one, other) for one, other in zip(before, teacher(images).stages, strict=True))


def test_new_classes_from_the_background_move_no_old_probability(images):
    model = a_model().eval()
    with torch.no_grad():
        model.classifiers[0].bias[0] = 0.7
        old = model(images).logits.softmax(dim=1)
        model.add_task(5)
        model.start_from_background()
        new = model(images).logits.softmax(dim=1)
    assert model.classifiers[0].bias[0].item() == pytest.approx(-1.091759, abs=5e-7)
    assert model.classifiers[1].bias.tolist() == pytest.approx([-1.091759] * 5, abs=5e-7)
    torch.testing.assert_close(new[:, 1:4], old[:, 1:])
    torch.testing.assert_close(new[:, [0, 4, 5, 6, 7, 8]].sum(dim=1), old[:, 0])


def test_one_new_class_by_hand():
    model = a_model((1,)).eval()
    with torch.no_grad():
        model.classifiers[0].bias.copy_(torch.tensor([0.7, -0.1]))
        model.classifiers[0].weight.zero_()
        model.add_task(1)
        model.start_from_background()
        p = model(torch.zeros(1, 3, 64, 64)).logits[0, :, 0, 0].softmax(dim=0)
    assert model.classifiers[1].bias.item() == pytest.approx(0.006853, abs=5e-7)
    assert p[[0, 2]].tolist() == pytest.approx([0.344987, 0.344987], abs=5e-7)


def test_what_is_in_the_padding_does_not_matter(images):
    model = a_model().eval()
    padding = torch.zeros(2, 64, 64, dtype=torch.bool)
    padding[1, 40:] = padding[1, :, 48:] = True
    noisy = torch.where(padding[:, None], torch.rand_like(images), images)
    sizes = [(64, 64), (40, 48)]
    with torch.no_grad():
        clean, other = (model.segment(each, padding, sizes) for each in (images, noisy))
    assert [tuple(each.label_map.shape) for each in clean] == sizes
    for one, two in zip(clean, other, strict=True):
        assert torch.equal(one.label_map, two.label_map)


def test_pooling_is_the_mean_of_what_is_no_padding():
    pooling = ImagePooling(4, 3).eval()
    features = torch.rand(1, 4, 6, 6)
    padding = torch.zeros(1, 6, 6, dtype=torch.bool)
    padding[:, 4:] = padding[:, :, 2:] = True
    whole = pooling(features[:, :, :4, :2], None)
    torch.testing.assert_close(pooling(features, padding)[:, :, :4, :2], whole)


def test_results_have_the_asked_sizes(images):
    model = a_model().eval()
    with torch.no_grad():
        found = model.segment(images, None, [(64, 64), (50, 30)], [(97, 31), (50, 30)])
    assert [tuple(each.label_map.shape) for each in found] == [(97, 31), (50, 30)]
    for each in found:
        assert each.proposals is None
        assert {segment.label for segment in each.segments} == set(each.label_map.unique().tolist()) - {0}
        assert all(0 < segment.score <= 1 for segment in each.segments)


def test_the_pyramid_is_that_of_torchvision_without_dropout():
    """With the pooling's weights in torchvision's place, both say the same."""
    from torchvision.models.segmentation.deeplabv3 import ASPP

    torch.manual_seed(0)
    peer, ours = ASPP(8, [6, 12, 18], 4).eval(), Pyramid(8, 4, (6, 12, 18)).eval()
    ours.branches.load_state_dict({k: v for k, v in peer.convs.state_dict().items() if not k.startswith("4.")})
    ours.pooling.convolution.load_state_dict(peer.convs[4][1].state_dict())
    ours.pooling.norm.load_state_dict(peer.convs[4][2].state_dict())
    ours.project.load_state_dict(peer.project.state_dict())
    features = torch.rand(2, 8, 9, 7)
    torch.testing.assert_close(ours(features, None), peer(features))


def test_a_single_image_and_a_backbone_without_dilation_are_refused_in_a_sentence(images):
    with pytest.raises(UserError, match="at least 2 images"):
        a_model().train()(images[:1])
    with pytest.raises(UserError, match="'densenet121' cannot give features at stride 16"):
        Backbone(BackboneConfig(name="densenet121", weights="none"), 16)


@pytest.mark.parametrize("size", [(14, 18), (33, 20), (5, 40), (4, 5), (7, 9)])
@pytest.mark.parametrize("autocast", [False, True])
def test_resized_maps_are_those_of_interpolation(size, autocast):
    maps = torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(2)).requires_grad_()
    weights = torch.linspace(-1, 1, size[0] * size[1]).view(size)
    with torch.inference_mode():
        resize(maps, size)  # what it keeps for the next time must do for a gradient
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, expected = resize(maps, size), F.interpolate(maps, size=size, mode="bilinear", align_corners=False)
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad((each * weights).sum(), maps)[0] for each in (found, expected))
    torch.testing.assert_close(ours, theirs)
