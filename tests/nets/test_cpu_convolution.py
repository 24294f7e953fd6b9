"""Convolutions with a backward pass of their own, BatchNorm folded into them, and backbones in two parts."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comastre.config.sections import BackboneConfig
from comastre.nets.backbone import Backbone
from comastre.nets.chain import is_chain
from comastre.nets.cpu_convolution import convolve
from comastre.nets.folded_norm import FoldedPair, unfold_norms

NETWORKS = ["test_resnet", "test_efficientnet", "tf_efficientnet_lite0"]


def make(name: str, **fields: object) -> Backbone:
    """A backbone whose BatchNorm has statistics and weights of its own."""
    torch.manual_seed(0)
    config = {"name": name, "weights": "none", "freeze_batch_norm": "always", **fields}
    backbone = Backbone(BackboneConfig.model_validate(config))
    with torch.no_grad():
        for module in backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                    assert tensor is not None
                    tensor.copy_(torch.rand_like(tensor) + 0.5)
    return backbone


def images(count: int = 2, side: int = 64) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(1))


def gradients(backbone: Backbone, batch: Tensor) -> dict[str, Tensor]:
    backbone.zero_grad()
    torch.stack([level.square().mean() for level in backbone(batch)]).sum().backward()
    return {name: each.grad.clone() for name, each in backbone.named_parameters() if each.grad is not None}


def without_edges(backbone: Backbone) -> None:
    """Put an activation without corners in the place of every one."""
    for module in list(backbone.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.ReLU | nn.ReLU6):
                setattr(module, name, nn.SiLU())


def relative(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).detach().norm() / expected.detach().norm().clamp(min=1e-12)).item()


# --- one convolution -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "groups", "side"),
    [
        ((1, 1), 1, 0, 1, 9),
        ((5, 5), 1, 2, 8, 9),
        ((5, 5), 2, 0, 8, 11),
        ((5, 5), 2, 0, 8, 12),  # a column that no window meets
        ((5, 5), 2, 2, 8, 12),
        ((3, 4), 1, 1, 8, 7),
        ((5, 5), 1, 2, 1, 9),
        ((3, 3), 1, 1, 8, 9),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_result_and_gradients_are_those_of_conv2d(
    kernel: tuple[int, int], stride: int, padding: int, groups: int, side: int, with_bias: bool
) -> None:
    check_against_conv2d(kernel, stride, padding, 1, groups, side, with_bias)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "side"),
    [
        ((5, 5), 1, 4, 2, 14),
        ((5, 5), 1, 4, 2, 9),
        ((3, 3), 1, 2, 2, 14),
        ((3, 3), 1, 3, 3, 10),
        ((5, 5), 1, 0, 2, 11),
        ((5, 5), 1, 2, 2, 10),
        ((3, 3), 1, 6, 2, 6),  # wider than its kernel asks for
        ((5, 5), 1, 3, 2, 10),  # a padding that is not whole in every second pixel
        ((5, 5), 2, 4, 2, 12),
    ],
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_dilated_depthwise_convolutions_are_those_of_conv2d(
    kernel: tuple[int, int], stride: int, padding: int, dilation: int, side: int, with_bias: bool
) -> None:
    check_against_conv2d(kernel, stride, padding, dilation, 8, side, with_bias)


def check_against_conv2d(
    kernel: tuple[int, int], stride: int, padding: int, dilation: int, groups: int, side: int, with_bias: bool
) -> None:
    """Result and all gradients."""
    torch.manual_seed(0)
    maps = torch.randn(3, 8, side, side + 1).contiguous(memory_format=torch.channels_last).requires_grad_()
    weight = torch.randn(8 if groups == 8 else 5, 8 // groups, *kernel, requires_grad=True)
    bias = torch.randn(len(weight), requires_grad=True) if with_bias else None
    inputs = [each for each in (maps, weight, bias) if each is not None]

    def both(function: Callable[..., Tensor]) -> tuple[Tensor, tuple[Tensor, ...]]:
        out = function(maps, weight, bias, (stride, stride), (padding, padding), (dilation, dilation), groups)
        return out, torch.autograd.grad((out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum(), inputs)

    (found, of_found), (expected, of_expected) = both(convolve), both(F.conv2d)
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(of_found, of_expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


# --- BatchNorm in the convolution ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("smooth", [False, True])
def test_folding_changes_features_and_gradients_by_rounding_only(name: str, smooth: bool) -> None:
    folded = make(name).train()
    if smooth:
        without_edges(folded)
    plain = copy.deepcopy(folded)
    unfold_norms(plain.network)
    pairs = [each for each in folded.modules() if isinstance(getattr(each.forward, "__self__", None), FoldedPair)]
    assert len(pairs) == 2 * sum(isinstance(module, nn.BatchNorm2d) for module in folded.modules())
    assert not any(isinstance(getattr(each.forward, "__self__", None), FoldedPair) for each in plain.modules())
    for found, expected in zip(folded(images()), plain(images()), strict=True):
        assert relative(found, expected) < 1e-5
    ours, theirs = gradients(folded, images()), gradients(plain, images())
    assert ours.keys() == theirs.keys() and len(ours) > 10
    for name_, expected in theirs.items():
        # Where rounding moves a value over the edge of a ReLU6, one pixel's gradient comes or goes.
        assert relative(ours[name_], expected) < (1e-4 if smooth else 5e-3), name_


def test_statistics_that_follow_the_data_are_not_folded() -> None:
    folded = make("test_resnet", freeze_batch_norm="none").train()
    plain = copy.deepcopy(folded)
    unfold_norms(plain.network)
    for found, expected in zip(folded(images()), plain(images()), strict=True):
        assert torch.equal(found, expected)
    for ours, theirs in zip(folded.buffers(), plain.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_copy_folds_its_own_layers() -> None:
    backbone = make("test_resnet").eval()
    copied = copy.deepcopy(backbone)
    before = backbone(images())
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.mul_(1.5)
    after = backbone(images())
    assert not torch.equal(before[0], after[0])
    assert torch.equal(copied(images())[0], before[0])
    copied.load_state_dict(backbone.state_dict())
    assert torch.equal(copied(images())[0], after[0])


# --- layers that stand still -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_images_one_by_one_give_what_the_batch_gives(name: str) -> None:
    backbone = make(name, frozen_stride=4).train()
    assert is_chain(backbone.network, images(1))
    found = backbone(images(3))
    backbone.one_by_one = False
    for ours, expected in zip(found, backbone(images(3)), strict=True):
        assert relative(ours, expected) < 1e-5
        assert ours.shape == expected.shape


@pytest.mark.parametrize("name", NETWORKS)
def test_a_teacher_goes_on_from_the_same_beginning(name: str) -> None:
    backbone = make(name, frozen_stride=4).train()
    teacher = copy.deepcopy(backbone).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in backbone.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.5)
    assert backbone.begins_like(teacher)
    begun = backbone.begin(images())
    assert begun is not None and begun.links > 1
    for found, expected in zip(teacher(images(), None, begun), teacher(images()), strict=True):
        assert relative(found, expected) < 1e-6
    with torch.no_grad():
        next(parameter for parameter in teacher.parameters()).mul_(1.5)
    assert not backbone.begins_like(teacher)


def test_nothing_is_shared_where_statistics_follow_or_all_layers_learn() -> None:
    for fields in ({"freeze_batch_norm": "none", "frozen_stride": 4}, {"frozen_stride": 0}):
        backbone = make("test_resnet", **fields).train()
        begun = backbone.begin(images())
        assert begun is not None and begun.links == 0
