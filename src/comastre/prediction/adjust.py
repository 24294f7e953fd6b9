"""Another way of predicting with the same weights: thresholds and whatever else a method reads when it predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from pydantic import ValidationError

from comastre.bundle.store import Bundle
from comastre.config.settings import explain
from comastre.errors import UserError
from comastre.methods.build import build_method
from comastre.section import Section, merge

INFERENCE = "inference"
"""The part of a method's section that decides how a trained model predicts; a method may have none."""


def adjusted(bundle: Bundle, fields: Mapping[str, Any]) -> Bundle:
    """The same model with other values of the fields that its method reads when it predicts."""
    description = bundle.description
    section = getattr(description.settings, INFERENCE, None)
    known = tuple(type(section).model_fields) if isinstance(section, Section) else ()
    for name in fields:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise UserError(f"a model of the method {description.method} has no field {name} for predictions: {has}")
    if not fields:
        return bundle
    changed = merge(description.settings.model_dump(), {INFERENCE: dict(fields)})
    try:
        settings = type(description.settings).model_validate(changed)
    except ValidationError as error:
        raise UserError(f"a prediction cannot be made so: {explain(error)}") from error
    description = replace(description, settings=settings)
    # Building draws random weights that are then replaced; the caller's random numbers must not notice.
    with torch.random.fork_rng(devices=[]):
        model = build_method(description.method, description.setup).build(bundle.model.tasks)
    model.load_state_dict(bundle.model.state_dict())
    return replace(bundle, model=model.to(next(bundle.model.parameters()).device).eval(), description=description)
