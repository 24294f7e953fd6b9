"""Public Mask2Formers: a transformers checkpoint becomes our stage 1 weights, or a whole model with its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from comastre.bundle.checkpoint import Checkpoint, read_checkpoint
from comastre.bundle.mask2former_names import BackboneKind, to_ours
from comastre.errors import UserError
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter
from comastre.nets.backbone import Backbone
from comastre.text import brief

RESNETS: Mapping[tuple[str, tuple[int, ...]], str] = {
    ("basic", (2, 2, 2, 2)): "resnet18.tv_in1k",
    ("basic", (3, 4, 6, 3)): "resnet34.tv_in1k",
    ("bottleneck", (3, 4, 6, 3)): "resnet50.tv_in1k",
    ("bottleneck", (3, 4, 23, 3)): "resnet101.tv_in1k",
    ("bottleneck", (3, 8, 36, 3)): "resnet152.tv_in1k",
}
"""timm's name by transformers' kind of layer and depths."""
SWINS: Mapping[tuple[int, tuple[int, ...], int], str] = {
    (96, (2, 2, 6, 2), 7): "swin_tiny_patch4_window7_224",
    (96, (2, 2, 18, 2), 7): "swin_small_patch4_window7_224",
    (128, (2, 2, 18, 2), 7): "swin_base_patch4_window7_224",
    (128, (2, 2, 18, 2), 12): "swin_base_patch4_window12_384",
    (192, (2, 2, 18, 2), 7): "swin_large_patch4_window7_224",
    (192, (2, 2, 18, 2), 12): "swin_large_patch4_window12_384",
}
"""timm's name by width, depths and window."""
POINTS = 4
"""Sampling points of deformable attention, which transformers does not write down."""

Allowed = Mapping[str, tuple[Any, ...]]
# Fields that change what is computed and no weight's shape, which `refuse_misfit` would tell, with the values that mean
# what is computed here, that of most checkpoints first. A field that is not there has that one in transformers, too.
_FIELDS: Allowed = {
    "activation_function": ("relu",),
    "pre_norm": (False,),
    "enforce_input_projection": (False,),
    "common_stride": (4,),
    "feature_strides": ([4, 8, 16, 32],),
}
_STAGES: Allowed = {
    "out_features": (["stage1", "stage2", "stage3", "stage4"], None),
    "out_indices": ([1, 2, 3, 4], [-4, -3, -2, -1], None),
}
_BACKBONE_FIELDS: Mapping[BackboneKind, Allowed] = {
    "resnet": {
        "hidden_act": ("relu",),
        "downsample_in_first_stage": (False,),
        "downsample_in_bottleneck": (False,),
        **_STAGES,
    },
    "swin": {
        "hidden_act": ("gelu",),
        "layer_norm_eps": (1e-5,),
        "qkv_bias": (True,),
        "use_absolute_embeddings": (False,),
        "patch_size": (4, [4, 4]),
        **_STAGES,
    },
    "timm": {"features_only": (True,), "output_stride": (32, None)},
}
# Of `backbone_kwargs`, which older versions hand to timm as they are: any other could change the network.
_TIMM_OPTIONS = ("features_only", "freeze_batch_norm_2d", "num_channels", "out_indices", "output_stride")


@dataclass(frozen=True)
class StageOneWeights:
    """Weights of backbone, pixel decoder and mask decoder, and the architecture that they fit."""

    config: ModelConfig
    state: dict[str, Tensor]

    def load_into(self, model: Segmenter) -> None:
        """Overwrite stage 1 of `model`; objectness head and stage 2 keep their own weights."""
        load_whole(model, self.state, without=("class_decoder.", "auxiliary_head.", "mask_decoder.objectness_head."))


def convert_mask2former(source: str | Path) -> StageOneWeights:
    """Read a transformers Mask2Former checkpoint: a directory with config.json and weights, or a hub id."""
    checkpoint = read_checkpoint(source)
    sections = sections_of(checkpoint)
    decoder = sections["mask_decoder"]
    classes = {"heads": decoder["heads"], "feedforward": decoder["feedforward"]}
    config = ModelConfig.model_validate({"size": "r50", **sections, "class_decoder": classes})
    state = to_ours(checkpoint.tensors, kind_of(checkpoint))
    with torch.device("meta"):
        refuse_other_maps(checkpoint, Backbone(config.backbone))
    return StageOneWeights(config, {name: value for name, value in state.items() if not name.startswith("class_head.")})


def load_whole(model: nn.Module, state: Mapping[str, Tensor], without: tuple[str, ...] = ()) -> None:
    """Give `model` these weights, all but those that start with `without`, or say in a sentence what does not fit."""
    refuse_misfit(model, state, without)
    model.load_state_dict(dict(state), strict=False)


def refuse_misfit(model: nn.Module, state: Mapping[str, Tensor], without: tuple[str, ...] = ()) -> None:
    """Say in a sentence which weights of `state` do not fit `model`, whose own are needed for their shapes alone."""
    ours = model.state_dict()
    unknown = sorted(set(state) - set(ours))
    wrong = sorted(name for name in state.keys() & ours.keys() if state[name].shape != ours[name].shape)
    wanted = {name for name in ours if not name.startswith(without) and not name.endswith("num_batches_tracked")}
    missing = sorted(wanted - set(state))
    for problem, names in (("lack", missing), ("do not know", unknown), ("have another shape of", wrong)):
        if names:
            raise UserError(
                f"The Mask2Former weights {problem} {names[0]!r} ({len(names)} in all): the file is not whole or its "
                "config.json is of another model; fetch the checkpoint again, with the same backbone."
            )


