"""CoMFormer, and its adaptations of MiB and PLOP: the losses of Mask2Former, and what the old model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from comastre.losses.pod import pod_distance
from comastre.losses.points import PointSource
from comastre.losses.query_distillation import query_distillation
from comastre.losses.reduce import mean_over
from comastre.methods.comformer.config import ComformerConfig
from comastre.methods.comformer.pseudo_labels import with_pseudo_labels
from comastre.methods.mask2former.method import QueryMethod
from comastre.methods.mask2former.model import Mask2Former, Prediction
from comastre.methods.mask2former.objective import supervise
from comastre.methods.protocol import Setup
from comastre.methods.teacher import below, frozen_copy, state_of
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task


@dataclass(frozen=True)
class Memory:
    """What of the old model a variant keeps."""

    pseudo_labels: bool = False
    """Its masks are ground truth where nothing is labelled."""
    unbiased_labels: bool = False
    """A query without a mask may be of an old class that is not labelled."""
    classes: Literal["distillation", "unbiased_distillation"] | None = None
    """The term that distils classes."""
    features: bool = False
    """Pooled features are distilled."""


class ComformerMethod(QueryMethod):
    """Learn a task's labels, with the model of the step before at hand."""

    def __init__(self, setup: Setup, memory: Memory) -> None:
        super().__init__(setup)
        assert isinstance(setup.settings, ComformerConfig)
        self.own = setup.settings
        self.memory = memory
        self.old_model: Mask2Former | None = None

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> Mask2Former:
        self.old_model = None
        if previous is not None:
            assert isinstance(previous, Mask2Former)
            self.old_model = frozen_copy(previous)
        return super().begin(task, previous, init)

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        if self.old_model is None:
            return super().losses(model, batch, points)
        assert isinstance(model, Mask2Former) and self.task is not None
        memory, weights, softmax_masks = self.memory, self.own.weights, self.own.mask_decoder.softmax_masks
        with torch.no_grad():
            old = self.old_model(batch.images, batch.padding, every_layer=False)
        targets = batch.targets
        if memory.pseudo_labels:
            targets = with_pseudo_labels(targets, old, batch.labels, self.own.pseudo_labels, softmax_masks)
        predicted = model(batch.images, batch.padding)
        hidden = self._hidden(predicted) if memory.unbiased_labels else None
        terms = supervise(predicted, targets, points, self.own, softmax_masks, hidden)
        if memory.classes is not None and getattr(weights, memory.classes):
            gamma = self.own.distillation.gamma if memory.classes == "distillation" else 0.0
            terms[memory.classes] = query_distillation(predicted.class_logits[-1], old.class_logits[-1], gamma)
        if memory.features and weights.pod:
            terms["pod"] = _feature_distillation(predicted, old, model.tasks[-1] / model.num_classes)
        return terms

    def _hidden(self, predicted: Prediction) -> Tensor:
        """(C + 1,) bool: old classes that the images show but do not label."""
        assert self.task is not None
        places = torch.arange(predicted.num_classes + 1)
        unlabelled = (places < len(self.task.old_classes)) & ~torch.isin(places, torch.tensor(self.task.labelled_old))
        return unlabelled.to(predicted.class_logits.device, non_blocking=True)

    def weights(self) -> Mapping[str, float]:
        return self.own.weights.model_dump()

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """The teacher has done its work."""
        self.old_model = None
        return model

    # --- a kill ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return state_of(self.old_model)

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        super().restore(task, model, state)
        assert isinstance(model, Mask2Former)
        self.old_model = None
        old = below(state)
        if old:
            device = next(model.parameters()).device
            self.old_model = frozen_copy(self.build(model.tasks[:-1])).to(device)
            self.old_model.load_state_dict(old)


def comformer(setup: Setup) -> ComformerMethod:
    """Adaptive distillation and mask-based labels."""
    return ComformerMethod(setup, Memory(pseudo_labels=True, classes="distillation"))


def mib_mask(setup: Setup) -> ComformerMethod:
    """MiB, as CoMFormer's tables have it."""
    return ComformerMethod(setup, Memory(unbiased_labels=True, classes="unbiased_distillation"))


def plop_mask(setup: Setup) -> ComformerMethod:
    """PLOP, as CoMFormer's tables have it."""
    return ComformerMethod(setup, Memory(pseudo_labels=True, features=True))


def _feature_distillation(predicted: Prediction, old: Prediction, new_share: float) -> Tensor:
    """Mean distance of pooled features, times sqrt(new classes / all): the inverse of PLOP's own factor."""
    distances = [pod_distance(new, before) for new, before in zip(predicted.features, old.features, strict=True)]
    per_image = torch.stack(distances).mean(0)  # (B,)
    return new_share**0.5 * mean_over(per_image, torch.ones_like(per_image))
