"""BatchNorm that stands still gives what PyTorch's gives, and keeps nothing for the backward pass."""

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from comastre.nets.still_batch_norm import ease_batch_norm

KINDS = {"plain": nn.BatchNorm2d, "with-activation": BatchNormAct2d}


def build(kind: str, weights_learn: bool) -> tuple[nn.Sequential, nn.Sequential]:
    """PyTorch's or timm's own, and the same one eased."""
    generator = torch.Generator().manual_seed(0)
    pair = (nn.Sequential(KINDS[kind](5)), nn.Sequential(KINDS[kind](5)))
    for parameter in pair[0].parameters():
        nn.init.normal_(parameter, generator=generator)
    nn.init.normal_(pair[0][0].running_mean, generator=generator)
    nn.init.uniform_(pair[0][0].running_var, 0.1, 2, generator=generator)
    pair[1].load_state_dict(pair[0].state_dict())
    ease_batch_norm(pair[1])
    for model in pair:
        model.requires_grad_(weights_learn).eval()
    return pair


def pictures(channels_last: bool) -> Tensor:
    images = torch.randn(2, 5, 8, 6, generator=torch.Generator().manual_seed(1))
    return images.contiguous(memory_format=torch.channels_last) if channels_last else images


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("weights_learn", [False, True])
def test_results_and_gradients_are_those_of_torch(kind: str, channels_last: bool, weights_learn: bool) -> None:
    images = pictures(channels_last).requires_grad_()
    theirs, ours = build(kind, weights_learn)
    expected, found = theirs(images), ours(images)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(2))
    leaves = [[images, *model.parameters()] if weights_learn else [images] for model in (theirs, ours)]
    for one, other in zip(
        torch.autograd.grad(expected, leaves[0], upstream), torch.autograd.grad(found, leaves[1], upstream), strict=True
    ):
        torch.testing.assert_close(other, one)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), expected)


def test_its_input_is_not_kept() -> None:
    images = pictures(True).requires_grad_()
    kept: list[Tensor] = []

    def look(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    for model, count in zip(build("plain", weights_learn=False), (1, 0), strict=True):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
            model(images)
        assert sum(tensor.shape == images.shape for tensor in kept) == count


def test_in_training_it_is_torchs_own() -> None:
    theirs, ours = build("plain", weights_learn=True)
    assert torch.equal(theirs.train()(pictures(False)), ours.train()(pictures(False)))
    assert torch.equal(theirs[0].running_mean, ours[0].running_mean)
    with torch.autocast("cpu", torch.bfloat16):
        half = pictures(False).bfloat16()
        assert torch.equal(theirs.eval()(half), ours.eval()(half))
