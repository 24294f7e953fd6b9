"""A training step under bf16-mixed, as the loop runs it: what stays in float32, and that its losses are those of it."""

import pytest
import small_step as small
import torch
from lightning_fabric import Fabric

from comastre.config.settings import load_config
from comastre.methods.comastre.terms import total_loss


@pytest.mark.parametrize("float32", [True, False])
def test_bf16_mixed_keeps_the_pixel_decoder_in_float32_where_asked(float32):
    model, old = small.grow(small.first_learner(torch.float32))
    for each in (model, old):
        each.pixel_decoder.float32 = float32
    images, targets = small.new_batch(dtype=torch.float32)
    config = small.loss_config()
    exact = small.terms_of(model, old, images, targets, config)

    seen = {}
    parts = {
        "backbone": model.backbone,
        "pixel decoder": model.pixel_decoder.smooth[0],
        "encoder layer": model.pixel_decoder.layers[0].feedforward.expand,
        "mask decoder": model.mask_decoder.mask_head.layers[0],
        "old pixel decoder": old.pixel_decoder.smooth[0],
    }
    for name, part in parts.items():
        part.register_forward_hook(
            lambda _, __, found, name=name: seen.update({name: (found[-1] if name == "backbone" else found).dtype})
        )
    fabric = Fabric(accelerator="cpu", precision="bf16-mixed")
    with fabric.autocast():
        terms = small.terms_of(model, old, images, targets, config)
    kept = torch.float32 if float32 else torch.bfloat16
    assert seen == {
        "backbone": torch.bfloat16,
        "pixel decoder": kept,
        "encoder layer": kept,
        "mask decoder": torch.bfloat16,
        "old pixel decoder": kept,
    }
    assert terms.keys() == exact.keys()
    for name in ("objectness", "mask_bce", "mask_dice", "classification"):
        assert terms[name].dtype == torch.float32
        torch.testing.assert_close(terms[name], exact[name], rtol=0.1, atol=0.02)
    gradients = small.gradients_of(model, total_loss(terms, config.weights))
    assert gradients and all(gradient.isfinite().all() for gradient in gradients.values())


def test_the_papers_presets_keep_it_in_float32():
    for preset in ("voc-15-1", "voc-joint", "ade20k-100-10", "coco-objectness"):
        assert load_config(preset).method_settings.pixel_decoder.float32
