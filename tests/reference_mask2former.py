"""transformers' Mask2Former with random weights, small, for tests that compare with it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

NAMES = ("wall", "sky", "car", "dog", "tree")
TINY = {
    "feature_size": 64,
    "mask_feature_size": 64,
    "hidden_dim": 64,
    "encoder_feedforward_dim": 96,
    "dim_feedforward": 128,
    "encoder_layers": 1,
    "decoder_layers": 4,
    "num_attention_heads": 4,
    "num_queries": 12,
}
STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}


@cache
def make_reference(backbone: str) -> Any:
    """A model whose numbers are large enough to tell apart, also where training starts from zeros; in eval mode."""
    transformers = pytest.importorskip("transformers", reason="parity needs transformers (the dev extra)")
    if backbone == "swin":
        described = transformers.SwinConfig(drop_path_rate=0.0, **STAGES)
    else:
        sizes = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "embedding_size": 64}
        described = transformers.ResNetConfig(layer_type="basic", **sizes, **STAGES)
    config = transformers.Mask2FormerConfig(
        backbone_config=described,
        id2label=dict(enumerate(NAMES)),
        label2id={name: number for number, name in enumerate(NAMES)},
        train_num_points=160,
        **TINY,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = transformers.Mask2FormerForUniversalSegmentation(config).eval()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.02)
            elif "mask_embedder" in name or "mask_projection" in name:
                torch.nn.init.kaiming_uniform_(parameter, a=1)
            elif "attention_weights" in name or "sampling_offsets" in name or "position_bias_table" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        torch.nn.init.normal_(model.class_predictor.weight, std=0.8)
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                # transformers starts them near zero, which would leave nothing to compare.
                torch.nn.init.uniform_(module.weight, 0.5, 1.0)
                torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
                torch.nn.init.normal_(module.running_mean, std=0.1)
    return model
