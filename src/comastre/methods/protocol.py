"""What a method is: few verbs, which the loop, bundles, `learn` and evaluation call without asking which one it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.config.sections import BackboneConfig, MethodConfig
from comastre.losses.points import PointSource
from comastre.segmentation import Segmentation, Size
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task

Batches = Callable[[], Iterator[Batch]]
"""One pass over the images of a task, in this process's share, each time it is called."""


@dataclass(frozen=True)
class Setup:
    """What a method is built from: the shared backbone, its own section, and the name of the size that filled both."""

    backbone: BackboneConfig
    settings: MethodConfig
    size: str = "r101"

    def without_weights(self) -> Setup:
        """For a structure whose numbers come from elsewhere."""
        return replace(self, backbone=self.backbone.without_weights())


@runtime_checkable
class SegmentationModel(Protocol):
    """What a method's model (a torch module) offers beside its weights."""

    @property
    def tasks(self) -> tuple[int, ...]:
        """Classes of each task learned so far."""

    def segment(
        self,
        images: Tensor,
        padding: Tensor | None = None,
        sizes: Sequence[Size] | None = None,
        original_sizes: Sequence[Size] | None = None,
    ) -> list[Segmentation]:
        """What it sees in images (B, 3, H, W), uint8 or in 0..1.

        `padding` (B, H, W) is true outside an image of a mixed batch, `sizes` are the parts that hold pixels, and
        `original_sizes` those of the results where images were resized before.
        """


class Method(ABC):
    """Learns a stream task by task; a subclass says how. State lives here, weights in the model."""

    images_per_class: int | None = None
    """How many images of each class are enough for `gather`; None for every image of a task."""

    @property
    def gathers(self) -> bool:
        """Whether `gather` looks at images at all, so that a time limit must count it."""
        return type(self).gather is not Method.gather

    @abstractmethod
    def build(self, tasks: Sequence[int]) -> nn.Module:
        """A model's structure after tasks of so many classes; its numbers come from a bundle or a checkpoint."""

    @abstractmethod
    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> nn.Module:
        """The model that learns `task`: new for the first, grown from `previous` for later ones.

        `init` is a model of the user's that a first step starts from; refuse with a `UserError` what does not fit.
        """

    @abstractmethod
    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        """Named, unweighted terms of one batch; a term of weight 0 is not computed.

        Nothing to learn from gives exact zeros that keep the graph whole, or several processes wait for each other.
        """

    @abstractmethod
    def weights(self) -> Mapping[str, float]:
        """Factor of every term in the total."""

    @abstractmethod
    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        """The optimiser of a step, with each group's rate at the step's start."""

    def training_modules(self) -> nn.Module | None:
        """Layers that learn together with the model but are no part of it, such as an auxiliary head."""
        return None

    def before_training(self, model: nn.Module, batches: Batches) -> None:  # noqa: B027 (most methods need none)
        """Look at a task's images before the first iteration, such as for thresholds; not called when resuming."""

    def look_back(self, model: nn.Module, batches: Batches) -> None:  # noqa: B027
        """Look at a task's images after the last iteration, such as for prototypes; `after_training` follows."""

    def gather(self, model: nn.Module, images: Batches) -> None:  # noqa: B027
        """Look at every image of a task once after the last iteration: whole, and as predictions see it."""

    def adopt(self, model: nn.Module, images: Batches) -> nn.Module:
        """The model of a first step that another method trained, as one of this method's own.

        `images` are those of that step, as `gather` sees them; none where nobody has them any more.
        """
        return model

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """The model as it is evaluated and kept, after the last iteration of `task`."""
        return model

    def remarks(self, seconds: float = 0.0) -> tuple[str, ...]:
        """What to tell the user after a model was adopted and after a step that took so long, a sentence each."""
        return ()

    def state(self) -> dict[str, Tensor]:
        """What must survive a kill beside the model: an old model, prototypes, thresholds."""
        return {}

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Be as when `state` was taken: in the middle of `task` with its `model`, or between two tasks (None)."""

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the terms."""
        factors = self.weights()
        return torch.stack([factors[name] * value for name, value in terms.items()]).sum()
