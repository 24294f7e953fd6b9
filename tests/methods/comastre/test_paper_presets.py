"""What the presets named after the paper's settings have, and where those for a CPU say otherwise."""

from typing import Any

import pytest

from comastre.config.settings import flatten, load_config, preset_names

PAPERS = [
    name for name in preset_names() if name.startswith(("voc-", "ade20k-", "coco-")) and not name.endswith("-cpu")
]
# As the paper prints it, as Mask2Former or CoMFormer has it, or as DyTox has it; and what small data was tuned with.
AS_PUBLISHED: dict[str, Any] = {
    "comastre.classification.loss": "focal",
    "comastre.classification.gamma": 2.0,
    "comastre.classification.cross_entropy": "binary",
    "comastre.classification.negatives_for_new": False,
    "comastre.classification.negatives_for_old": False,
    "comastre.classification.across_tasks": False,
    "comastre.classification.unlabelled_negatives": False,
    "comastre.inference.class_threshold": 0.0,
    "comastre.distillation.mask_loss": "printed",
    "comastre.distillation.class_direction": "new_old",
    "comastre.distillation.class_scores": "softmax",
    "comastre.distillation.spare_labelled": False,
    "comastre.weights.auxiliary": 0.1,
    "comastre.matching.objectness_cost": 0.0,
    "comastre.pixel_decoder.float32": True,
    "comastre.pixel_decoder.top_down": False,
    "backbone.freeze_batch_norm": "none",
    "backbone.freeze_batch_norm_weights": False,
}
TUNED: dict[str, dict[str, Any]] = {
    "shapes-6-2": {"comastre.distillation.mask_loss": "divergence", "backbone.freeze_batch_norm": "later"},
    "demo": {"comastre.distillation.mask_loss": "divergence", "backbone.freeze_batch_norm": "later"},
    "voc-15-1-cpu": {"comastre.distillation.mask_loss": "divergence", "backbone.freeze_batch_norm": "always"},
    "voc-15-5-cpu": {"comastre.distillation.mask_loss": "divergence", "backbone.freeze_batch_norm": "always"},
    "voc-19-1-cpu": {"comastre.distillation.mask_loss": "divergence", "backbone.freeze_batch_norm": "always"},
}


def fields(preset: str, **overrides: Any) -> dict[str, Any]:
    return flatten(load_config(preset, overrides).model_dump())


@pytest.mark.parametrize("preset", PAPERS)
def test_the_papers_presets_are_as_published(preset: str) -> None:
    found = fields(preset)
    assert {name: found[name] for name in AS_PUBLISHED} == AS_PUBLISHED
    # CoMFormer's release leaves ResNet-50 on detectron2's fixed BatchNorm; nothing else depends on the size.
    smaller = fields(preset, size="r50")
    fixed = {"backbone.freeze_batch_norm": "always", "backbone.freeze_batch_norm_weights": True}
    assert {name: smaller[name] for name in AS_PUBLISHED} == AS_PUBLISHED | fixed


@pytest.mark.parametrize("preset", TUNED)
def test_presets_for_a_cpu_keep_what_they_were_tuned_with(preset: str) -> None:
    found = fields(preset)
    assert {name: found[name] for name in TUNED[preset]} == TUNED[preset]
    assert not found["backbone.freeze_batch_norm_weights"]
