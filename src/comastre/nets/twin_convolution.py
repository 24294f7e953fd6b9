"""Twin convolutions: two branches side by side that become one layer, as RCIL trains them.

While a twin is open, its output is a mix of both branches, each a convolution and its BatchNorm. Folding makes one
convolution with the same output; when it is opened again, that one stands still and the right branch learns on.
"""

from __future__ import annotations

import copy
from enum import Enum

import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, nn

from comastre.errors import UserError
from comastre.nets.deeplab import DeepLab
from comastre.nets.folded_norm import unfold_norms, with_norm


class Mode(Enum):
    """What a twin is made of at the moment."""

    FOLDED = "folded"
    """The left convolution alone."""
    BOTH_LEARN = "both_learn"
    """Two branches that learn, in a first step."""
    RIGHT_LEARNS = "right_learns"
    """The left convolution, still, and the right branch, in a later step."""


class TwinConvolution(nn.Module):
    """A convolution and its BatchNorm, twice; both begin as the given one."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.left, self.left_norm = convolution, norm
        self.right, self.right_norm = copy.deepcopy(convolution), copy.deepcopy(norm)
        # Only folding sets it; BatchNorm would take any bias away again.
        self.left.bias = nn.Parameter(convolution.weight.new_zeros(convolution.out_channels), requires_grad=False)
        self.mode = Mode.FOLDED
        self.shares: Tensor | None = None

    @property
    def channels(self) -> int:
        return self.left.out_channels

    def open(self, later: bool) -> None:
        """Train both branches, or in a later step the right one beside what was folded."""
        self.mode = Mode.RIGHT_LEARNS if later else Mode.BOTH_LEARN
        if later:
            self.left.requires_grad_(False)
            self.left_norm.requires_grad_(False)

    def draw(self, numbers: Tensor) -> None:
        """Choose for the next passes of training, by a number in 0..1 per channel, left, right, or half of both."""
        both = numbers >= 0.66
        left = (numbers < 0.33) + 0.5 * both
        self.shares = torch.stack([left, 1 - left]).to(self.left.weight.dtype)[:, None, :, None, None]

    def forward(self, features: Tensor) -> Tensor:
        left: Tensor = self.left(features)
        if self.mode is Mode.FOLDED:
            return left
        if self.mode is Mode.BOTH_LEARN:
            left = self.left_norm(left)
        right: Tensor = self.right_norm(self.right(features))
        if not self.training or self.shares is None:
            return (left + right) / 2
        return self.shares[0] * left + self.shares[1] * right

    @torch.no_grad()
    def fold(self) -> None:
        """Become one convolution with the output that both branches have outside training."""
        if self.mode is Mode.FOLDED:
            return
        assert self.left.bias is not None
        if self.mode is Mode.BOTH_LEARN:
            left, left_bias = with_norm(self.left, self.left_norm)
        else:
            left, left_bias = self.left.weight, self.left.bias
        right, right_bias = with_norm(self.right, self.right_norm)
        self.left.weight.copy_((left + right) / 2)
        self.left.bias.copy_((left_bias + right_bias) / 2)
        self.mode = Mode.FOLDED


# --- a network with twins --------------------------------------------------------------------------------------------


def twins_of(model: nn.Module) -> list[TwinConvolution]:
    """All twins of a model, in its order."""
    return [module for module in model.modules() if isinstance(module, TwinConvolution)]


def add_twins(model: DeepLab) -> None:
    """Make twins of the spatial convolutions of the backbone's blocks and of the pyramid's four convolutions."""
    unfold_norms(model.backbone.network)  # its pairs are taken apart
    for block in list(model.backbone.network.modules()):
        # Stems and shortcuts are plain sequences or children of the network itself.
        if not isinstance(block, nn.Sequential) and block is not model.backbone.network:
            _twin_the_block(block)
    if not twins_of(model):
        raise UserError(
            f"rcil folds convolutions with their BatchNorm, and {model.backbone.config.name} has none in its blocks: "
            "choose a backbone such as resnet50.tv_in1k or tf_efficientnet_lite0"
        )
    for branch in model.pyramid.branches:
        assert isinstance(branch, nn.Sequential)
        convolution, norm = branch[0], branch[1]
        assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        branch[0], branch[1] = TwinConvolution(convolution, norm), nn.Identity()


def _twin_the_block(block: nn.Module) -> None:
    """Twins of a block's convolutions over more than one pixel, each with the BatchNorm that follows it."""
    children = list(block.named_children())
    for place, (name, child) in enumerate(children):
        if not isinstance(child, nn.Conv2d) or child.kernel_size == (1, 1):
            continue
        behind = next((each for each in children[place + 1 :] if isinstance(each[1], nn.BatchNorm2d)), None)
        if behind is None:
            continue
        norm_name, norm = behind
        assert isinstance(norm, nn.BatchNorm2d)
        setattr(block, name, TwinConvolution(child, _plain(norm)))
        # timm's efficient networks have the activation in their BatchNorm.
        setattr(block, norm_name, norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity())


def _plain(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """A BatchNorm without the activation that timm may have put into it."""
    if not isinstance(norm, BatchNormAct2d):
        return norm
    plain = nn.BatchNorm2d(norm.num_features, norm.eps, norm.momentum)
    plain.load_state_dict(norm.state_dict())
    for ours, theirs in zip(plain.parameters(), norm.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return plain
