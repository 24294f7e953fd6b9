"""How a model was trained, as far as the next step should follow it: kept in its bundle, read back leniently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.config import methods
from comastre.config.run import RunConfig
from comastre.config.settings import read_settings
from comastre.section import Section

# Fields of the model's images and training; those that name folders, processes or devices are left out.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "data": ("crop", "scale", "later_scale", "later_beside", "flip", "colour_jitter", "masks"),
    "training": ("iterations", "iterations_per_class", "batch_size", "precision"),
}


PRESET_OF: Mapping[str, str] = {"tiny": "shapes-6-2", "small": "voc-15-5-cpu"}
"""By size: whose settings were measured with it. Larger models have the defaults, which are the paper's."""


def usual_settings(size: str, method: str) -> dict[str, Any]:
    """What suits models of a size, where nothing is recorded: backbone, the method's section, and a recipe."""
    preset = PRESET_OF.get(size)
    if preset is None:
        return {}
    settings = read_settings(preset, method)
    section = methods.find(method).section_name
    return {name: settings[name] for name in ("backbone", section) if name in settings} | read_recipe(settings)


def recipe_of(config: RunConfig) -> dict[str, Any]:
    """The shared settings of a run that a later step of its model should follow; the method's own go with the model."""
    settings = config.model_dump(mode="json")
    return {section: {name: settings[section][name] for name in kept} for section, kept in _KEPT.items()}


def read_recipe(stored: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of a stored recipe: fields of another version are left out, not refused."""
    found: dict[str, Any] = {}
    for section, kept in _KEPT.items():
        values = stored.get(section)
        if isinstance(values, Mapping):
            found[section] = {name: value for name, value in values.items() if name in kept}
    return found


def known_fields(kind: type[Section], stored: Mapping[str, Any]) -> dict[str, Any]:
    """What of `stored` are fields of `kind`, section by section: those of another version are left out."""
    found: dict[str, Any] = {}
    for name, value in stored.items():
        if name not in kind.model_fields:
            continue
        below = kind.model_fields[name].annotation
        if isinstance(below, type) and issubclass(below, Section):
            if isinstance(value, Mapping):
                found[name] = known_fields(below, value)
        else:
            found[name] = value
    return found
