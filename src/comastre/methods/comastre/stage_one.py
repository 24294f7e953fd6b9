"""Stage 1 alone (paper Table 4): class-agnostic masks with objectness, for another run to start from."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from comastre.methods.comastre.config import DistillationConfig
from comastre.methods.comastre.method import TwoStageMethod, settings_of
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.protocol import Setup
from comastre.stream.scenario import Task

_CERTAIN = 20.0  # logit of its one class: sigmoid is 1 in single precision, so a segment's score is its objectness


class StageOneMethod(TwoStageMethod):
    """Learn to propose the masks of a task, whatever their classes are; stage 2 is never trained nor run."""

    def first_model(self, num_classes: int, pretrained: bool) -> Segmenter:
        model = build_segmenter(self.model_config(pretrained), [1])
        (classifier,) = model.class_decoder.classifiers
        assert isinstance(classifier, nn.Linear)
        nn.init.zeros_(classifier.weight)
        nn.init.constant_(classifier.bias, _CERTAIN)
        model.class_decoder.requires_grad_(False)
        return model

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        super().restore(task, model, state)
        assert isinstance(model, Segmenter)
        model.class_decoder.requires_grad_(False)


def objectness(setup: Setup) -> StageOneMethod:
    """All classes at once, none of them told apart."""
    loss = settings_of(setup).loss
    weights = loss.weights.model_copy(update={"classification": 0.0})
    alone = {"weights": weights, "distillation": DistillationConfig.none()}
    return StageOneMethod(setup, loss.model_copy(update=alone))
