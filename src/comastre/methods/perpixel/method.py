"""What the per-pixel methods have in common: DeepLabv3, its growth, the frozen old model, and their survival."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.losses.unbiased import cross_entropy
from comastre.methods.optimiser import sgd
from comastre.methods.perpixel.config import DeepLabConfig
from comastre.methods.protocol import Method, Setup
from comastre.methods.teacher import below, frozen_copy, state_of
from comastre.nets.backbone import Backbone
from comastre.nets.deeplab import DeepLab, DeepLabOutput, resize
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task


@dataclass(frozen=True)
class Seen:
    """One batch as the models see it."""

    output: DeepLabOutput
    logits: Tensor
    """(B, 1 + C, H, W) at the size of the labels."""
    labels: Tensor
    """(B, H, W) long: 0 background, k + 1 class k, 255 ignored or padded."""
    padding: Tensor | None
    """(B, H, W) bool, true outside an image."""
    old: DeepLabOutput | None
    """Of the old model; None in a first step, and for a method that forgets it."""

    @property
    def num_classes(self) -> int:
        """Background and all classes."""
        return self.logits.shape[1]

    @property
    def num_old(self) -> int:
        """Background and the classes that the old model knows."""
        assert self.old is not None
        return self.old.logits.shape[1]

    @property
    def old_logits(self) -> Tensor:
        """(B, num_old, H, W) at the size of the labels."""
        assert self.old is not None
        return resize(self.old.logits, self.labels.shape[-2:])


class PerPixelMethod(Method):
    """Plain cross-entropy in the first step; a subclass says what later steps are."""

    keeps_old_model: ClassVar[bool] = True

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.settings, DeepLabConfig)
        self.setup = setup
        self.head = setup.settings.head
        self.task: Task | None = None
        self.old_model: DeepLab | None = None

    # --- the model ---------------------------------------------------------------------------------------------------

    def build(self, tasks: Sequence[int]) -> DeepLab:
        return self.new_model(self.setup.without_weights(), tasks)

    def new_model(self, setup: Setup, tasks: Sequence[int]) -> DeepLab:
        """A model with fresh classifiers, and with the backbone's weights if the setup has them."""
        backbone = Backbone(setup.backbone, self.head.output_stride)
        return DeepLab(backbone, self.head.channels, self.head.rates, tasks)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> DeepLab:
        """With `init`, backbone and pyramid start as that model's."""
        self.task, self.old_model = task, None
        if previous is None:
            setup = self.setup if init is None else self.setup.without_weights()
            model = self.new_model(setup, [len(task.new_classes)])
            if init is not None:
                _adopt(model, init)
        else:
            assert isinstance(previous, DeepLab)
            if self.keeps_old_model:
                self.old_model = frozen_copy(previous)
            model = previous
            model.add_task(len(task.new_classes))
            model.to(model.classifiers[0].weight.device)  # type: ignore[arg-type]
            self.start_new_classes(model)
        self.enter(model, task)
        return model

    def start_new_classes(self, model: DeepLab) -> None:
        """Where the newest classifier begins; by default at random."""

    def enter(self, model: DeepLab, task: Task) -> None:
        """Set what the model holds still during `task`, at its beginning and when going on."""
        model.backbone.enter_step(task.step)

    # --- training ----------------------------------------------------------------------------------------------------

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        assert isinstance(model, DeepLab)
        seen = self.look(model, batch)
        return self.first_terms(model, seen) if seen.old is None else self.later_terms(model, seen)

    def look(self, model: DeepLab, batch: Batch) -> Seen:
        """Both models on a batch."""
        old = None
        if self.old_model is not None:
            with torch.no_grad():
                old = self.old_model(batch.images, batch.padding)
        output = model(batch.images, batch.padding)
        labels = batch.labels.long()
        return Seen(output, resize(output.logits, labels.shape[-2:]), labels, batch.padding, old)

    def first_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        """Terms of the first step."""
        return {"cross_entropy": cross_entropy(seen.logits, seen.labels)}

    @abstractmethod
    def later_terms(self, model: DeepLab, seen: Seen) -> dict[str, Tensor]:
        """Terms of later steps, with an old model."""

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        config = self.setup.settings
        assert isinstance(config, DeepLabConfig)
        return sgd(model, config.optimiser, step, config.optimiser.momentum, config.optimiser.nesterov)

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """The teacher has done its work."""
        self.old_model = None
        return model

    # --- a kill ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return state_of(self.old_model)

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, DeepLab)
        self.task, self.old_model = task, None
        old = below(state)
        if old:
            self.old_model = frozen_copy(self.build(model.tasks[:-1]))
            self.old_model.load_state_dict(old)
            self.old_model.to(next(model.parameters()).device)
        if task is not None:
            self.enter(model, task)


def _adopt(model: DeepLab, given: nn.Module) -> None:
    """Give `model` backbone and pyramid of `given`, which must be built alike."""
    if not isinstance(given, DeepLab):
        raise UserError(
            "--init is a model that proposes masks, but this method labels pixels: give a model of a per-pixel method"
        )
    for part in ("backbone", "pyramid"):
        ours, theirs = getattr(model, part).state_dict(), getattr(given, part).state_dict()
        shapes = [{name: tuple(tensor.shape) for name, tensor in state.items()} for state in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"--init does not fit: its {part} has other layers; give the same --backbone.name and head fields, "
                "or start from another model"
            )
        getattr(model, part).load_state_dict(theirs)
