"""Bundles of version 1, which knew CoMasTRe alone: read as what they mean today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.config import methods
from comastre.config.older import upgraded
from comastre.config.recipe import read_recipe, usual_settings
from comastre.config.sections import BACKBONES
from comastre.section import merge

_SECTION = "comastre"


def described_in_version_1(model: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.json` says today of a model: `model` is its section there, `recorded` how it was trained."""
    spec = methods.find(_SECTION)
    today = upgraded({"model": model, **recorded}, _SECTION)
    size = str(today.get("size", "r101"))
    # What was not recorded is as models of the size are usually trained; what the model is, it says itself.
    usual = usual_settings(size, spec.name)
    shape = spec.config.model_sections
    trained = {name: value for name, value in usual.get(_SECTION, {}).items() if name not in shape}
    return {
        "method": spec.name,
        "size": size,
        "backbone": merge(BACKBONES.get(size, {}), today.get("backbone", {})),
        "settings": merge(merge(spec.config.for_size(size), trained), today.get(_SECTION, {})),
        "training": merge(read_recipe(usual), read_recipe(today)),
    }
