"""Evaluation of a model, whatever its method: in eval mode, and by recall alone where it names no classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from comastre.evaluation.evaluate import EvaluationPlan, evaluate
from comastre.evaluation.results import StepResult
from comastre.evaluation.scores import Miou
from comastre.segmentation import Segmentation, Size


class EvaluatedModel(Protocol):
    """The part of a method's model that evaluation uses."""

    def segment(
        self, images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> Sequence[Segmentation]: ...
    def modules(self) -> Iterator[nn.Module]: ...
    def eval(self) -> Any: ...


def evaluate_model(
    model: EvaluatedModel,
    plan: EvaluationPlan,
    device: torch.device | str = "cpu",
    recognises: bool = True,
    scored: Callable[[int], None] | None = None,
) -> StepResult:
    """`evaluate` in eval mode, after which the model's mode is restored; `recognises` where it names classes.

    `scored` is told how many images more are done.
    """

    def segment(
        images: Tensor, padding: Tensor | None, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> Sequence[Segmentation]:
        found = model.segment(images, padding, sizes, original_sizes)
        if scored is not None:
            scored(len(found))
        return found

    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        result = evaluate(segment, plan, device)
    finally:
        for module, training in modes.items():
            module.training = training  # one by one: frozen BatchNorm stays in eval mode inside a training model
    return result if recognises else recall_alone(result)


def recall_alone(result: StepResult) -> StepResult:
    """What there is to say of a model that proposes masks and recognises nothing: there is no mIoU."""
    nothing = Miou(base=math.nan, inc=None, all=math.nan)
    conventions = dict.fromkeys(result.conventions, nothing)
    return replace(result, conventions=conventions, per_class={}, errors={}, task_confusion=())
