"""Model bundles: a directory that can be shared, with tensors in safetensors and everything else as readable text.

A bundle is foreign data: no pickle is ever read, nothing but the files of a bundle is looked at, no address is opened,
and nothing is built before its sizes are known to be those of the tensors in the file. It names an installed method and
a network of timm, and never code. It is written aside and then renamed, so that a killed program leaves either the old
bundle or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from safetensors import SafetensorError

from comastre import __version__
from comastre.bundle.card import model_card
from comastre.bundle.older import described_in_version_1
from comastre.bundle.statistics import STATISTICS, read_statistics, write_statistics
from comastre.bundle.weights import ONLY_SAFE, WEIGHTS, built, read_weights, written
from comastre.class_table import ClassTable
from comastre.config import methods
from comastre.config.recipe import known_fields
from comastre.config.sections import BackboneConfig, MethodConfig, Size
from comastre.config.settings import explain
from comastre.config.view import UNWRITTEN, ViewConfig
from comastre.documents import is_text, json_bytes, read_json
from comastre.errors import UserError
from comastre.files import flush, write_whole
from comastre.methods.protocol import Setup
from comastre.nets.backbone import Backbone
from comastre.paths import user_path
from comastre.section import Section, merge
from comastre.text import brief

FORMAT_VERSION = 2
CONFIG, CLASSES, CARD = "config.json", "classes.json", "README.md"
FILES = (WEIGHTS, CONFIG, CLASSES, CARD)
EXTRAS = (STATISTICS, "previous.safetensors", "lesson.html")
"""What may be beside them: statistics of classes, and what `learn` puts there, at which reading does not look."""
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")

Parsed = TypeVar("Parsed", bound=Section)


@dataclass(frozen=True)
class Description:
    """What a model is, beside its numbers: the method that made it, with its settings."""

    method: str
    size: str
    backbone: BackboneConfig
    settings: MethodConfig
    training: Mapping[str, Any] = field(default_factory=dict)
    """Shared settings that the last step was trained with, for the next one to follow (`config.recipe`)."""
    view: ViewConfig = UNWRITTEN
    """The size at which the model sees an image."""

    @property
    def setup(self) -> Setup:
        return Setup(self.backbone, self.settings, self.size)


@dataclass(frozen=True)
class Bundle:
    """A model with its classes and what it is, as kept in a directory."""

    model: Any
    """A torch module, as `methods.protocol.SegmentationModel` says."""
    classes: ClassTable
    description: Description


def save(bundle: Bundle, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a bundle to the directory `path`; with `overwrite` the old bundle stays until the new one is complete."""
    target = user_path(path, "the folder for the model")
    if bundle.classes.tasks != bundle.model.tasks:
        raise ValueError(
            f"the class table has tasks of {bundle.classes.tasks} classes, the model of {bundle.model.tasks}"
        )
    refuse_taken(target, overwrite)
    aside, previous = _aside(target), _previous(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        _write_files(bundle, aside)
        if target.exists():
            shutil.rmtree(previous, ignore_errors=True)
            target.rename(previous)
        aside.rename(target)
        flush(target.parent)
        shutil.rmtree(previous, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(
            f"the model could not be written to {target}: {error}; free some space or choose another folder"
        ) from error
    return target


def load(path: str | Path) -> Bundle:
    """Read a bundle from the directory `path`, on the CPU and in evaluation mode."""
    directory = _existing(user_path(path, "the model"))
    content = _read_json(directory / CLASSES)
    # Version 1 kept there how the model was trained.
    recorded = content.pop("training", {})
    description, tasks = _read_description(directory, recorded if isinstance(recorded, Mapping) else {})
    classes = _validated(ClassTable, content, directory / CLASSES)
    if classes.tasks != tasks:
        raise UserError(
            f"{directory / CLASSES} has tasks of {classes.tasks} classes but {CONFIG} of {tasks}: "
            "the two files are not of one bundle, copy the whole bundle again"
        )
    model = built(directory / CONFIG, directory / WEIGHTS, description, tasks)
    model.load_state_dict(read_weights(directory / WEIGHTS, model.state_dict()))
    read_statistics(model, directory)
    return Bundle(model.eval(), classes, description)


def classes_of(directory: Path) -> ClassTable:
    """The classes of a bundle alone, without a look at its weights."""
    content = _read_json(directory / CLASSES)
    content.pop("training", None)
    return _validated(ClassTable, content, directory / CLASSES)


def described(directory: Path) -> Mapping[str, Any]:
    """The content of `config.json` as it stands, without a look at the weights; empty where there is none."""
    try:
        content = read_json(directory / CONFIG)
    except (ValueError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _write_files(bundle: Bundle, directory: Path) -> None:
    # Clones, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in bundle.model.state_dict().items()}
    write_whole(directory / WEIGHTS, written(tensors))
    write_statistics(bundle.model, directory)
    description = portable(bundle)
    architecture = {
        "format": "comastre",
        "version": FORMAT_VERSION,
        "written_by": f"comastre {__version__}",
        "method": description.method,
        "tasks": list(bundle.model.tasks),
        "size": description.size,
        "backbone": description.backbone.model_dump(mode="json"),
        "settings": description.settings.model_dump(mode="json"),
        "view": description.view.model_dump(mode="json"),
        "training": dict(description.training),
    }
    _write_json(directory / CONFIG, architecture)
    _write_json(directory / CLASSES, bundle.classes.model_dump(mode="json"))
    weights = sum(tensor.numel() for tensor in tensors.values())
    title = f"{methods.title_of(description.method)}, size {description.size} ({description.backbone.name})"
    write_whole(directory / CARD, model_card(title, bundle.classes, weights).encode(errors="replace"))


def portable(bundle: Bundle) -> Description:
    """The description with what a bundle must not depend on: paths of weights and the backbone library's tables."""
    backbone = bundle.description.backbone.without_weights()
    network = getattr(bundle.model, "backbone", None)
    if isinstance(network, Backbone):
        numbers = {name: tuple(getattr(network, name).flatten().tolist()) for name in ("mean", "std")}
        backbone = backbone.model_copy(update=numbers)
    return replace(bundle.description, backbone=backbone)


def refuse_taken(target: Path, overwrite: bool = False) -> None:
    """Say why a model cannot be written to `target`, where that is so."""
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target} is a file: give the name of a folder for the model")
    present = sorted(file.name for file in target.iterdir())
    strangers = [name for name in present if name not in (*FILES, *EXTRAS)]
    if strangers:
        raise UserError(f"{target} holds {strangers[0]}, which is no part of a model: choose another folder")
    if present and not overwrite:
        raise UserError(f"{target} already holds a model: choose another folder, or delete that one first")


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial")


def _previous(target: Path) -> Path:
    return target.with_name(f".{target.name}.previous")


def _existing(path: Path) -> Path:
    """The bundle's directory; its previous version where a program was killed between two renames."""
    directory = path if path.exists() or not _previous(path).is_dir() else _previous(path)
    if not directory.exists():
        raise UserError(f"there is no model at {path}: give the folder of a model bundle")
    if not directory.is_dir():
        raise UserError(f"{path} is a file, but a model is a folder with {', '.join(FILES)}: give that folder")
    if not (directory / WEIGHTS).is_file():
        pickles = sorted(file.name for file in directory.iterdir() if file.suffix in _PICKLE_SUFFIXES)
        if pickles:
            raise UserError(f"{directory / pickles[0]} is a pickle, which could run code and is not read: {ONLY_SAFE}")
    for name in (CONFIG, CLASSES, WEIGHTS):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is not a whole model: {name} is missing; copy the whole folder again")
        if not os.access(directory / name, os.R_OK):
            raise UserError(
                f"{directory / name} may be read by its owner only: ask them for `chmod -R a+rX {directory}`"
            )
    return directory


def _read_description(directory: Path, recorded: Mapping[str, Any]) -> tuple[Description, tuple[int, ...]]:
    """What the bundle says the model is, and its tasks; `recorded` is how version 1 kept its training."""
    file = directory / CONFIG
    content = _read_json(file)
    version = content.get("version")
    if content.get("format") != "comastre" or type(version) is not int or version < 1:
        raise UserError(f"{file} is not the configuration of a comastre model: give the folder of a comastre bundle")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{file} has format version {version}, but this comastre reads up to {FORMAT_VERSION}: upgrade comastre"
        )
    tasks = content.get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(type(size) is int and size > 0 for size in tasks):
        raise UserError(f"{file}: tasks is {brief(tasks)} but must be a list of class counts; copy the file again")
    if version == 1:
        if not isinstance(content.get("model"), dict):
            raise UserError(f"{file}: the section model is missing; copy the file again")
        content = described_in_version_1(content["model"], recorded)
    return _description(file, content), tuple(tasks)


def _description(file: Path, content: Mapping[str, Any]) -> Description:
    for name, kind in (("method", str), ("size", str), ("backbone", dict), ("settings", dict)):
        if not isinstance(content.get(name), kind):
            raise UserError(f"{file}: {name} is missing or no {kind.__name__}; copy the file again")
    if content["size"] not in get_args(Size):
        raise UserError(f"{file}: size is {content['size'][:40]!r} but must be one of {', '.join(get_args(Size))}")
    try:
        spec = methods.find(content["method"])
    except UserError as error:
        raise UserError(f"{file}: {error}; a model can be used where its method is installed") from None
    # Strict about what the model is; of how it was trained, fields of another version are left out.
    given = merge(spec.config.unwritten, content["settings"])
    shape = {name: value for name, value in given.items() if name in spec.config.model_sections}
    settings = _validated(spec.config, known_fields(spec.config, given) | shape, file)
    backbone = _validated(BackboneConfig, content["backbone"], file)
    view = _validated(ViewConfig, content["view"], file) if isinstance(content.get("view"), dict) else UNWRITTEN
    training = content.get("training")
    return Description(
        spec.name,
        content["size"],
        # Whatever a shared file says, loading a bundle neither downloads nor opens other files.
        backbone.without_weights(),
        settings,
        training if isinstance(training, dict) else {},
        view,
    )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold a JSON object, but holds {type(content).__name__}: copy it again")
    if not is_text(content):
        raise UserError(f"{file} holds half a character: copy it again")
    return content


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    write_whole(file, json_bytes(content, indent=2))


def _validated(kind: type[Parsed], content: Mapping[str, Any], file: Path) -> Parsed:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{file}: {explain(error)}") from error
