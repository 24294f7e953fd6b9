"""Start from a public Mask2Former: its transformers checkpoint becomes our stage 1 weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from comastre.errors import UserError
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter

_RESNETS = {
    ("basic", (2, 2, 2, 2)): "resnet18.tv_in1k",
    ("basic", (3, 4, 6, 3)): "resnet34.tv_in1k",
    ("bottleneck", (3, 4, 6, 3)): "resnet50.tv_in1k",
    ("bottleneck", (3, 4, 23, 3)): "resnet101.tv_in1k",
    ("bottleneck", (3, 8, 36, 3)): "resnet152.tv_in1k",
}

# Theirs to ours, tried in order; a name that no rule changes has no place in stage 1.
_RULES: tuple[tuple[str, str], ...] = (
    (r"^pixel_level_module\.encoder\._backbone\.", "backbone.network."),
    (r"^pixel_level_module\.encoder\.embedder\.embedder\.convolution\.", "backbone.network.conv1."),
    (r"^pixel_level_module\.encoder\.embedder\.embedder\.normalization\.", "backbone.network.bn1."),
    (r"^pixel_level_module\.encoder\.encoder\.stages\.", "backbone.network.stage."),
    (r"^pixel_level_module\.decoder\.level_embed$", "pixel_decoder.level_embedding.weight"),
    (r"^pixel_level_module\.decoder\.input_projections\.", "pixel_decoder.projections."),
    (r"^pixel_level_module\.decoder\.adapter_1\.", "pixel_decoder.lateral."),
    (r"^pixel_level_module\.decoder\.layer_1\.", "pixel_decoder.smooth."),
    (r"^pixel_level_module\.decoder\.mask_projection\.", "pixel_decoder.mask_projection."),
    (r"^pixel_level_module\.decoder\.encoder\.layers\.", "pixel_decoder.layers."),
    (r"^transformer_module\.queries_embedder\.", "mask_decoder.query_positions."),
    (r"^transformer_module\.queries_features\.", "mask_decoder.query_features."),
    (r"^transformer_module\.level_embed\.", "mask_decoder.level_embedding."),
    (r"^transformer_module\.decoder\.layernorm\.", "mask_decoder.norm."),
    (r"^transformer_module\.decoder\.mask_predictor\.mask_embedder\.(\d)\.0\.", r"mask_decoder.mask_head.layers.\1."),
    (r"^transformer_module\.decoder\.layers\.", "mask_decoder.layers."),
)
_RESNET_RULES: tuple[tuple[str, str], ...] = (
    (r"^backbone\.network\.stage\.0\.layers\.", "backbone.network.layer1."),
    (r"^backbone\.network\.stage\.1\.layers\.", "backbone.network.layer2."),
    (r"^backbone\.network\.stage\.2\.layers\.", "backbone.network.layer3."),
    (r"^backbone\.network\.stage\.3\.layers\.", "backbone.network.layer4."),
    (r"\.shortcut\.convolution\.", ".downsample.0."),
    (r"\.shortcut\.normalization\.", ".downsample.1."),
    (r"\.layer\.0\.convolution\.", ".conv1."),
    (r"\.layer\.1\.convolution\.", ".conv2."),
    (r"\.layer\.2\.convolution\.", ".conv3."),
    (r"\.layer\.0\.normalization\.", ".bn1."),
    (r"\.layer\.1\.normalization\.", ".bn2."),
    (r"\.layer\.2\.normalization\.", ".bn3."),
)
_PIXEL_LAYER_RULES = (
    (".self_attn.value_proj.", ".attention.value_projection."),
    (".self_attn.output_proj.", ".attention.output_projection."),
    (".self_attn.sampling_offsets.", ".attention.sampling_offsets."),
    (".self_attn.attention_weights.", ".attention.attention_weights."),
    (".self_attn_layer_norm.", ".attention_norm."),
)
_MASK_LAYER_RULES = (
    (".self_attn.q_proj.", ".self_attention.query_projection."),
    (".self_attn.k_proj.", ".self_attention.key_projection."),
    (".self_attn.v_proj.", ".self_attention.value_projection."),
    (".self_attn.out_proj.", ".self_attention.output_projection."),
    (".self_attn_layer_norm.", ".self_norm."),
    (".cross_attn.out_proj.", ".cross_attention.output_projection."),
    (".cross_attn_layer_norm.", ".cross_norm."),
)
_FEEDFORWARD_RULES = (
    (".fc1.", ".feedforward.expand."),
    (".fc2.", ".feedforward.contract."),
    (".final_layer_norm.", ".feedforward.norm."),
)


@dataclass(frozen=True)
class StageOneWeights:
    """Weights of backbone, pixel decoder and mask decoder, and the architecture that they fit."""

    config: ModelConfig
    state: dict[str, Tensor]

    def load_into(self, model: Segmenter) -> None:
        """Overwrite stage 1 of `model`; objectness head and stage 2 keep their own weights."""
        ours = model.state_dict()
        unknown = sorted(set(self.state) - set(ours))
        wrong = sorted(name for name in self.state.keys() & ours.keys() if self.state[name].shape != ours[name].shape)
        expected = {name for name in ours if not name.startswith(("class_decoder.", "auxiliary_head."))}
        missing = sorted(
            name for name in expected - set(self.state) if "objectness_head" not in name and "num_batches" not in name
        )
        for problem, names in (("lack", missing), ("do not know", unknown), ("have another shape of", wrong)):
            if names:
                raise UserError(
                    f"The Mask2Former weights {problem} {names[0]!r} ({len(names)} in all): "
                    "build the model from the converted `config`, with the same backbone."
                )
        model.load_state_dict(self.state, strict=False)


def convert_mask2former(source: str | Path) -> StageOneWeights:
    """Read a transformers Mask2Former checkpoint: a directory with config.json and weights, or a hub id."""
    folder = _folder_of(source)
    described = _read_json(folder / "config.json")
    if described.get("model_type") != "mask2former":
        raise UserError(f"{str(source)!r} holds a {described.get('model_type')!r} checkpoint, not a mask2former one.")
    config = _model_config(described, str(source))
    theirs = {name.removeprefix("model."): value for name, value in _read_tensors(folder).items()}
    state = {ours: part for name, value in theirs.items() for ours, part in _rename(name, value)}
    return StageOneWeights(config, state)


def _rename(name: str, value: Tensor) -> list[tuple[str, Tensor]]:
    """Our names for one of their tensors: none where stage 1 has no use for it, three for a fused projection."""
    for pattern, replacement in _RULES:
        ours, count = re.subn(pattern, replacement, name)
        if count:
            break
    else:
        return []
    if ours.startswith("backbone."):
        for pattern, replacement in _RESNET_RULES:
            ours = re.sub(pattern, replacement, ours)
        return [(ours, value)]
    rules = _PIXEL_LAYER_RULES if ours.startswith("pixel_decoder.") else _MASK_LAYER_RULES
    for theirs, replacement in (*rules, *_FEEDFORWARD_RULES):
        ours = ours.replace(theirs, replacement)
    if ".cross_attn.in_proj_" in ours:
        before, kind = ours.split(".cross_attn.in_proj_")
        parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
        return [(f"{before}.cross_attention.{part}_projection.{kind}", chunk.clone()) for part, chunk in parts]
    return [(ours, value)]


def _model_config(described: dict[str, Any], source: str) -> ModelConfig:
    """Our architecture with the sizes of theirs."""
    dim = described["feature_size"]
    widths = {name: described[name] for name in ("feature_size", "hidden_dim", "mask_feature_size")}
    if len(set(widths.values())) > 1:
        raise UserError(f"{source!r} has different widths {widths}; only equal ones can be converted.")
    if described.get("pre_norm"):
        raise UserError(f"{source!r} normalises before attention (pre_norm); only post-norm can be converted.")
    if described.get("enforce_input_projection"):
        raise UserError(f"{source!r} projects the decoder's inputs (enforce_input_projection), which stage 1 does not.")
    heads = described["num_attention_heads"]
    return ModelConfig.model_validate(
        {
            "size": "r50",
            "backbone": {"name": _backbone_name(described, source), "weights": "none"},
            "pixel_decoder": {
                "dim": dim,
                "layers": described["encoder_layers"],
                "heads": heads,
                "points": 4,
                "feedforward": described["encoder_feedforward_dim"],
            },
            "mask_decoder": {
                "num_queries": described["num_queries"],
                # They count the prediction from the raw queries as a layer.
                "layers": described["decoder_layers"] - 1,
                "heads": heads,
                "feedforward": described["dim_feedforward"],
            },
            "class_decoder": {"heads": heads, "feedforward": described["dim_feedforward"]},
        }
    )


def _backbone_name(described: dict[str, Any], source: str) -> str:
    backbone = described.get("backbone_config") or {}
    if backbone.get("model_type") == "timm_backbone" or described.get("use_timm_backbone"):
        return str(backbone.get("backbone") or described.get("backbone"))
    key = (backbone.get("layer_type"), tuple(backbone.get("depths", ())))
    if backbone.get("model_type") == "resnet" and key in _RESNETS:
        return _RESNETS[key]
    raise UserError(
        f"{source!r} has a {backbone.get('model_type')!r} backbone with depths {backbone.get('depths')}; "
        "ResNet 18 to 152 and timm backbones can be converted."
    )


def _folder_of(source: str | Path) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    try:
        return Path(snapshot_download(str(source), allow_patterns=["config.json", "*.safetensors*"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"{str(source)!r} is neither a folder nor a hub id that can be fetched ({type(error).__name__}): "
            "check the path or the network."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UserError(f"{str(path.parent)!r} has no {path.name}; give a transformers checkpoint folder.") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{str(path)!r} is not valid JSON; fetch the checkpoint again.") from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{str(folder)!r} has no .safetensors file; save the checkpoint with safetensors.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except SafetensorError as error:
            raise UserError(f"{str(file)!r} is damaged ({error}); fetch the checkpoint again.") from error
    return tensors
