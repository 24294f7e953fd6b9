"""What tensors of a Mask2Former are called in transformers' files and here, in both directions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

BackboneKind = Literal["resnet", "swin", "timm"]
Pairs = tuple[tuple[str, str], ...]

_ENCODER = "model.pixel_level_module.encoder."
_PIXELS = "model.pixel_level_module.decoder."
_QUERIES = "model.transformer_module."

# Where a name starts, there and here.
_STARTS: Pairs = (
    (f"{_PIXELS}level_embed", "pixel_decoder.level_embedding.weight"),
    (f"{_PIXELS}input_projections.", "pixel_decoder.projections."),
    (f"{_PIXELS}adapter_1.", "pixel_decoder.lateral."),
    (f"{_PIXELS}layer_1.", "pixel_decoder.smooth."),
    (f"{_PIXELS}mask_projection.", "pixel_decoder.mask_projection."),
    (f"{_PIXELS}encoder.layers.", "pixel_decoder.layers."),
    (f"{_QUERIES}queries_embedder.", "mask_decoder.query_positions."),
    (f"{_QUERIES}queries_features.", "mask_decoder.query_features."),
    (f"{_QUERIES}level_embed.", "mask_decoder.level_embedding."),
    (f"{_QUERIES}decoder.layernorm.", "mask_decoder.norm."),
    *(
        (f"{_QUERIES}decoder.mask_predictor.mask_embedder.{place}.0.", f"mask_decoder.mask_head.layers.{place}.")
        for place in range(3)
    ),
    (f"{_QUERIES}decoder.layers.", "mask_decoder.layers."),
)
_BACKBONE_STARTS: Mapping[BackboneKind, Pairs] = {
    "timm": ((f"{_ENCODER}_backbone.", "backbone.network."),),
    "resnet": (
        (f"{_ENCODER}embedder.embedder.convolution.", "backbone.network.conv1."),
        (f"{_ENCODER}embedder.embedder.normalization.", "backbone.network.bn1."),
        *((f"{_ENCODER}encoder.stages.{stage}.layers.", f"backbone.network.layer{stage + 1}.") for stage in range(4)),
    ),
    "swin": (
        (f"{_ENCODER}embeddings.patch_embeddings.projection.", "backbone.network.model.patch_embed.proj."),
        (f"{_ENCODER}embeddings.norm.", "backbone.network.model.patch_embed.norm."),
        # There a stage ends with what makes the next one coarser, here the next one begins with it.
        *(
            (f"{_ENCODER}encoder.layers.{stage}.downsample.", f"backbone.network.model.layers.{stage + 1}.downsample.")
            for stage in range(3)
        ),
        (f"{_ENCODER}encoder.layers.", "backbone.network.model.layers."),
        *(
            (f"{_ENCODER}hidden_states_norms.stage{stage + 1}.", f"backbone.network.norms.{stage}.")
            for stage in range(4)
        ),
    ),
}
# What follows, by the part of the model (the start of our name).
_FEEDFORWARD: Pairs = (
    (".fc1.", ".feedforward.expand."),
    (".fc2.", ".feedforward.contract."),
    (".final_layer_norm.", ".feedforward.norm."),
)
_INNER: Mapping[str, Pairs] = {
    "pixel_decoder.layers.": (
        (".self_attn.value_proj.", ".attention.value_projection."),
        (".self_attn.output_proj.", ".attention.output_projection."),
        (".self_attn.sampling_offsets.", ".attention.sampling_offsets."),
        (".self_attn.attention_weights.", ".attention.attention_weights."),
        (".self_attn_layer_norm.", ".attention_norm."),
        *_FEEDFORWARD,
    ),
    "mask_decoder.layers.": (
        (".self_attn.q_proj.", ".self_attention.query_projection."),
        (".self_attn.k_proj.", ".self_attention.key_projection."),
        (".self_attn.v_proj.", ".self_attention.value_projection."),
        (".self_attn.out_proj.", ".self_attention.output_projection."),
        (".self_attn_layer_norm.", ".self_norm."),
        (".cross_attn.in_proj_", ".cross_attention.in_proj_"),
        (".cross_attn.out_proj.", ".cross_attention.output_projection."),
        (".cross_attn_layer_norm.", ".cross_norm."),
        *_FEEDFORWARD,
    ),
}
_INNER_BACKBONE: Mapping[BackboneKind, Pairs] = {
    "timm": (),
    "resnet": (
        (".shortcut.convolution.", ".downsample.0."),
        (".shortcut.normalization.", ".downsample.1."),
        *((f".layer.{place}.convolution.", f".conv{place + 1}.") for place in range(3)),
        *((f".layer.{place}.normalization.", f".bn{place + 1}.") for place in range(3)),
    ),
    "swin": (
        (".layernorm_before.", ".norm1."),
        (".layernorm_after.", ".norm2."),
        (".attention.self.relative_position_bias_table", ".attn.relative_position_bias_table"),
        *((f".attention.self.{part}.", f".attn.qkv_{part}.") for part in ("query", "key", "value")),
        (".attention.output.dense.", ".attn.proj."),
        (".intermediate.dense.", ".mlp.fc1."),
        (".output.dense.", ".mlp.fc2."),
    ),
}
_CLASSES = "class_predictor."
_COMPUTED = ".relative_position_index"  # in files of older versions; follows from the window's size
_CROSS = re.compile(r"(mask_decoder\.layers\.\d+\.cross_attention\.)(query|key|value)_projection\.(weight|bias)")
_PARTS = ("query", "key", "value")


def to_ours(tensors: Mapping[str, Tensor], kind: BackboneKind) -> dict[str, Tensor]:
    """Tensors of a transformers checkpoint under our names; what has no place here is left out."""
    ours: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if name.endswith(_COMPUTED):
            continue
        # The bare model is saved without the prefix.
        whole = name if name.startswith(("model.", _CLASSES)) else f"model.{name}"
        renamed = _rename(whole, kind, (0, 1))
        if whole.startswith(_CLASSES):
            end = whole.removeprefix(_CLASSES)
            ours |= {
                f"class_head.classifiers.0.{end}": value[:-1].clone(),
                f"class_head.no_object.{end}": value[-1:].clone(),
            }
        elif renamed is not None and ".in_proj_" in renamed:
            before, end = renamed.split("in_proj_")
            parts = zip(_PARTS, value.chunk(3), strict=True)
            ours |= {f"{before}{part}_projection.{end}": chunk.clone() for part, chunk in parts}
        elif renamed is not None:
            ours[renamed] = value
    return _fuse(ours)


def to_theirs(tensors: Mapping[str, Tensor], kind: BackboneKind) -> dict[str, Tensor]:
    """The other way: a whole model of ours as transformers saves it, with all its classes in one classifier."""
    theirs: dict[str, Tensor] = {}
    tensors = _split(tensors)
    for name, value in tensors.items():
        cross = _CROSS.fullmatch(name)
        if name.startswith("class_head."):
            continue
        if cross is None:
            theirs[_named_there(name, kind)] = value
        elif cross[2] == "query":
            parts = [tensors[f"{cross[1]}{part}_projection.{cross[3]}"] for part in _PARTS]
            theirs[_named_there(f"{cross[1]}in_proj_{cross[3]}", kind)] = torch.cat(parts)
    for end in ("weight", "bias"):
        count = sum(name.startswith("class_head.classifiers.") and name.endswith(end) for name in tensors)
        rows = [tensors[f"class_head.classifiers.{task}.{end}"] for task in range(count)]
        theirs[f"{_CLASSES}{end}"] = torch.cat((*rows, tensors[f"class_head.no_object.{end}"]))
    return theirs


def _named_there(name: str, kind: BackboneKind) -> str:
    renamed = _rename(name, kind, (1, 0))
    if renamed is None:
        raise ValueError(f"{name} has no name in transformers' format")
    return renamed


def _rename(name: str, kind: BackboneKind, direction: tuple[int, int]) -> str | None:
    """The name on the other side; None where there is none."""
    source, target = direction
    for pair in (*_STARTS, *_BACKBONE_STARTS[kind]):
        if name.startswith(pair[source]):
            break
    else:
        return None
    ours = pair[1]
    inner = _INNER_BACKBONE[kind] if ours.startswith("backbone.") else _INNER.get(ours, ())
    rest = "." + name.removeprefix(pair[source])  # the dot that the start has taken
    for inner_pair in inner:
        rest = rest.replace(inner_pair[source], inner_pair[target])
    return pair[target] + rest[1:]


def _fuse(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Swin's queries, keys and values are one matrix here."""
    fused: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if ".attn.qkv_" not in name:
            fused[name] = value
        elif ".attn.qkv_query." in name:
            others = [tensors.get(name.replace("qkv_query", f"qkv_{part}")) for part in _PARTS]
            if all(other is not None for other in others):
                fused[name.replace("qkv_query", "qkv")] = torch.cat([other for other in others if other is not None])
    return fused


def _split(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    split: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if ".attn.qkv." in name:
            parts = zip(_PARTS, value.chunk(3), strict=True)
            split |= {name.replace(".qkv.", f".qkv_{part}."): chunk for part, chunk in parts}
        else:
            split[name] = value
    return split
