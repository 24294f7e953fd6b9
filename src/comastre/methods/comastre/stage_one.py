"""Stage 1 alone (paper Table 4): class-agnostic masks with objectness, for another run to start from."""

from __future__ import annotations

from torch import nn

from comastre.config.run import DistillationConfig, RunConfig
from comastre.methods.comastre.method import TwoStageMethod
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.stream.scenario import Task

_CERTAIN = 20.0  # logit of its one class: sigmoid is 1 in single precision, so a segment's score is its objectness


class StageOneMethod(TwoStageMethod):
    """Learn to propose the masks of a task, whatever their classes are; stage 2 is never trained nor run."""

    def begin(self, task: Task, previous: Segmenter | None) -> Segmenter:
        if previous is not None:
            raise ValueError("stage 1 alone has one step")
        model = build_segmenter(self.model_config, [1])
        (classifier,) = model.class_decoder.classifiers
        assert isinstance(classifier, nn.Linear)
        nn.init.zeros_(classifier.weight)
        nn.init.constant_(classifier.bias, _CERTAIN)
        model.class_decoder.requires_grad_(False)
        return model


def objectness(config: RunConfig) -> StageOneMethod:
    """All classes at once, none of them told apart."""
    weights = config.weights.model_copy(update={"classification": 0.0})
    loss = config.loss.model_copy(update={"weights": weights, "distillation": DistillationConfig.none()})
    return StageOneMethod("objectness", config, loss)