def sections_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Our backbone, pixel decoder and mask decoder with the sizes of theirs."""
    described, source = checkpoint.config, checkpoint.source
    try:
        widths = {name: described[name] for name in ("feature_size", "hidden_dim", "mask_feature_size")}
        heads, queries = described["num_attention_heads"], described["num_queries"]
        layers, inner = described["encoder_layers"], described["encoder_feedforward_dim"]
        decoder_layers, feedforward = described["decoder_layers"], described["dim_feedforward"]
    except KeyError as error:
        raise UserError(f"{source!r} has no {error.args[0]} in its config.json; fetch the checkpoint again.") from None
    for name, number in {"heads": heads, "queries": queries, "decoder_layers": decoder_layers, **widths}.items():
        if type(number) is not int:
            raise UserError(f"{source!r}: {name} is {brief(number)} but must be a number; fetch the checkpoint again.")
    if len(set(widths.values())) > 1:
        raise UserError(f"{source!r} has different widths {widths}; only equal ones can be converted.")
    if (same := described.get("num_hidden_layers", decoder_layers)) != decoder_layers:
        raise UserError(
            f"{source!r} has num_hidden_layers {brief(same)} but decoder_layers {decoder_layers} in its config.json, "
            "which are names of one number: correct it there, or fetch the checkpoint again."
        )
    name = _backbone_name(checkpoint)
    _refuse_other(source, described, _FIELDS)
    _refuse_other_backbone(checkpoint)
    return {
        "backbone": {"name": name, "weights": "none"},
        "pixel_decoder": {
            "dim": widths["feature_size"],
            "layers": layers,
            "heads": heads,
            "points": POINTS,
            "feedforward": inner,
        },
        "mask_decoder": {
            "num_queries": queries,
            # They count the prediction from the raw queries as a layer.
            "layers": decoder_layers - 1,
            "heads": heads,
            "feedforward": feedforward,
        },
    }


def _refuse_other_backbone(checkpoint: Checkpoint) -> None:
    source, (where, described) = checkpoint.source, _described_backbone(checkpoint)
    _refuse_other(source, described, _BACKBONE_FIELDS[kind_of(checkpoint)], where)
    unknown = sorted(set(described) - set(_TIMM_OPTIONS)) if where == "backbone_kwargs." else []
    if unknown:
        raise UserError(
            f"{source!r} has {where}{unknown[0]} in its config.json, which may change its backbone and is not known "
            "here: give a checkpoint without it, or predict with transformers."
        )


def refuse_other_maps(checkpoint: Checkpoint, backbone: Backbone) -> None:
    """Say in a sentence that a timm backbone hands on other maps there than `backbone`, which need not have weights."""
    if kind_of(checkpoint) == "timm":
        where, described = _described_backbone(checkpoint)
        places, count = list(backbone.places), len(backbone.network.feature_info.reduction())
        from_the_end = [place - count for place in places]
        _refuse_other(checkpoint.source, described, {"out_indices": (places, from_the_end, None)}, where)


def _refuse_other(source: str, described: Mapping[str, Any], allowed: Allowed, where: str = "") -> None:
    """Say in a sentence which field has a value that would be computed otherwise here."""
    for field, values in allowed.items():
        given = described.get(field, values[0])
        if given not in values:
            raise UserError(
                f"{source!r} has {where}{field} {brief(given)} in its config.json, but models here compute with "
                f"{brief(values[0])} alone: give a checkpoint that was trained so, or predict with transformers."
            )


def kind_of(checkpoint: Checkpoint) -> BackboneKind:
    """Which naming the backbone's tensors have."""
    _, backbone = _described_backbone(checkpoint)
    if backbone.get("model_type") == "timm_backbone" or checkpoint.config.get("use_timm_backbone"):
        return "timm"
    return "swin" if backbone.get("model_type") == "swin" else "resnet"


def _described_backbone(checkpoint: Checkpoint) -> tuple[str, Mapping[str, Any]]:
    """Where it describes its backbone, and what it says: sizes must be numbers and names."""
    config = checkpoint.config
    where = next((name for name in ("backbone_config", "backbone_kwargs") if config.get(name)), "backbone_config")
    backbone = config.get(where) or {}
    if isinstance(backbone, Mapping) and isinstance(backbone.get("depths", []), list | tuple):
        names = ("model_type", "layer_type", "embed_dim", "window_size")
        values = [*backbone.get("depths", []), *(backbone.get(name) for name in names)]
        if all(isinstance(value, str | int | None) for value in values):
            return f"{where}.", backbone
    raise UserError(f"{checkpoint.source!r} has a {where} that is none; fetch the checkpoint again.")


def _backbone_name(checkpoint: Checkpoint) -> str:
    described = checkpoint.config
    _, backbone = _described_backbone(checkpoint)
    kind, depths = kind_of(checkpoint), tuple(backbone.get("depths", ()))
    if kind == "timm":
        return str(backbone.get("backbone") or described.get("backbone"))
    if kind == "swin":
        name = SWINS.get((backbone.get("embed_dim", 96), depths, backbone.get("window_size", 7)))
    else:
        name = RESNETS.get((backbone.get("layer_type", ""), depths)) if backbone.get("model_type") == "resnet" else None
    if name is None:
        raise UserError(
            f"{checkpoint.source!r} has a {backbone.get('model_type')!r} backbone with depths "
            f"{backbone.get('depths')}; ResNet 18 to 152, the public Swins and timm backbones can be converted."
        )
    return name
