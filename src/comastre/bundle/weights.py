"""The tensors of a bundle, and the model that they are for: compared before anything is built, checked before use."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as as_safetensors
from torch import Tensor

from comastre.config.settings import explain
from comastre.errors import UserError
from comastre.methods.build import build_method
from comastre.text import brief

if TYPE_CHECKING:
    from comastre.bundle.store import Description

WEIGHTS = "model.safetensors"
CHECKSUM = "checksum"
ONLY_SAFE = f"save the model again as a bundle, with {WEIGHTS}"
_AT_LEAST = 1024
"""Numbers of a configuration up to this are built whatever the file holds: they are small."""

Shape = tuple[int, ...]


def built(config: Path, weights: Path, description: Description, tasks: Sequence[int]) -> Any:
    """The model that `config` describes, with random weights: built only where the file `weights` has its tensors.

    First on torch's device "meta", where tensors have shapes and no memory.
    """
    shapes = read_shapes(weights)
    settings = description.settings
    refuse_larger(str(config), weights.name, [getattr(settings, name) for name in settings.model_sections], shapes)
    try:
        # Building draws random weights that are then replaced; the caller's random numbers must not notice.
        with torch.random.fork_rng(devices=[]):
            try:
                with torch.device("meta"):
                    planned = build_method(description.method, description.setup).build(tasks)
                expected = {name: tuple(tensor.shape) for name, tensor in planned.state_dict().items()}
            except (NotImplementedError, RuntimeError):
                expected = shapes  # a method of another package may look at numbers while it builds
            _refuse_mismatch(weights, config, _mismatch(shapes, expected))
            return build_method(description.method, description.setup).build(tasks)
    except UserError:
        raise
    except ValidationError as error:
        raise UserError(f"{config}: {explain(error)}") from error
    except Exception as error:  # networks and methods have their own ways to refuse a size
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{config} describes a model that cannot be built ({reason}): copy the file again") from error


def read_shapes(file: Path) -> dict[str, Shape]:
    """Names and shapes of the tensors of a file, from its header alone."""
    try:
        with file.open("rb") as stream:
            start = stream.read(9)
        # A safetensors file starts with the length of a JSON header (8 bytes) and the header's brace.
        if start[8:] != b"{" and (start.startswith(b"PK") or start[:1] == b"\x80"):
            raise UserError(f"{file} is a pickle by another name, which could run code and is not read: {ONLY_SAFE}")
        with safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error


def checksum(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """Of a text and of names, kinds, shapes and bytes of tensors: one flipped bit anywhere gives another."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(bytes_of(tensor), value)
    return str(value)


def bytes_of(tensor: Tensor) -> memoryview:
    """A host's tensor as it is in memory, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def written(tensors: Mapping[str, Tensor]) -> bytes:
    """The content of a weights file, with its checksum: the only note, since several would stand in random order."""
    return as_safetensors(dict(tensors), metadata={CHECKSUM: checksum(tensors)})


def read_weights(file: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of `file`, which must be those of the model: same names, shapes and number types, all finite."""
    try:
        tensors = load_file(file)
        with safe_open(file, framework="pt") as opened:
            noted = (opened.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, OSError) as error:
        raise _damaged(file, error) from error
    for found, wanted in (
        ({name: tuple(each.shape) for name, each in group.items()} for group in (tensors, expected)),
        ({name: each.dtype for name, each in group.items()} for group in (tensors, expected)),
    ):
        _refuse_mismatch(file, file.with_name("config.json"), _mismatch(found, wanted))
    # Files of other programs, and of earlier versions, have none.
    if noted is not None and noted != checksum(tensors):
        raise UserError(f"{file} is damaged (its checksum does not fit its numbers): copy it again")
    refuse_infinite(str(file), tensors)
    return tensors


def refuse_infinite(file: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights with which nothing would be recognised, silently."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise UserError(
                f"{file}: tensor {name} holds NaN or infinite numbers, with which nothing is recognised: "
                "the training failed or the file is damaged, take another model"
            )


def refuse_larger(config: str, weights: str, sections: Sequence[Any], shapes: Mapping[str, Shape]) -> None:
    """Refuse numbers larger than anything in the file: so many layers, even without memory, would take for ever."""
    largest = max((side for shape in shapes.values() for side in shape), default=0)
    most = max(_AT_LEAST, largest, len(shapes))
    for section in sections:
        for name, number in _numbers(section):
            if number > most:
                raise UserError(
                    f"{config}: {name} is {brief(number)}, but no tensor of {weights} is so large; "
                    "the two are not of one bundle, copy both again"
                )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a section with their names."""
    if isinstance(value, BaseModel):
        for field in type(value).model_fields:
            yield from _numbers(getattr(value, field), f"{name}.{field}".lstrip("."))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def _mismatch(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """The first difference between two tables of tensors, in words; empty where there is none."""
    for name, value in expected.items():
        if name not in found:
            return f"tensor {name} is missing"
        if found[name] != value:
            return f"tensor {name} is {found[name]} instead of {value}"
    return next((f"tensor {name} is not known" for name in found if name not in expected), "")


def _refuse_mismatch(weights: Path, config: Path, difference: str) -> None:
    if difference:
        raise UserError(
            f"{weights} does not fit {config.name}: {difference}; the two are not of one bundle, copy both again"
        )


def _damaged(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} is damaged or cut short ({error}): copy it again")
