"""What transformers has no field for: how a model of ours predicts and was trained, beside theirs in `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from comastre.bundle.checkpoint import Checkpoint
from comastre.bundle.store import Bundle
from comastre.config.recipe import known_fields
from comastre.config.sections import BackboneConfig, Size
from comastre.methods.mask2former.config import Mask2FormerConfig

KEY = "comastre"
_SHAPES = ("pixel_decoder", "mask_decoder")
"""Sections that transformers has fields for."""
_STANDING = ("freeze_batch_norm", "freeze_batch_norm_weights", "frozen_stride")
_PUBLIC = {"freeze_batch_norm": "always", "freeze_batch_norm_weights": True}
"""Public checkpoints were trained on fixed BatchNorm, as detectron2 has it: a few images of a lesson move it less."""
BACKGROUNDS = ("background", "void")


@dataclass(frozen=True)
class OwnSettings:
    """What a checkpoint says beyond transformers' fields; the defaults suit public ones, which say nothing."""

    size: str = "r50"
    backbone: Mapping[str, Any] = field(default_factory=lambda: dict(_PUBLIC))
    """What of it stands still in training."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Sections of Mask2Former but for its shapes."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Settings of its training that the next step should follow (`config.recipe`)."""
    background: str = "void"
    """What label 0 is called."""


def written_settings(bundle: Bundle) -> dict[str, Any]:
    """What to write under `KEY`, as JSON."""
    description = bundle.description
    settings = known_fields(Mask2FormerConfig, description.settings.model_dump(mode="json"))
    return {
        "size": description.size,
        "backbone": {name: getattr(description.backbone, name) for name in _STANDING},
        "settings": {name: value for name, value in settings.items() if name not in _SHAPES},
        "training": dict(description.training),
        "background": bundle.classes.background,
    }


def read_settings(checkpoint: Checkpoint) -> OwnSettings:
    """What this version knows of it: fields of another one are left out, and their values are checked where used."""
    found = checkpoint.config.get(KEY)
    if not isinstance(found, Mapping):
        return OwnSettings()
    backbone, settings, training = (_section(found, name) for name in ("backbone", "settings", "training"))
    settings = known_fields(Mask2FormerConfig, settings)
    return OwnSettings(
        size=found["size"] if found.get("size") in get_args(Size) else OwnSettings.size,
        backbone={name: value for name, value in known_fields(BackboneConfig, backbone).items() if name in _STANDING},
        settings={name: value for name, value in settings.items() if name not in _SHAPES},
        training=training,
        background=found["background"] if found.get("background") in BACKGROUNDS else OwnSettings.background,
    )


def _section(found: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = found.get(name)
    return section if isinstance(section, Mapping) else {}
