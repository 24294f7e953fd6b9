"""A backbone's stages before their last activation, where a stage ends with one, as the blocks of a ResNet do."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from comastre.nets.backbone import Backbone

Stages = tuple[Tensor, Tensor, Tensor, Tensor]


class Tap(nn.Module):
    """An activation that keeps what it was given until somebody takes it."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        if isinstance(activation, (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.SiLU, nn.Hardswish)):
            activation.inplace = False  # or what is kept would be what comes out
        self.kept: Tensor | None = None

    def forward(self, features: Tensor) -> Tensor:
        self.kept = features
        out: Tensor = self.activation(features)
        return out

    def take(self) -> Tensor:
        kept, self.kept = self.kept, None
        assert kept is not None
        return kept


class StageTaps:
    """The taps of a backbone's four stages; None for a stage that ends without an activation."""

    def __init__(self, taps: tuple[Tap | None, ...]) -> None:
        self.taps = taps

    def collect(self, features: Stages) -> Stages:
        """The stages of the pass that gave these features, before their last activation where they have one."""
        pairs = zip(self.taps, features, strict=True)
        return cast(Stages, tuple(feature if tap is None else tap.take() for tap, feature in pairs))


def tap_stages(backbone: Backbone) -> StageTaps:
    """Taps on the last activation of `layer1` to `layer4` of a ResNet; other networks' stages are taken as they are."""
    taps: list[Tap | None] = []
    backbone.one_by_one = False  # a tap keeps what it was given last, which must be the whole batch
    for stage in range(1, 5):
        layer = getattr(backbone.network, f"layer{stage}", None)
        block = layer[-1] if isinstance(layer, nn.Sequential) else None
        # The activation behind the sum of a Bottleneck or a BasicBlock of timm.
        name = next((name for name in ("act3", "act2") if isinstance(getattr(block, name, None), nn.Module)), None)
        if block is None or name is None:
            taps.append(None)
            continue
        tap = Tap(getattr(block, name))
        setattr(block, name, tap)
        taps.append(tap)
    return StageTaps(tuple(taps))
