"""Configurations of before a method owned its section: read as what they mean today.

Until version 0.1 the sections of CoMasTRe stood at the top of a run and the backbone in `model`, and two fields said
when BatchNorm stands still. Run directories, YAML files and bundles written then are read on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comastre.config.yaml_text import NotYaml, parse_yaml
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
_FROZEN, _FROZEN_LATER, _BATCH_NORM = "frozen_batch_norm", "freeze_batch_norm_later", "freeze_batch_norm"

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
        if _FROZEN_LATER in training:
            moved = merge(moved, {"backbone": {_FROZEN_LATER: training[_FROZEN_LATER]}})
        left = {name: value for name, value in training.items() if name not in (*_OPTIMISER, _FROZEN_LATER)}
        given["training"] = left
    found = merge(moved, given)
    backbone = found.get("backbone")
    return found | {"backbone": batch_norm_today(backbone)} if isinstance(backbone, Mapping) else found


def batch_norm_today(backbone: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a backbone with today's one name for when BatchNorm stands still, which older versions had two for.

    They let it stand still in later steps where nothing was said, and its weights and biases learn always.
    """
    given = dict(backbone)
    always, later = given.pop(_FROZEN, None), given.pop(_FROZEN_LATER, None)
    if (always is None and later is None) or _BATCH_NORM in given:
        return given
    when = _meaning(_FROZEN, always) if later is None or always else _meaning(_FROZEN_LATER, later)
    return {"freeze_batch_norm_weights": False} | given | {_BATCH_NORM: when}


def _meaning(field: str, value: Any) -> Any:
    """The value of `freeze_batch_norm` for that of an older field; what is no truth value stays, to be refused."""
    if not isinstance(value, bool):
        return value
    if field == _FROZEN:
        return "always" if value else "later"
    return "later" if value else "none"


def renamed(field: str) -> str | None:
    """Today's name of a field, from the right, where an older version called it otherwise; None for other names."""
    first, _, rest = field.partition(".")
    if field == "backbone_weights":  # as `learn` called it
        return "backbone.weights"
    if _last(field) in (_FROZEN, _FROZEN_LATER):
        return f"backbone.{_BATCH_NORM}"
    if first == "model" and rest:
        return rest
    if first == "training" and rest in _OPTIMISER:
        return f"optimiser.{rest}"
    return None


def renamed_value(field: str, text: str) -> str:
    """What today's field is given for `text` on a command line that calls it by an older name."""
    if _last(field) not in (_FROZEN, _FROZEN_LATER):
        return text
    try:
        return str(_meaning(_last(field), parse_yaml(text)))
    except NotYaml:
        return text


def _last(field: str) -> str:
    return field.replace("-", "_").rpartition(".")[2]
