"""How a model was trained, as far as the next step should follow it: kept in its bundle, read back leniently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.config.run import LossConfig, RunConfig
from comastre.section import Section

# What belongs to the model and its images; where the data lies and which machine trains is nobody else's business.
_DATA = ("crop", "scale", "later_scale", "later_beside", "flip", "colour_jitter", "masks")
_TRAINING = (
    "iterations",
    "iterations_per_class",
    "batch_size",
    "learning_rate",
    "later_learning_rate",
    "backbone_factor",
    "later_backbone_factor",
    "weight_decay",
    "clip",
    "warmup",
    "power",
    "freeze_batch_norm_later",
    "precision",
)
_KEPT: Mapping[str, tuple[str, ...] | None] = {
    "data": _DATA,
    **dict.fromkeys(LossConfig.model_fields),  # whole sections
    "training": _TRAINING,
}


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """The settings of a run that a later step of its model should follow, by section."""
    settings = config.model_dump(mode="json")
    return {
        section: {name: value for name, value in settings[section].items() if kept is None or name in kept}
        for section, kept in _KEPT.items()
    }


def read_recipe(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of a stored recipe: fields of another version are left out, not refused."""
    found: dict[str, Any] = {}
    for section, kept in _KEPT.items():
        kind = RunConfig.model_fields[section].annotation
        assert isinstance(kind, type) and issubclass(kind, Section)
        values = stored.get(section)
        known = {name for name in kind.model_fields if kept is None or name in kept}
        if isinstance(values, Mapping):
            found[section] = {name: value for name, value in values.items() if name in known}
    return found
