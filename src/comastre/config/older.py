"""Configurations of before a method owned its section: read as what they mean today.

Until version 0.1 the sections of CoMasTRe stood at the top of a run and the backbone in `model`. Run directories, YAML
files and bundles written then are read on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.section import merge

LOSS_SECTIONS = ("matching", "masks", "classification", "distillation", "weights")
_OPTIMISER = (
    "learning_rate",
    "later_learning_rate",
    "backbone_factor",
    "later_backbone_factor",
    "weight_decay",
    "clip",
    "warmup",
    "power",
)
_BATCH_NORM = "freeze_batch_norm_later"

AS_IT_WAS: Mapping[str, Any] = {"distillation": {"mask_loss": "divergence"}}
"""What CoMasTRe did before there was a field for it, where today's default does something else."""


def upgraded(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The settings in today's layout, whose method's section is called `section`."""
    given = dict(settings)
    moved: dict[str, Any] = {}
    if all(name in given for name in ("model", *LOSS_SECTIONS)):  # a whole file, as a run writes it
        moved = {section: AS_IT_WAS}
    model = given.get("model")
    if isinstance(model, Mapping):
        del given["model"]
        inside = dict(model)
        for name in ("size", "backbone"):
            if name in inside:
                moved[name] = inside.pop(name)
        moved = merge(moved, {section: inside})
    for name in LOSS_SECTIONS:
        if name in given and section != name:
            moved = merge(moved, {section: {name: given.pop(name)}})
    training = given.get("training")
    if isinstance(training, Mapping):
        rates = {name: training[name] for name in _OPTIMISER if name in training}
        if rates:
            moved = merge(moved, {section: {"optimiser": rates}})
        if _BATCH_NORM in training:
            moved = merge(moved, {"backbone": {_BATCH_NORM: training[_BATCH_NORM]}})
        left = {name: value for name, value in training.items() if name not in (*_OPTIMISER, _BATCH_NORM)}
        given["training"] = left
    return merge(moved, given)


def renamed(field: str) -> str | None:
    """Today's name of a field, from the right, where an older version called it otherwise; None for other names."""
    first, _, rest = field.partition(".")
    if first == "model" and rest:
        return rest
    if first == "training" and rest in _OPTIMISER:
        return f"optimiser.{rest}"
    if field in ("training.freeze_batch_norm_later", "freeze_batch_norm_later"):
        return f"backbone.{_BATCH_NORM}"
    return None
