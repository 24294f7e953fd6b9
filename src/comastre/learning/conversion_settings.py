"""What a conversion trains with, and what the model is that it makes: stage 1 as the Mask2Former has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from comastre.bundle.store import Description
from comastre.config.recipe import read_recipe, usual_settings
from comastre.config.run import RunConfig
from comastre.config.settings import explain, validate
from comastre.errors import UserError
from comastre.learning.request import check_amounts, refuse_decided
from comastre.learning.schedule import SMALLEST_BATCH
from comastre.methods.comastre.config import SIZES, ComastreConfig
from comastre.methods.mask2former.config import Mask2FormerConfig, QueryInferenceConfig
from comastre.methods.mask2former.model import Mask2Former
from comastre.section import merge

METHOD = SECTION = "comastre"
CONVENTION = "no_background"
# What was tried: docs/experiments.md, Converting a Mask2Former.
ITERATIONS = 1000
"""However many images there are: what is learned is a small decoder on features that stand still."""
OPTIMISER = {"learning_rate": 1e-3, "warmup": 50, "clip": 1.0, "weight_decay": 0.05, "power": 0.9}

# Fields that a conversion decides itself, and why.
_MASKS = "its masks stay as they are"
_DECIDED = {
    "method": "the result is CoMasTRe",
    "init": "it starts from the model",
    "size": _MASKS,
    "backbone": _MASKS,
    f"{SECTION}.pixel_decoder": _MASKS,
    f"{SECTION}.mask_decoder": _MASKS,
    "continual": "all classes are learned at once",
    "data.dataset": "name the images after the model",
    "data.root": "name the images after the model",
    "training.iterations": "give --iterations",
    "training.iterations_per_class": "give --iterations",
}


# --- what the user says ----------------------------------------------------------------------------------------------


def check(minutes: float | None, iterations: int | None, settings: Mapping[str, Any]) -> None:
    """Refuse what cannot be asked for."""
    check_amounts(minutes, iterations)
    refuse_decided(settings, _DECIDED, "a conversion")


# --- the model -------------------------------------------------------------------------------------------------------


def wanted(model: Any, original: Description, settings: Mapping[str, Any], name: str) -> Description:
    """What the converted model will be, or one sentence why it can't be."""
    if not isinstance(model, Mask2Former) or not isinstance(original.settings, Mask2FormerConfig):
        raise UserError(
            f"{name} is a model of the method {original.method}, but only one of Mask2Former's kind can be converted: "
            "give one, such as `comastre import-model` makes"
        )
    if original.settings.mask_decoder.softmax_masks:
        raise UserError(
            f"the masks of {name} share each pixel (mask_decoder.softmax_masks), which those of CoMasTRe do not: "
            "give a model that was trained without"
        )
    given = settings.get(SECTION, {})
    # How a conversion trains is no matter of later lessons.
    own = {field: value for field, value in given.items() if field != "optimiser"} if isinstance(given, Mapping) else {}
    section = merge(comastre_section(original.settings, original.size), own)
    try:
        return replace(original, method=METHOD, settings=ComastreConfig.model_validate(section))
    except ValidationError as error:
        raise UserError(f"{name} cannot become CoMasTRe so: {explain(error)}") from error


def comastre_section(given: Mask2FormerConfig, size: str) -> dict[str, Any]:
    """CoMasTRe's section for a model whose stage 1 is that of `given`, and which predicts as alike as it can."""
    decoder = given.mask_decoder
    usual = usual_settings(size, METHOD).get(SECTION, {})
    classes = {"heads": decoder.heads, "feedforward": decoder.feedforward}
    return merge(
        usual,
        {
            "pixel_decoder": given.pixel_decoder.model_dump(),
            "mask_decoder": decoder.model_dump(exclude={"softmax_masks"}),
            "class_decoder": {**classes, **SIZES.get(size, {}).get("class_decoder", {})},
            "inference": _inference(given.inference),
            "matching": {"points": given.matching.points},
            "masks": given.masks.model_dump(),
            "optimiser": given.optimiser.model_dump(),
        },
    )


def _inference(given: QueryInferenceConfig) -> dict[str, Any]:
    """The same rule of merging; where every pixel gets a class, that of its strongest proposal.

    Any class will do, however improbable: what is no object, stage 2 is not taught to tell.
    """
    named = {"class_threshold": 0.0}
    if given.style == "semantic":
        return {**named, "alpha": 0.0, "merge": "transformers", "overlap": 0.0, "mask_threshold": 0.0}
    return {**named, "alpha": given.score, **given.model_dump(include={"merge", "overlap", "mask_threshold"})}


# --- the training ----------------------------------------------------------------------------------------------------


def choose(
    description: Description,
    original: Path,
    images: Path,
    amount: int,
    short_side: int,
    settings: Mapping[str, Any],
    iterations: int | None,
) -> RunConfig:
    """The whole configuration of a training that makes the model `description` from the bundle `original`.

    `amount` images of this short side (median) are at hand, below `images`; `settings` are the user's own fields.
    """
    recipe = read_recipe(description.training)
    usual = validate(merge({"method": METHOD}, recipe), "the settings that the model was trained with")
    trained = usual.data.crop
    # What images are smaller than half of the model's training size is not blown up to it.
    crop = trained if 2 * short_side > trained else max(64, 32 * round(short_side / 32))
    chosen = {
        "method": METHOD,
        "init": str(original.absolute()),
        "size": description.size,
        "backbone": description.backbone.model_dump(),
        SECTION: merge(description.settings.model_dump(), {"optimiser": OPTIMISER}),
        "data": {
            "dataset": "folder",
            "root": str(images),
            "crop": crop,
            "workers": 0 if crop <= 128 else 2,
        },
        "continual": {"setting": "joint"},
        "training": {
            "iterations": iterations or ITERATIONS,
            "batch_size": min(usual.training.batch_size, max(SMALLEST_BATCH, amount)),
        },
        "view": description.view.model_dump(),
        "evaluation": {"convention": CONVENTION},
    }
    return validate(merge(merge(recipe, chosen), settings), "the settings of this conversion")
