"""A checkpoint in transformers' format: what it says of itself and its tensors; no pickle is ever read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from comastre.documents import read_json
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.text import brief

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Checkpoint:
    """The content of a folder that transformers wrote."""

    source: str
    """As the user gave it, for messages."""
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    processor: Mapping[str, Any] = field(default_factory=dict)
    """How images are prepared; empty where the folder does not say."""


def read_checkpoint(source: str | Path) -> Checkpoint:
    """A folder with config.json and weights, or a hub id."""
    folder = _folder_of(source)
    config = _read_json(folder / CONFIG)
    if config.get("format") == "comastre":
        raise UserError(
            f"{str(source)!r} is a model of comastre's already and needs no import: give it to `comastre predict` "
            "or `comastre learn` as it is."
        )
    if "model_type" not in config:
        raise UserError(
            f"{str(source)!r} has no model_type in its {CONFIG}: give the checkpoint of a transformers Mask2Former."
        )
    if config["model_type"] != "mask2former":
        raise UserError(
            f"{str(source)!r} holds a {brief(config['model_type'])} checkpoint, not a mask2former one: "
            "give that of a transformers Mask2Former."
        )
    processor = _read_json(folder / PROCESSOR) if (folder / PROCESSOR).is_file() else {}
    return Checkpoint(str(source), config, _read_tensors(folder), processor)


def _folder_of(source: str | Path) -> Path:
    folder = user_path(source, "the checkpoint")
    if folder.is_dir():
        return folder
    if folder.exists() or not _HUB_ID.fullmatch(str(source)):
        raise UserError(f"there is no folder {str(source)!r}: give that of a transformers checkpoint, or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=[CONFIG, PROCESSOR, "*.safetensors*"]))
    except Exception as error:  # each version of the hub's client has its own network errors
        raise UserError(
            f"{str(source)!r} is neither a folder nor a hub id that can be fetched ({type(error).__name__}): "
            "check the path or the network."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileNotFoundError:
        raise UserError(f"{str(path.parent)!r} has no {path.name}; give a transformers checkpoint folder.") from None
    except (ValueError, OSError) as error:
        raise UserError(f"{str(path)!r} is not valid JSON; fetch the checkpoint again.") from error
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} must hold a JSON object; fetch the checkpoint again.")
    return content


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES)
        if pickles:
            raise UserError(
                f"{str(folder / pickles[0])!r} is a pickle, which could run code and is not read: "
                "save the checkpoint with safetensors."
            )
        raise UserError(f"{str(folder)!r} has no .safetensors file; save the checkpoint with safetensors.")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors.update(load_file(file))
        except (SafetensorError, OSError) as error:
            raise UserError(f"{str(file)!r} is damaged ({error}); fetch the checkpoint again.") from error
    return tensors
