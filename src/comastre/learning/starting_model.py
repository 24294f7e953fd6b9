"""The model that learning starts from: a bundle, a model in memory, or a new one."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from comastre.bundle import history, store
from comastre.bundle.hub import locate
from comastre.bundle.store import Bundle, Description
from comastre.class_table import ClassTable
from comastre.config import methods
from comastre.config.recipe import read_recipe, usual_settings
from comastre.config.sections import Size
from comastre.config.settings import validate
from comastre.errors import UserError
from comastre.learning.continuing import Continued, find_lesson
from comastre.paths import user_path
from comastre.prediction.model import Model
from comastre.section import merge

NEW = "new:"


@dataclass(frozen=True)
class StartingModel:
    """What learning starts from."""

    description: Description
    bundle: Bundle | None
    """None for a new model, which the training builds."""
    title: str
    folder: Path | None = None
    """Where the bundle is."""

    @property
    def known(self) -> ClassTable | None:
        """Its classes."""
        return None if self.bundle is None else self.bundle.classes

    @property
    def taken_over(self) -> bool:
        """Whether another method made it than the one that teaches it from now on."""
        return self.bundle is not None and self.bundle.description.method != self.description.method

    def sha256(self) -> str | None:
        """Of its bundle, by which a model that learns on says where it comes from; None for a new model."""
        if self.bundle is None:
            return None
        if self.folder is not None:
            return history.digest(self.folder)
        with tempfile.TemporaryDirectory() as folder:
            return history.digest(store.save(self.bundle, Path(folder) / "model"))

    def taught_at_once(self) -> StartingModel | None:
        """The same model with the method that teaches it by one look at the images; None where none does."""
        other = methods.find(self.description.method).taught_at_once_by
        if self.bundle is None or other is None:
            return None
        described = _taught_by(self.description, methods.find(other), len(self.bundle.classes.tasks))
        return replace(self, description=described)

    def digest(self) -> str:
        """Changes with any number, class or field of the model."""
        what = self.description
        sections = (what.backbone, what.settings, what.view)
        fields = [what.method, what.size, *(section.model_dump(mode="json") for section in sections)]
        mark = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        if self.bundle is not None:
            mark.update(repr(self.bundle.classes.names).encode())
            for name, tensor in sorted(self.bundle.model.state_dict().items()):
                mark.update(name.encode())
                mark.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return mark.hexdigest()[:16]


def open_model(
    model: Model | str | Path, backbone_weights: str | None = None, method: str | None = None
) -> StartingModel:
    """The model of a bundle's folder, a hub id or an object, or with `new:SIZE` one that knows nothing yet.

    `method` is the one that a new model learns with; a model that exists brings its own, unless that one can teach it.
    """
    if isinstance(model, str) and model.startswith(NEW):
        return _new(model.removeprefix(NEW), backbone_weights, method or methods.DEFAULT)
    if backbone_weights is not None:
        raise UserError(
            "backbone.weights is for new models (new:small): a model that exists brings its own, leave it away"
        )
    if isinstance(model, Model):
        loaded, title, folder = model.bundle, "the model", None
    else:
        folder = locate(model)
        loaded, title = store.load(folder), str(model)
    description = store.portable(loaded)
    spec = methods.find(description.method)
    if spec.learns_on_as is not None:
        description = _taught_by(description, methods.find(spec.learns_on_as), len(loaded.classes.tasks))
    if method not in (None, description.method):
        description = _taught_otherwise(description, method, len(loaded.classes.tasks))
    return StartingModel(description, loaded, _title(title, loaded.classes), folder)


def reopen(
    model: Model | str | Path, parent: str | Path | None = None, method: str | None = None
) -> tuple[StartingModel, Continued]:
    """The teacher of the last lesson of `model` and that lesson, to go on with it."""
    if isinstance(model, Model):
        raise UserError("a lesson goes on from the folder that it was written to: give that, not a model in memory")
    if str(model).startswith(NEW):
        raise UserError(f"--continue {model}: a new model has had no lesson yet; give it as MODEL")
    taught = locate(model)
    teacher, lesson = find_lesson(taught, None if parent is None else user_path(parent, "--parent"))
    own, starting = store.load(taught).description.method, open_model(teacher)
    if method is None and methods.find(starting.description.method).taught_at_once_by == own:
        return starting, replace(lesson, begins=False)  # what was one look goes on as a lesson that trains
    return open_model(teacher, method=method or own), lesson


def _taught_by(description: Description, spec: methods.MethodSpec, num_tasks: int) -> Description:
    """The same model with another method, whose section has all fields of its own and may have more."""
    settings = description.settings
    if type(settings) is not spec.config:
        settings = spec.config.model_validate(spec.config.adopting(settings.model_dump(), num_tasks))
    return replace(description, method=spec.name, settings=settings)


def _taught_otherwise(description: Description, method: str | None, num_tasks: int) -> Description:
    """The same model with a method that can take it over, such as fine-tuning, which shares section and network."""
    own, other = methods.find(description.method), methods.find(str(method))
    alike = (own.config, own.section_name, own.gives) == (other.config, other.section_name, other.gives)
    if own.name not in other.teaches and (not alike or other.all_at_once):
        raise UserError(
            f"--method {method} cannot be set for a lesson: the model's own is {own.name}, leave it away, or give a "
            "variant of it that learns step by step"
        )
    return _taught_by(description, other, num_tasks)


def _title(name: str, known: ClassTable) -> str:
    steps = len(known.tasks)
    return f"{name}: {len(known.names)} classes, learned in {steps} {'step' if steps == 1 else 'steps'}"


def _new(size: str, weights: str | None, method: str) -> StartingModel:
    sizes = get_args(Size)
    if size not in sizes:
        raise UserError(f"{NEW}{size} is no size of model: choose {', '.join(NEW + each for each in sizes)}")
    if weights not in (None, "hub", "none"):
        weights = str(user_path(str(weights), "backbone.weights").absolute())
        if not Path(weights).is_file():
            raise UserError(f"backbone.weights: there is no file {weights}; give a weights file, 'hub' or 'none'")
    usual = usual_settings(size, method)
    given: dict[str, Any] = {"method": method, "size": size, **({"backbone": {"weights": weights}} if weights else {})}
    config = validate(merge(usual, given), f"{NEW}{size}")
    backbone = config.backbone
    # BatchNorm statistics of a few dozen images are worse than those of a pretraining, which are therefore frozen; a
    # random backbone has none worth keeping, so all of it is trained.
    pretrained = backbone.weights != "none"
    standing = {
        "freeze_batch_norm": "always" if pretrained else "later",
        "freeze_batch_norm_weights": False,
        "frozen_stride": backbone.frozen_stride if pretrained else 0,
    }
    backbone = backbone.model_copy(update=standing)
    origin = {
        "hub": "pretrained weights from the hub",
        "none": "random weights" + ("" if weights else ", as models of this size are trained from nothing"),
    }.get(backbone.weights, f"weights of {backbone.weights}")
    description = Description(method, size, backbone, config.method_settings, read_recipe(usual), config.view)
    return StartingModel(description, None, f"a new one of size {size}, backbone {backbone.name}, {origin}")


def run_settings(model: StartingModel) -> dict[str, Any]:
    """The settings of a run that learns on as the model was trained."""
    what = model.description
    section = methods.find(what.method).section_name
    own = {
        "method": what.method,
        "size": what.size,
        "backbone": what.backbone.model_dump(),
        section: what.settings.model_dump(),
        "view": what.view.model_dump(),
    }
    return merge(read_recipe(what.training), own)
