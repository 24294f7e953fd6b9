"""A transformers Mask2Former as a model bundle with all its classes, and such a model back in transformers' format."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from comastre.bundle.checkpoint import CONFIG, PROCESSOR, Checkpoint, read_checkpoint
from comastre.bundle.mask2former import (
    POINTS,
    RESNETS,
    SWINS,
    kind_of,
    load_whole,
    refuse_misfit,
    refuse_other_maps,
    sections_of,
)
from comastre.bundle.mask2former_names import BackboneKind, to_ours, to_theirs
from comastre.bundle.own_settings import KEY, read_settings, written_settings
from comastre.bundle.store import Bundle, Description
from comastre.bundle.weights import refuse_infinite, refuse_larger
from comastre.class_table import ClassTable, LineageStep, class_table, name_problem, palette
from comastre.config.sections import BackboneConfig
from comastre.config.settings import explain
from comastre.config.view import LARGEST, UNWRITTEN, ViewConfig
from comastre.errors import UserError
from comastre.methods.mask2former.config import Mask2FormerConfig
from comastre.methods.mask2former.model import Mask2Former, build_model
from comastre.text import brief, visible

METHOD = "mask2former"
Head = Literal["semantic", "panoptic", "instance"]
_USUAL_FACTOR = 1 / 255
_IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])  # transformers' own mean and deviation
_COCO_THINGS = 80  # of the 133 classes of COCO's panoptic labels, the first

# --- from transformers -----------------------------------------------------------------------------------------------


def import_model(source: str | Path, head: Head | None = None, stuff: Sequence[str] | None = None) -> Bundle:
    """The model of a transformers checkpoint (folder or hub id), with its classes, as it predicts there.

    `head` is what it was trained for, by default what the name of the source ends in, else panoptic; `stuff` are
    classes whose segments are one (panoptic), by default known for COCO's 133 classes alone. A model that comes from
    here predicts as it did here, unless one of the two says otherwise.
    """
    checkpoint = read_checkpoint(source)
    own = read_settings(checkpoint)
    names = class_names(checkpoint)
    chosen = head is not None or stuff is not None
    head = head or _head_of(str(source))
    fused = _stuff(names, head, stuff)
    sections = sections_of(checkpoint)
    as_there = {
        "style": "semantic" if head == "semantic" else "panoptic",
        "score": 0.5,
        "merge": "transformers",
        "stuff": fused if head == "panoptic" else (),
    }
    inference = as_there if chosen else {"inference": as_there, **own.settings}["inference"]
    try:
        backbone = BackboneConfig.model_validate(
            {**own.backbone, **sections.pop("backbone"), **_normalisation(checkpoint)}
        )
        settings = Mask2FormerConfig.model_validate({**own.settings, **sections, "inference": inference})
    except ValidationError as error:
        raise UserError(f"{checkpoint.source!r}: {explain(error, METHOD)}; fetch the checkpoint again") from error
    model = _built(checkpoint, settings, backbone, len(names))
    table = _table(names, frozenset(fused), checkpoint.source, own.background)
    description = Description(METHOD, own.size, backbone, settings, own.training, _view(checkpoint))
    return Bundle(model.eval(), table, description)


def _built(checkpoint: Checkpoint, settings: Mask2FormerConfig, backbone: BackboneConfig, classes: int) -> Mask2Former:
    """The model with the checkpoint's weights; memory is taken only where these are its own."""
    source = checkpoint.source
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    refuse_larger(source, "its weights", [settings.pixel_decoder, settings.mask_decoder], shapes)
    refuse_infinite(source, checkpoint.tensors)
    try:
        state = to_ours(checkpoint.tensors, kind_of(checkpoint))
        with torch.random.fork_rng(devices=[]):
            with torch.device("meta"):
                shapes_alone = build_model(settings, backbone, [classes])
                refuse_misfit(shapes_alone, state)
                refuse_other_maps(checkpoint, shapes_alone.backbone)
            model = build_model(settings, backbone, [classes])
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{source!r} describes a model that cannot be built ({reason}); fetch it again") from error
    load_whole(model, state)
    return model


