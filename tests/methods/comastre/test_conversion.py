"""What a Mask2Former teaches the CoMasTRe that it becomes."""

import pytest
import torch

from comastre.config.sections import BackboneConfig
from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.losses.taught import split_classes, taught_classes
from comastre.methods.comastre.config import ComastreConfig
from comastre.methods.comastre.conversion import conversion
from comastre.methods.mask2former.config import Mask2FormerConfig
from comastre.methods.mask2former.model import build_model
from comastre.methods.protocol import Setup
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task


@pytest.mark.parametrize(("loss", "gamma"), [("focal", 2.0), ("cross_entropy", 0.0)])
def test_classes_learn_by_the_loss_that_lessons_have(loss: str, gamma: float) -> None:
    torch.manual_seed(0)
    backbone = BackboneConfig(name="test_resnet", weights="none")
    original = build_model(Mask2FormerConfig.model_validate(Mask2FormerConfig.for_size("tiny")), backbone, [2, 1])
    settings = ComastreConfig.model_validate({**ComastreConfig.for_size("tiny"), "classification": {"loss": loss}})
    method = conversion(Setup(backbone, settings, "tiny"))
    model = method.begin(Task(0, (1, 2, 3), (), (), (0,)), None, original)

    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    nothing = [torch.zeros(0, 64, 64, dtype=torch.bool)] * 2
    targets = Targets.stack(nothing, [torch.zeros(0, dtype=torch.long)] * 2, ["first", "second"])
    labels = torch.zeros(2, 64, 64, dtype=torch.uint8)
    points = PointSource(0, 0, slice(None), 2, "cpu")
    terms = method.losses(model, Batch(images, None, labels, targets, slice(0, 2), 2, 0), points)

    with torch.no_grad():
        stage_one = model.propose(images)
        proposals = stage_one.final
        objectness, classes = split_classes(original.class_head(proposals.embeddings))
        logits = model.recognise(stage_one.pixels, proposals.embeddings, proposals.mask_logits).class_logits
    torch.testing.assert_close(terms["classification"], taught_classes(logits, classes, objectness, gamma))
