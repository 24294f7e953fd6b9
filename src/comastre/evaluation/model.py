"""Evaluation of the two-stage segmenter; `evaluate` itself knows no model, so that any method can use it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.evaluation.evaluate import Prediction, evaluate
from comastre.evaluation.results import StepResult
from comastre.evaluation.scores import Miou
from comastre.methods.comastre.inference import Segmentation, segment
from comastre.methods.comastre.segmenter import Segmenter
from comastre.stream.scenario import Scenario


def as_prediction(segmentation: Segmentation, alpha: float) -> Prediction:
    """What evaluation needs of a segmentation whose proposals above `alpha` were recognised."""
    recognised = segmentation.class_scores.argmax(dim=1)
    classes = torch.where(segmentation.objectness > alpha, recognised, -1)
    return Prediction(segmentation.label_map, segmentation.proposal_masks(), segmentation.objectness, classes)


def evaluate_proposals(
    model: Segmenter,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    device: torch.device | str = "cpu",
    seconds: float = 0.0,
) -> StepResult:
    """Recall of a model that proposes masks and recognises nothing: there is no mIoU."""
    result = _evaluate(model, dataset, scenario, step, config, device, seconds)
    nothing = Miou(base=math.nan, inc=None, all=math.nan)
    conventions = dict.fromkeys(result.conventions, nothing)
    return replace(result, conventions=conventions, per_class={}, errors={}, task_confusion=())


def evaluate_model(
    model: Segmenter,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    device: torch.device | str = "cpu",
    seconds: float = 0.0,
) -> StepResult:
    """`evaluate` for the two-stage segmenter; recall alone where it is trained to propose only."""
    how = evaluate_proposals if "labels" not in config.spec.gives else _evaluate
    return how(model, dataset, scenario, step, config, device, seconds)


def _evaluate(
    model: Segmenter,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    device: torch.device | str,
    seconds: float,
) -> StepResult:
    """In eval mode; the model's mode is restored afterwards."""
    alpha = model.config.inference.alpha

    def predict(images: Tensor, padding: Tensor | None, sizes: Sequence[tuple[int, int]]) -> list[Prediction]:
        return [as_prediction(found, alpha) for found in segment(model, images, padding, sizes)]

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        return evaluate(predict, dataset, scenario, step, config, device=device, seconds=seconds)
    finally:
        for module, training in modes.items():
            module.training = training  # one by one: frozen BatchNorm stays in eval mode inside a training model
