"""The model that learns: a bundle, a model in memory, or a new one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from comastre.bundle import store
from comastre.bundle.hub import locate
from comastre.class_table import ClassTable
from comastre.config.run import ModelConfig
from comastre.config.settings import read_settings
from comastre.errors import UserError
from comastre.learning.schedule import PRESET_OF
from comastre.methods.comastre.segmenter import Segmenter
from comastre.prediction.model import Model
from comastre.section import merge

NEW = "new:"


@dataclass(frozen=True)
class Student:
    """What learning starts from."""

    config: ModelConfig
    segmenter: Segmenter | None
    """None for a new model, which the training builds."""
    known: ClassTable | None
    title: str
    folder: Path | None = None
    """Where the old bundle is."""

    @property
    def recorded(self) -> Mapping[str, Any]:
        """How it was trained before."""
        return self.known.training if self.known is not None else {}

    def digest(self) -> str:
        """Changes with any number, class or field of the model."""
        mark = hashlib.sha256(self.config.model_dump_json().encode())
        if self.segmenter is not None and self.known is not None:
            mark.update(repr(self.known.names).encode())
            for name, tensor in sorted(store.saved_tensors(self.segmenter).items()):
                mark.update(name.encode())
                mark.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return mark.hexdigest()[:16]


def open_student(model: Model | str | Path, backbone_weights: str | None = None) -> Student:
    """The model of a bundle's folder, a hub id or an object, or with `new:SIZE` one that knows nothing yet."""
    if isinstance(model, str) and model.startswith(NEW):
        return _new(model.removeprefix(NEW), backbone_weights)
    if backbone_weights is not None:
        raise UserError(
            "--backbone-weights is for new models (new:small): a model that exists brings its own, leave it away"
        )
    if isinstance(model, Model):
        known = model.classes
        return Student(store.portable_config(model.segmenter), model.segmenter, known, _title("the model", known))
    folder = locate(model)
    loaded = store.load(folder)
    return Student(loaded.model.config, loaded.model, loaded.classes, _title(str(model), loaded.classes), folder)


def _title(name: str, known: ClassTable) -> str:
    steps = len(known.tasks)
    return f"{name}: {len(known.names)} classes, learned in {steps} {'step' if steps == 1 else 'steps'}"


def _new(size: str, weights: str | None) -> Student:
    sizes = get_args(ModelConfig.model_fields["size"].annotation)
    if size not in sizes:
        raise UserError(f"{NEW}{size} is no size of model: choose {', '.join(NEW + each for each in sizes)}")
    if weights not in (None, "hub", "none"):
        weights = str(Path(str(weights)).expanduser().absolute())
        if not Path(weights).is_file():
            raise UserError(f"--backbone-weights: there is no file {weights}; give a weights file, 'hub' or 'none'")
    preset = PRESET_OF.get(size)
    usual = read_settings(preset)["model"] if preset is not None else {}
    given = {"size": size, **({"backbone": {"weights": weights}} if weights else {})}
    config = ModelConfig.model_validate(merge(usual, given))
    # A few dozen images say too little for statistics that are better than those of a pretraining; without one, nothing
    # may stand still.
    pretrained = config.backbone.weights != "none"
    standing = {"frozen_batch_norm": pretrained, "frozen_stride": config.backbone.frozen_stride if pretrained else 0}
    config = config.model_copy(update={"backbone": config.backbone.model_copy(update=standing)})
    origin = {
        "hub": "pretrained weights from the hub",
        "none": "random weights" + ("" if weights else ", as models of this size are trained from nothing"),
    }.get(config.backbone.weights, f"weights of {config.backbone.weights}")
    return Student(config, None, None, f"a new one of size {size}, backbone {config.backbone.name}, {origin}")
