"""RCIL, "Representation Compensation Networks" (Zhang et al., CVPR 2022).

Spatial convolutions have a parallel twin. In training every channel is that of the left branch, of the right one, or
of half of both, by chance; after a step both are folded into one convolution with the same output. In later steps that
one stands still and the right branch learns on beside it. MiB's losses, and pooled cube distillation: squared maps are
compared after average pooling in space and over channels.

Decided here: MiB's balanced biases for new classes, as the paper describes; in the public code they are random and
only the weights are the background's: `biases: public_code`. The right branch begins as a copy of the left one and
keeps its weights from step to step, as there. Which branch a channel takes is drawn once for the batch of all
processes. Blocks of other backbones have their spatial convolutions doubled, as those of a ResNet have.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from comastre.losses.pod import fold_logits, growth, without_padding
from comastre.losses.points import PointSource
from comastre.losses.pooled_cube import channel_cube, spatial_cube
from comastre.losses.unbiased import unbiased_cross_entropy, unbiased_distillation
from comastre.methods.perpixel.config import RcilConfig
from comastre.methods.perpixel.method import PerPixelMethod, Seen
from comastre.methods.protocol import Setup
from comastre.nets.deeplab import DeepLab, shrink
from comastre.nets.twin_convolution import add_twins, twins_of
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task

_CHANNELS = 3  # that are pooled together
_MAPS, _FEATURE_MAPS = 6, 5  # over which each part averages: stages, head and logits; without logits


class Rcil(PerPixelMethod):
    """Twin branches, unbiased losses and pooled cubes."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings, RcilConfig)
        self.settings = setup.settings

    def new_model(self, setup: Setup, tasks: Sequence[int]) -> DeepLab:
        model = super().new_model(setup, tasks)
        add_twins(model)
        return model

    def start_new_classes(self, model: DeepLab) -> None:
        model.start_from_background(biases=self.settings.biases == "balanced")

    def enter(self, model: DeepLab, task: Task) -> None:
        super().enter(model, task)
        for twin in twins_of(model):
            twin.open(later=task.step > 0)

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        twins = twins_of(model)
        numbers = points.draw_shared(sum(twin.channels for twin in twins))
        for twin, own in zip(twins, numbers.split([twin.channels for twin in twins]), strict=True):
            twin.draw(own)
        return super().losses(model, batch, points)

    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        terms = {"cross_entropy": unbiased_cross_entropy(seen.logits, seen.labels, seen.num_old)}
        if self.settings.distillation > 0:
            terms["distillation"] = unbiased_distillation(seen.logits, seen.old_logits, seen.labels)
        return terms | self._cubes(seen)

    def _cubes(self, seen: Seen) -> dict[str, Tensor]:
        """The pooled cubes; the last maps, logits in space and head over channels, have a weight of their own."""
        assert seen.old is not None
        new, old, kernels = seen.output, seen.old, self.settings.kernels
        factor = growth(seen.num_classes, seen.num_classes - seen.num_old)
        pairs = list(zip((*new.stages, new.head), (*old.stages, old.head), strict=True))
        logits = (fold_logits(new.logits, seen.num_old), old.logits)

        def spatial(pair: tuple[Tensor, Tensor]) -> Tensor:
            return spatial_cube(*_shown(seen, pair), kernels).mean() / _MAPS

        def channel(pair: tuple[Tensor, Tensor]) -> Tensor:
            return channel_cube(*_shown(seen, pair), _CHANNELS).mean() / _FEATURE_MAPS

        terms = {}
        if self.settings.cube > 0:
            parts = [spatial(pair) for pair in pairs] + [channel(pair) for pair in pairs[:-1]]
            terms["cube"] = factor * torch.stack(parts).sum()
        if self.settings.last_cube > 0:
            terms["last_cube"] = factor * (spatial(logits) + channel(pairs[-1]))
        return terms

    def weights(self) -> dict[str, float]:
        names = ("distillation", "cube", "last_cube")
        return {"cross_entropy": 1.0} | {name: getattr(self.settings, name) for name in names}

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        for twin in twins_of(model):
            twin.fold()
        return super().after_training(task, model)


def _shown(seen: Seen, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Maps of both models with zeros in the padding."""
    padding = None if seen.padding is None else shrink(seen.padding, pair[0])
    return without_padding(pair[0], padding), without_padding(pair[1], padding)
