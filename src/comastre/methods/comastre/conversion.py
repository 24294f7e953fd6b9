"""A Mask2Former becomes CoMasTRe: its masks stay, and it teaches objectness and stage 2 what it knows, unlabelled.

Queries are the same ones, so nothing has to be matched: a query's own "no object" says how surely it is an object, its
other classes what it is (docs/specification.md, Imported models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.losses.taught import split_classes, taught_classes, taught_objectness
from comastre.methods.comastre.method import TwoStageMethod, adopt_stage_one, settings_of
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.mask2former.model import ClassHead, Mask2Former
from comastre.methods.optimiser import adamw
from comastre.methods.protocol import Setup
from comastre.methods.teacher import below, frozen_copy, state_of
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task

HEAD_RATE = 30.0
"""Times the rate of stage 2 (docs/experiments.md, Converting a Mask2Former)."""
_TEACHER = "teacher/"


class ConversionMethod(TwoStageMethod):
    """Stage 1 is that of `init` and stands still; its classifier, on the same queries, teaches the rest."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, settings_of(setup).loss)
        self.teacher: ClassHead | None = None

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> Segmenter:
        if not isinstance(init, Mask2Former):
            raise UserError("only a model of Mask2Former's kind can be converted: give another model")
        self.task = task
        model = build_segmenter(self.model_config(pretrained=False), init.tasks)
        adopt_stage_one(model, init)
        self.teacher = frozen_copy(init.class_head)
        for classifier in model.class_decoder.classifiers:
            # A query is of one class: each starts with its share, or the first iterations go into that alone. Focusing
            # makes logits smaller, by about this.
            share = -math.log(max(1, init.num_classes - 1)) / (1 + self.loss.classification.focus)
            nn.init.constant_(classifier.bias, share)  # type: ignore[arg-type]
        _hold_stage_one(model)
        return model

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        assert isinstance(model, Segmenter) and self.teacher is not None
        teacher = self.teacher.to(batch.images.device)
        with torch.no_grad():
            for part in (model.backbone, model.pixel_decoder, model.mask_decoder):
                part.eval()  # BatchNorm's statistics are part of the masks, too
            stage_one = model.propose(batch.images, batch.padding, every_layer=False)
            final = stage_one.final
            objectness, classes = split_classes(teacher(final.embeddings))
        recognised = model.recognise(stage_one.pixels, final.embeddings, final.mask_logits)
        return {
            "objectness": taught_objectness(
                model.mask_decoder.objectness_head(final.embeddings).squeeze(-1), objectness
            ),
            "classification": taught_classes(
                recognised.class_logits, classes, objectness, self.loss.classification.focus
            ),
        }

    def weights(self) -> Mapping[str, float]:
        """None: the two terms share no weights."""
        return {"objectness": 1.0, "classification": 1.0}

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        """The objectness head, a single layer on features that stand still, has a rate of its own."""
        assert isinstance(model, Segmenter)
        config = self.settings.optimiser
        optimiser, rate = adamw([model.class_decoder], config, step), config.rate(step)
        head = {"params": list(model.mask_decoder.objectness_head.parameters()), "weight_decay": 0.0}
        optimiser.add_param_group({**head, "scale": HEAD_RATE, "base_lr": rate, "lr": HEAD_RATE * rate})
        return optimiser

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        self.teacher = None
        return model

    # --- a kill ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        return state_of(self.teacher, _TEACHER)

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, Segmenter)
        self.task, self.teacher = task, None
        _hold_stage_one(model)
        found = below(state, _TEACHER)
        if found:
            self.teacher = frozen_copy(ClassHead(model.config.pixel_decoder.dim, model.tasks))
            self.teacher.load_state_dict(found)


def conversion(setup: Setup) -> ConversionMethod:
    """For the run that converts."""
    return ConversionMethod(setup)


def _hold_stage_one(model: Segmenter) -> None:
    """Only objectness and stage 2 learn."""
    model.requires_grad_(False)
    learning = chain(model.mask_decoder.objectness_head.parameters(), model.class_decoder.parameters())
    for parameter in learning:
        parameter.requires_grad_(True)
