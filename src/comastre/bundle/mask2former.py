"""Public Mask2Formers: a transformers checkpoint becomes our stage 1 weights, or a whole model with its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from comastre.bundle.checkpoint import Checkpoint, read_checkpoint
from comastre.bundle.mask2former_names import BackboneKind, to_ours
from comastre.errors import UserError
from comastre.methods.comastre.config import ModelConfig
from comastre.methods.comastre.segmenter import Segmenter
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
    if described.get("pre_norm"):
        raise UserError(f"{source!r} normalises before attention (pre_norm); only post-norm can be converted.")
    if described.get("enforce_input_projection"):
        raise UserError(f"{source!r} projects the decoder's inputs (enforce_input_projection), which stage 1 does not.")
    return {
        "backbone": {"name": _backbone_name(checkpoint), "weights": "none"},
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


def kind_of(checkpoint: Checkpoint) -> BackboneKind:
    """Which naming the backbone's tensors have."""
    backbone = _described_backbone(checkpoint)
    if backbone.get("model_type") == "timm_backbone" or checkpoint.config.get("use_timm_backbone"):
        return "timm"
    return "swin" if backbone.get("model_type") == "swin" else "resnet"


def _described_backbone(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What it says of its backbone, whose sizes must be numbers and names."""
    backbone = checkpoint.config.get("backbone_config") or {}
    if isinstance(backbone, Mapping) and isinstance(backbone.get("depths", []), list | tuple):
        names = ("model_type", "layer_type", "embed_dim", "window_size")
        values = [*backbone.get("depths", []), *(backbone.get(name) for name in names)]
        if all(isinstance(value, str | int | None) for value in values):
            return backbone
    raise UserError(f"{checkpoint.source!r} has a backbone_config that is none; fetch the checkpoint again.")


def _backbone_name(checkpoint: Checkpoint) -> str:
    described = checkpoint.config
    backbone = _described_backbone(checkpoint)
    kind, depths = kind_of(checkpoint), tuple(backbone.get("depths", ()))
    if kind == "timm":
        return str(backbone.get("backbone") or described.get("backbone"))
    if kind == "swin" and not backbone.get("use_absolute_embeddings") and backbone.get("patch_size", 4) == 4:
        name = SWINS.get((backbone.get("embed_dim", 96), depths, backbone.get("window_size", 7)))
    else:
        name = RESNETS.get((backbone.get("layer_type", ""), depths)) if backbone.get("model_type") == "resnet" else None
    if name is None:
        raise UserError(
            f"{checkpoint.source!r} has a {backbone.get('model_type')!r} backbone with depths "
            f"{backbone.get('depths')}; ResNet 18 to 152, the public Swins and timm backbones can be converted."
        )
    return name
