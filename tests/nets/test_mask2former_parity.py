"""Our stage 1 gives the numbers of transformers' Mask2Former for the same weights."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from comastre.bundle.mask2former import convert_mask2former
from comastre.errors import UserError
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter

transformers = pytest.importorskip("transformers", reason="parity needs transformers (the dev extra)")

TINY = {
    "feature_size": 64,
    "mask_feature_size": 64,
    "hidden_dim": 64,
    "encoder_feedforward_dim": 96,
    "dim_feedforward": 128,
    "encoder_layers": 2,
    "decoder_layers": 5,
    "num_attention_heads": 4,
    "num_queries": 12,
}
R50 = {"encoder_layers": 6, "decoder_layers": 10, "num_queries": 100}
BACKBONES = {
    "tiny": {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]},
    "r50": {"layer_type": "bottleneck", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]},
}


def make_reference(name: str) -> torch.nn.Module:
    """A Mask2Former with random weights everywhere, also where training starts from zeros."""
    backbone = transformers.ResNetConfig(
        **BACKBONES[name], embedding_size=64, out_features=["stage1", "stage2", "stage3", "stage4"]
    )
    config = transformers.Mask2FormerConfig(backbone_config=backbone, **(TINY if name == "tiny" else R50))
    torch.manual_seed(0)
    model = transformers.Mask2FormerModel(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "sampling_offsets" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
            elif "attention_weights" in parameter_name or "level_embed" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            elif parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.02)
            elif "mask_embedder" in parameter_name or "mask_projection" in parameter_name:
                torch.nn.init.kaiming_uniform_(parameter, a=1)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # transformers starts them near zero, which would leave nothing to compare.
                torch.nn.init.uniform_(module.weight, 0.5, 1.0)
                torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
                torch.nn.init.normal_(module.running_mean, std=0.1)
    return model


@pytest.fixture(scope="module", params=["tiny", "r50"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Segmenter]:
    reference = make_reference(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    reference.save_pretrained(folder)
    weights = convert_mask2former(folder)
    ours = build_segmenter(weights.config, tasks=[5])
    weights.load_into(ours)
    return reference, ours.eval()


@pytest.mark.parametrize("size", [(128, 160), (150, 101)], ids=["divisible", "odd"])
def test_every_layer_equals_mask2former(pair: tuple[torch.nn.Module, Segmenter], size: tuple[int, int]) -> None:
    reference, ours = pair
    images = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        # In double precision, both: a mask that guides attention ends at 0, and where rounding moves a logit over it
        # all that follows changes. In single precision the reference itself is 0.016 off for one of these images.
        exact = copy.deepcopy(reference).double()
        expected = exact(ours.backbone.normalise(images, None).double(), output_hidden_states=True)
        stage_one, single = copy.deepcopy(ours).double().propose(images.double()), ours.propose(images)

    pairs = zip(stage_one.pixels.levels, single.pixels.levels, expected.pixel_decoder_hidden_states, strict=True)
    for level, in_single, theirs in pairs:
        assert (level - theirs).abs().max() < 1e-4
        assert (in_single - theirs).abs().max() < 1e-4
    for pixels in (stage_one.pixels, single.pixels):
        assert (pixels.mask_features - expected.pixel_decoder_last_hidden_state).abs().max() < 1e-4
    assert len(stage_one.layers) == len(single.layers) == len(expected.masks_queries_logits)
    for layer, theirs in zip(stage_one.layers, expected.masks_queries_logits, strict=True):
        assert layer.mask_logits.std() > 0.1  # there is something to compare
        assert (layer.mask_logits - theirs).abs().max() < 1e-4
    # Nothing has guided attention before the first layer's masks.
    assert (single.layers[0].mask_logits - expected.masks_queries_logits[0]).abs().max() < 1e-4


def test_fast_inference_path_equals_every_layer_path(pair: tuple[torch.nn.Module, Segmenter]) -> None:
    ours = pair[1]
    images = torch.rand(1, 3, 96, 130, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        full, fast = ours.propose(images), ours.propose(images, every_layer=False)
    assert len(fast.layers) == 1
    torch.testing.assert_close(fast.final.mask_logits, full.final.mask_logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(fast.final.objectness_logits, full.final.objectness_logits, atol=1e-4, rtol=0)


def test_converter_says_what_it_cannot_convert(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.json"):
        convert_mask2former(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "maskformer"}))
    with pytest.raises(UserError, match="'maskformer' checkpoint, not a mask2former"):
        convert_mask2former(tmp_path)
    config = transformers.Mask2FormerConfig(backbone_config=transformers.SwinConfig(embed_dim=48), **TINY).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin' is a pickle"):
        convert_mask2former(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"has no \.safetensors file"):
        convert_mask2former(tmp_path)
    save_file({"nothing": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="'swin' backbone"):
        convert_mask2former(tmp_path)


@pytest.mark.parametrize("pair", ["tiny"], indirect=True)
def test_weights_for_another_architecture_are_refused(pair: tuple[torch.nn.Module, Segmenter], tmp_path: Path) -> None:
    reference, ours = pair
    reference.save_pretrained(tmp_path)
    weights = convert_mask2former(tmp_path)
    layers = ours.config.mask_decoder.layers - 1
    smaller = build_segmenter(
        ours.config.model_copy(update={"mask_decoder": ours.config.mask_decoder.model_copy(update={"layers": layers})}),
        tasks=[5],
    )
    with pytest.raises(UserError, match=r"do not know 'mask_decoder\.layers"):
        weights.load_into(smaller)
