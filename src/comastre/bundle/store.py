"""Model bundles: a directory that can be shared, with tensors in safetensors and everything else as readable text.

No pickle is ever read, and nothing but the four files of a bundle is looked at. A bundle is written aside and then
renamed, so that a killed program leaves either the old bundle or the new one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from comastre import __version__
from comastre.bundle.card import model_card
from comastre.class_table import ClassTable, LineageStep, class_table
from comastre.config.run import ModelConfig
from comastre.config.settings import explain
from comastre.errors import UserError
from comastre.files import flush
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.section import Section

# What a caller of `save` needs comes along.
__all__ = ["FILES", "Bundle", "ClassTable", "LineageStep", "class_table", "load", "save", "saved_tensors"]

FORMAT_VERSION = 1
WEIGHTS, CONFIG, CLASSES, CARD = "model.safetensors", "config.json", "classes.json", "README.md"
FILES = (WEIGHTS, CONFIG, CLASSES, CARD)
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Training only, and recreated at each step: no part of what a bundle is for.
_NOT_SAVED = "auxiliary_head."
_ONLY_SAFE = f"save the model again as a bundle, with {WEIGHTS}"

Parsed = TypeVar("Parsed", bound=Section)


@dataclass(frozen=True)
class Bundle:
    """A model with its classes, as read from a directory."""

    model: Segmenter
    classes: ClassTable


def save(model: Segmenter, classes: ClassTable, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write a bundle to the directory `path`; with `overwrite` the old bundle stays until the new one is complete."""
    target = Path(path)
    if classes.tasks != model.tasks:
        raise ValueError(f"the class table has tasks of {classes.tasks} classes, the model of {model.tasks}")
    _check_target(target, overwrite)
    aside, previous = _aside(target), _previous(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        _write_files(model, classes, aside)
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
    directory = _existing(Path(path))
    config, tasks = _read_config(directory)
    classes = _validated(ClassTable, _read_json(directory / CLASSES), directory / CLASSES)
    if classes.tasks != tasks:
        raise UserError(
            f"{directory / CLASSES} has tasks of {classes.tasks} classes but {CONFIG} of {tasks}: "
            "the two files are not of one bundle, copy the whole bundle again"
        )
    # Building draws random weights that are then replaced; the caller's random numbers must not notice.
    with torch.random.fork_rng(devices=[]):
        model = build_segmenter(config, tasks)
    model.load_state_dict(_read_weights(directory / WEIGHTS, saved_tensors(model)), strict=False)
    return Bundle(model.eval(), classes)


def saved_tensors(model: Segmenter) -> dict[str, Tensor]:
    """The tensors of a model that belong in a bundle."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(_NOT_SAVED)}


def _write_files(model: Segmenter, classes: ClassTable, directory: Path) -> None:
    # Clones, because safetensors refuses tensors that share memory.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in saved_tensors(model).items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    architecture = {
        "format": "comastre",
        "version": FORMAT_VERSION,
        "written_by": f"comastre {__version__}",
        "tasks": list(model.tasks),
        "model": portable_config(model).model_dump(mode="json"),
    }
    _write_json(directory / CONFIG, architecture)
    _write_json(directory / CLASSES, classes.model_dump(mode="json"))
    weights = sum(tensor.numel() for tensor in tensors.values())
    (directory / CARD).write_text(model_card(model.config, classes, weights), encoding="utf-8")
    for name in FILES:
        flush(directory / name)
    flush(directory)


def portable_config(model: Segmenter) -> ModelConfig:
    """The configuration with what a bundle must not depend on: paths of weights and the backbone library's tables."""
    backbone = model.config.backbone.model_copy(
        update={
            "weights": "none",
            "mean": tuple(model.backbone.mean.flatten().tolist()),
            "std": tuple(model.backbone.std.flatten().tolist()),
        }
    )
    return model.config.model_copy(update={"backbone": backbone})


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"{target} is a file: give the name of a folder for the model")
    present = sorted(file.name for file in target.iterdir())
    strangers = [name for name in present if name not in FILES]
    if strangers:
        raise UserError(f"{target} holds {strangers[0]}, which is no part of a model: choose another folder")
    if present and not overwrite:
        raise UserError(f"{target} already holds a model: choose another folder, or ask to overwrite it")


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
            raise UserError(f"{directory / pickles[0]} is a pickle, which could run code and is not read: {_ONLY_SAFE}")
    for name in (CONFIG, CLASSES, WEIGHTS):
        if not (directory / name).is_file():
            raise UserError(f"{directory} is not a whole model: {name} is missing; copy the whole folder again")
    return directory


def _read_config(directory: Path) -> tuple[ModelConfig, tuple[int, ...]]:
    file = directory / CONFIG
    content = _read_json(file)
    version = content.get("version")
    if content.get("format") != "comastre" or not isinstance(version, int):
        raise UserError(f"{file} is not the configuration of a comastre model: give the folder of a comastre bundle")
    if version > FORMAT_VERSION:
        raise UserError(
            f"{file} has format version {version}, but this comastre reads up to {FORMAT_VERSION}: upgrade comastre"
        )
    tasks = content.get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(type(size) is int and size > 0 for size in tasks):
        raise UserError(f"{file}: tasks is {tasks!r} but must be a list of class counts; copy the file again")
    if not isinstance(content.get("model"), dict):
        raise UserError(f"{file}: the section model is missing; copy the file again")
    config = _validated(ModelConfig, content["model"], file)
    # Whatever a shared file says, loading a bundle neither downloads nor opens other files.
    return config.model_copy(update={"backbone": config.backbone.model_copy(update={"weights": "none"})}), tuple(tasks)


def _read_weights(file: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `file`, which must be those of the model: same names, shapes and number types."""
    with file.open("rb") as stream:
        start = stream.read(9)
    # A safetensors file starts with the length of a JSON header (8 bytes) and the header's brace.
    if start[8:] != b"{" and (start.startswith(b"PK") or start[:1] == b"\x80"):
        raise UserError(f"{file} is a pickle by another name, which could run code and is not read: {_ONLY_SAFE}")
    try:
        with safe_open(file, framework="pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        difference = _mismatch(shapes, {name: tuple(tensor.shape) for name, tensor in expected.items()})
        tensors = {} if difference else load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged or cut short ({error}): copy it again") from error
    difference = difference or _mismatch(
        {name: tensor.dtype for name, tensor in tensors.items()},
        {name: tensor.dtype for name, tensor in expected.items()},
    )
    if difference:
        raise UserError(f"{file} does not fit {CONFIG}: {difference}; the two are not of one bundle, copy both again")
    return tensors


def _mismatch(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """The first difference between two tables of tensors, in words; empty where there is none."""
    for name, value in expected.items():
        if name not in found:
            return f"tensor {name} is missing"
        if found[name] != value:
            return f"tensor {name} is {found[name]} instead of {value}"
    return next((f"tensor {name} is not known" for name in found if name not in expected), "")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}): copy it again") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} must hold a JSON object, but holds {type(content).__name__}: copy it again")
    return content


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _validated(kind: type[Parsed], content: Mapping[str, Any], file: Path) -> Parsed:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{file}: {explain(error)}") from error
