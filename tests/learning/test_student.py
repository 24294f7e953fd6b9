"""New models to learn with: built as those whose settings were measured."""

import pytest

from comastre.config.settings import load_config
from comastre.learning.starting_model import open_model


@pytest.mark.parametrize(("size", "preset"), [("tiny", "shapes-6-2"), ("small", "voc-15-5-cpu")])
def test_a_new_model_is_built_as_the_preset_of_its_size(size, preset):
    student = open_model(f"new:{size}")
    expected = load_config(preset).model
    assert student.known is None and student.config == expected


def test_nothing_of_a_random_backbone_stands_still():
    backbone = open_model("new:small", "none").config.backbone
    assert backbone.weights == "none" and not backbone.frozen_batch_norm and backbone.frozen_stride == 0


def test_statistics_of_a_pretrained_backbone_stand_still():
    assert open_model("new:r50").config.backbone.frozen_batch_norm
