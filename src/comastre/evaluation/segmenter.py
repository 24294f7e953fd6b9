"""Evaluation of the two-stage segmenter; `evaluate` itself knows no model, so that any method can use it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from comastre.config import RunConfig
from comastre.continual.scenario import Scenario
from comastre.data.dataset import SegmentationDataset
from comastre.evaluation.evaluate import Prediction, evaluate
from comastre.evaluation.results import StepResult
from comastre.model.inference import Segmentation, segment
from comastre.model.segmenter import Segmenter


def as_prediction(segmentation: Segmentation, alpha: float) -> Prediction:
    """What evaluation needs of a segmentation whose proposals above `alpha` were recognised."""
    recognised = segmentation.class_scores.argmax(dim=1)
    classes = torch.where(segmentation.objectness > alpha, recognised, -1)
    return Prediction(segmentation.label_map, segmentation.proposal_masks(), segmentation.objectness, classes)


def evaluate_model(
    model: Segmenter,
    dataset: SegmentationDataset,
    scenario: Scenario,
    step: int,
    config: RunConfig,
    device: torch.device | str = "cpu",
    seconds: float = 0.0,
) -> StepResult:
    """`evaluate` for the two-stage segmenter, in eval mode; the model's mode is restored afterwards."""
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