def class_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Names of all classes, in the order of the classifier."""
    classifier = checkpoint.tensors.get("class_predictor.weight")
    if classifier is None:
        raise UserError(
            f"{checkpoint.source!r} has no class_predictor, so its classes are unknown: give a checkpoint of "
            "Mask2FormerForUniversalSegmentation."
        )
    labels = checkpoint.config.get("id2label")
    count = len(classifier) - 1
    if not isinstance(labels, Mapping) or sorted(map(str, labels)) != sorted(map(str, range(count))):
        found = len(labels) if isinstance(labels, Mapping) else "no"
        raise UserError(
            f"{checkpoint.source!r} names {found} classes (id2label in {CONFIG}) but classifies {count}: "
            "correct the list there."
        )
    by_number = {int(number): str(name) for number, name in labels.items()}
    names = tuple(by_number[number] for number in range(count))
    for name in names:
        if problem := name_problem(name):
            where = f"(id2label in {CONFIG})"
            raise UserError(f"{checkpoint.source!r}: the class {brief(name)} {problem} {where}: rename it.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"{checkpoint.source!r} has more than one class {twice[0]!r} (id2label in {CONFIG}): rename one."
        )
    return names


def _head_of(source: str) -> Head:
    heads: tuple[Head, ...] = ("semantic", "instance", "panoptic")
    return next((head for head in heads if source.rstrip("/").endswith(head)), "panoptic")


def _stuff(names: Sequence[str], head: Head, given: Sequence[str] | None) -> tuple[int, ...]:
    """Places of the classes that have no objects."""
    if given is not None:
        unknown = [name for name in given if name not in names]
        if unknown:
            raise UserError(f"--stuff: the model has no class {unknown[0]!r}; it has {', '.join(names[:5])}, ...")
        return tuple(sorted(names.index(name) for name in given))
    if head == "semantic":
        return tuple(range(len(names)))
    is_coco = len(names) == 133 and names[0] == "person"
    return tuple(range(_COCO_THINGS, len(names))) if head == "panoptic" and is_coco else ()


def _normalisation(checkpoint: Checkpoint) -> dict[str, Any]:
    """Mean and deviation, of values from 0 to 1, that come to what its images are made of there, where it says so."""
    given = checkpoint.processor
    # Its values from 0 to 255 are multiplied first, usually by 1 / 255, and its numbers are of what comes of that.
    times = given.get("rescale_factor", _USUAL_FACTOR) if given.get("do_rescale", True) else 1.0
    if not (isinstance(times, int | float) and math.isfinite(times) and times > 0):
        raise UserError(
            f"{checkpoint.source!r}: rescale_factor in its {PROCESSOR} is {brief(times)} but must be a number above 0."
        )
    usual = times == _USUAL_FACTOR
    mean, std = (None, None) if usual else _IMAGENET  # where nothing is said at all, the backbone knows its own
    own = {"mean": given.get("image_mean", mean), "std": given.get("image_std", std)}
    if not given.get("do_normalize", True):
        own = {"mean": [0.0] * 3, "std": [1.0] * 3}
    largest = 1.0 if usual else 255 * times
    return {
        name: tuple(value / largest for value in values)
        for name, values in own.items()
        if isinstance(values, list) and len(values) == 3 and all(isinstance(value, int | float) for value in values)
    }


def _view(checkpoint: Checkpoint) -> ViewConfig:
    """The size at which its images are seen there; at their own where it does not say, or does not resize.

    A fixed height and width, which would distort, become a short side.
    """
    given = checkpoint.processor.get("size") if checkpoint.processor.get("do_resize", True) else None
    sizes = given if isinstance(given, Mapping) else {"shortest_edge": given}
    short = _sides(sizes.get("shortest_edge"), sizes.get("height"), sizes.get("width"))
    long = _sides(sizes.get("longest_edge"), checkpoint.processor.get("max_size"))
    return ViewConfig(short_side=(min(short),), max_side=long[0] if long else None) if short else UNWRITTEN


def _sides(*given: Any) -> list[int]:
    """Those that are numbers of pixels."""
    return [side for side in given if type(side) is int and 0 < side <= LARGEST]


def _table(names: Sequence[str], stuff: frozenset[int], source: str, background: str) -> ClassTable:
    today = datetime.now(UTC).date().isoformat()
    lineage = LineageStep(
        step=0, date=today, data=f"imported from {visible(Path(source).name)}", new_classes=tuple(names)
    )
    table = class_table(names, [len(names)], palette(len(names) + 1), background, [lineage])
    records = [each.model_copy(update={"thing": place not in stuff}) for place, each in enumerate(table.classes)]
    return table.model_copy(update={"classes": tuple(records)})


# --- to transformers -------------------------------------------------------------------------------------------------


def export_model(bundle: Bundle, folder: Path) -> Path:
    """Write a model of Mask2Former's kind as transformers would save it."""
    model, description = bundle.model, bundle.description
    if not isinstance(model, Mask2Former):
        raise UserError(
            f"a model of the method {description.method} has no place in transformers: give one of mask2former's kind"
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is there already: choose another folder")
    settings = model.config
    problems = {
        "pixel_decoder.top_down": settings.pixel_decoder.top_down,
        "mask_decoder.softmax_masks": settings.mask_decoder.softmax_masks,
        f"pixel_decoder.points other than {POINTS}": settings.pixel_decoder.points != POINTS,
        "pixel_decoder.heads other than mask_decoder.heads": settings.pixel_decoder.heads
        != settings.mask_decoder.heads,
    }
    for field, found in problems.items():
        if found:
            raise UserError(f"the model has {field}, which transformers' Mask2Former does not know: train one without")
    kind, backbone = _described_backbone(description.backbone.name, model.backbone.places)
    pixels, queries = settings.pixel_decoder, settings.mask_decoder
    labels = {str(place): name for place, name in enumerate(bundle.classes.names)}
    config = {
        "architectures": ["Mask2FormerForUniversalSegmentation"],
        "model_type": METHOD,
        "backbone_config": backbone,
        "feature_size": pixels.dim,
        "hidden_dim": pixels.dim,
        "mask_feature_size": pixels.dim,
        "encoder_layers": pixels.layers,
        "encoder_feedforward_dim": pixels.feedforward,
        "num_attention_heads": queries.heads,
        "num_queries": queries.num_queries,
        "decoder_layers": queries.layers + 1,
        "dim_feedforward": queries.feedforward,
        "id2label": labels,
        "label2id": {name: int(place) for place, name in labels.items()},
        KEY: written_settings(bundle),
    }
    view = description.view
    sides = {"shortest_edge": view.short_side[0]} if isinstance(view.short_side, tuple) else {}
    processor = {
        "image_processor_type": "Mask2FormerImageProcessor",
        **({"size": sides | ({"longest_edge": view.max_side} if view.max_side else {})} if sides else {}),
        "image_mean": model.backbone.mean.flatten().tolist(),
        "image_std": model.backbone.std.flatten().tolist(),
        "ignore_index": 255,
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in to_theirs(model.state_dict(), kind).items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for name, content in ((CONFIG, config), (PROCESSOR, processor)):
            (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(f"the model could not be written to {folder}: {error}; choose another folder") from error
    return folder


def _described_backbone(name: str, places: Sequence[int]) -> tuple[BackboneKind, dict[str, Any]]:
    """How transformers writes the backbone down: as its own where it has one of the kind, else as timm's."""
    stages = {"out_features": [f"stage{stage}" for stage in range(1, 5)]}
    for (layer, depths), known in RESNETS.items():
        if name.split(".")[0] == known.split(".")[0]:
            widths = [64, 128, 256, 512] if layer == "basic" else [256, 512, 1024, 2048]
            sizes = {"layer_type": layer, "depths": list(depths), "hidden_sizes": widths, "embedding_size": 64}
            return "resnet", {"model_type": "resnet", **sizes, **stages}
    for (width, depths, window), known in SWINS.items():
        if name.split(".")[0] == known:
            heads = [width // 32 * 2**stage for stage in range(4)]
            sizes = {"embed_dim": width, "depths": list(depths), "num_heads": heads, "window_size": window}
            return "swin", {"model_type": "swin", **sizes, **stages}
    wanted = {"out_indices": list(places), "features_only": True}
    return "timm", {"model_type": "timm_backbone", "backbone": name, "use_pretrained_backbone": False, **wanted}
