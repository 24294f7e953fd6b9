"""CoMasTRe, and the two ends of its scale: plain fine-tuning and joint training, on the same two-stage segmenter."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from comastre.config.run import ClassificationConfig, DistillationConfig, LossConfig, ModelConfig, RunConfig
from comastre.losses.points import PointSource
from comastre.methods.comastre.objective import Terms, compute_terms, total_loss
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task


class TwoStageMethod:
    """Learn a task with the configured losses; what is kept of the old model is a matter of their switches."""

    def __init__(self, name: str, config: RunConfig, loss: LossConfig, annotated_old: tuple[int, ...] = ()) -> None:
        """`annotated_old` are past classes (indices in learning order) that the data labels too."""
        self.name = name
        self.config = config
        self.loss = loss
        self.annotated_old = annotated_old
        self.old_model: Segmenter | None = None

    def begin(self, task: Task, previous: Segmenter | None) -> Segmenter:
        """The model that learns `task`: built for the first, grown from the last step's for later ones."""
        if previous is None:
            model = build_segmenter(self.model_config, [len(task.new_classes)])
            if self.config.init is not None and self.loss.distillation.from_init:
                self.old_model = _frozen_copy(model)  # gets the weights of `init` when the model does
            return model
        if self.keeps_old_model:
            self.old_model = _frozen_copy(previous)
        previous.add_task(len(task.new_classes))
        return previous

    @property
    def model_config(self) -> ModelConfig:
        """The configured model; with `init` the backbone's weights come from there and are not looked for."""
        model = self.config.model
        if self.config.init is None:
            return model
        return model.model_copy(update={"backbone": model.backbone.model_copy(update={"weights": "none"})})

    @property
    def keeps_old_model(self) -> bool:
        ours = self.loss.classification
        return self.loss.distillation != DistillationConfig.none() or ours.negatives_for_new or ours.across_tasks

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> Terms:
        """Named, unweighted terms of one batch; `model` may be wrapped for several devices."""
        segmenter = _unwrap(model)
        # Past classes stay annotated in the sequential protocol only.
        annotated_from = 0 if self.config.continual.protocol == "sequential" else None

        def work() -> dict[str, Tensor]:
            terms = compute_terms(
                segmenter,
                self.old_model,
                batch.images,
                batch.padding,
                batch.targets,
                points,
                self.loss,
                annotated_from,
                self.annotated_old,
            )
            return dict(terms.items())

        return Terms(**model(work))

    def weigh(self, terms: Terms) -> Tensor:
        return total_loss(terms, self.loss.weights)


def comastre(config: RunConfig) -> TwoStageMethod:
    """The paper's method, with the switches of the configuration."""
    return TwoStageMethod("comastre", config, config.loss)


def finetune(config: RunConfig) -> TwoStageMethod:
    """The same segmenter and losses on new classes, with nothing that remembers."""
    nothing_old = dict.fromkeys(("negatives_for_new", "negatives_for_old", "across_tasks"), False)
    classification = config.classification.model_dump() | nothing_old
    loss = config.loss.model_copy(
        update={
            "distillation": DistillationConfig.none(),
            "classification": ClassificationConfig.model_validate(classification),
        }
    )
    return TwoStageMethod("finetune", config, loss)


def joint(config: RunConfig) -> TwoStageMethod:
    """All classes at once: the ceiling."""
    return TwoStageMethod("joint", config, config.loss)


def _frozen_copy(model: Segmenter) -> Segmenter:
    """The last step's model as it is used from now on: fixed, in eval mode, without its training-only head."""
    old = copy.deepcopy(model)
    old.auxiliary_head = None
    return old.eval().requires_grad_(False)


def _unwrap(model: Any) -> Segmenter:
    while not isinstance(model, Segmenter):
        model = model.module
    return model
