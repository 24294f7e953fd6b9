"""Annotation files in COCO's JSON format, kept compactly: loader processes then share them instead of copying."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comastre.data.dataset import IGNORE
from comastre.errors import UserError


@dataclass(frozen=True)
class Categories:
    """The categories of a file as classes 1..C, in the order of their ids."""

    class_names: tuple[str, ...]
    label_of: Mapping[int, int]
    """Category id -> dataset id; 0 for a category that was taken out."""
    things: frozenset[int]
    """Dataset ids of categories that have objects; the others are stuff."""


class Notes:
    """One JSON text per image in a single buffer."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        # One array each: a list of a million Python objects would be copied page by page into every forked process.
        self._buffer = np.frombuffer(b"".join(texts), dtype=np.uint8)
        self._ends = np.cumsum([0, *map(len, texts)])

    def __getitem__(self, index: int) -> Any:
        return json.loads(self._buffer[self._ends[index] : self._ends[index + 1]].tobytes())

    def __len__(self) -> int:
        return len(self._ends) - 1


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """The content of an annotation file that has all of the keys."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"The annotation file {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The annotation file {path} cannot be read as JSON: {error}.") from None
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise UserError(f"The annotation file {path} has no list '{missing[0]}': is it in COCO's format?")
    return dict(content)


def read_categories(path: Path, content: Mapping[str, Any]) -> Categories:
    """The classes of an annotation file."""
    try:
        entries = sorted(content["categories"], key=lambda entry: int(entry["id"]))
        ids = [int(entry["id"]) for entry in entries]
        names = tuple(str(entry["name"]) for entry in entries)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: every category needs an id and a name.") from None
    for values, what in ((ids, "id"), (names, "name")):
        twice = [value for value in values if list(values).count(value) > 1]
        if twice:
            raise UserError(f"{path}: two categories have the {what} {twice[0]}: give each its own.")
    if not 1 <= len(ids) < IGNORE:
        raise UserError(f"{path} has {len(ids)} categories but 1 to {IGNORE - 1} can be learned.")
    things = frozenset(label for label, entry in enumerate(entries, 1) if entry.get("isthing", 1))
    return Categories(names, {category: label for label, category in enumerate(ids, 1)}, things)


def group_by_image(path: Path, content: Mapping[str, Any], wanted: Sequence[str]) -> dict[Any, list[dict[str, Any]]]:
    """The annotations of each image id, with only the `wanted` fields."""
    known = {entry.get("id") for entry in content["images"]}
    grouped: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for entry in content["annotations"]:
        image = entry.get("image_id")
        if image not in known:
            raise UserError(
                f"{path}: annotation {entry.get('id')} belongs to image {image}, which is not in the list of images."
            )
        grouped[image].append({name: entry[name] for name in wanted if name in entry})
    return grouped
