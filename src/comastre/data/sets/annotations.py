"""Annotation files in COCO's JSON format, kept compactly: loader processes then share them instead of copying.

They come from many tools and people: every entry is looked at before anything is taken from it.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from comastre import documents
from comastre.class_table import name_problem
from comastre.data.dataset import IGNORE
from comastre.errors import UserError
from comastre.text import brief


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
        content = documents.read_json(path, deepest=None)
    except FileNotFoundError:
        raise UserError(f"The annotation file {path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The annotation file {path} cannot be read as JSON: {error}.") from None
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise UserError(f"The annotation file {path} has no list '{missing[0]}': is it in COCO's format?")
    for key in keys:
        for place, entry in enumerate(content[key]):
            if not isinstance(entry, dict):
                raise UserError(f"{path}: entry {place} of '{key}' is {brief(entry)} but must be an object.")
    return dict(content)


def file_of(path: Path, entry: Mapping[str, Any]) -> str:
    """The field `file_name` of an entry, which must be a name that a file can have."""
    name = entry.get("file_name")
    if name is None:
        raise UserError(f"{path}: every image needs an id and a file_name.")
    if not isinstance(name, str) or not name.strip():
        raise UserError(f"{path}: the file_name of {brief(entry.get('id'))} is {brief(name)}: give a file's name.")
    try:
        longest = max(map(len, os.fsencode(name).split(b"/")))
    except UnicodeEncodeError:  # half a character
        longest = 0
    if not 0 < longest <= 255 or "\0" in name:
        raise UserError(f"{path}: the file_name {brief(name)} cannot be a file's name: correct it.")
    return name


def id_of(path: Path, entry: Mapping[str, Any], field: str, what: str) -> int | float | str:
    """An id of an entry: a number, or a text where a tool writes such."""
    found = entry.get(field)
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        raise UserError(f"{path}: the {field} of {what} is {brief(found)} but must be a number.")
    return found


def packed(path: Path, entries: Any) -> bytes:
    """What `Notes` keeps of an image."""
    try:
        return json.dumps(entries).encode()
    except RecursionError:
        raise UserError(f"The annotation file {path} is nested too deeply: correct its segmentations.") from None


def _name(given: Any) -> str:
    """A category's name; some tools number theirs."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TypeError(given)
    return str(given).strip()


def read_categories(path: Path, content: Mapping[str, Any]) -> Categories:
    """The classes of an annotation file."""
    try:
        entries = sorted(content["categories"], key=lambda entry: int(entry["id"]))
        ids = [int(entry["id"]) for entry in entries]
        names = tuple(_name(entry["name"]) for entry in entries)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(f"{path}: every category needs an id and a name.") from None
    for name in names:
        if problem := name_problem(name):
            raise UserError(f"{path}: the category {brief(name)} {problem}: give it another name.")
    for values, what in ((ids, "id"), (names, "name")):
        twice = [value for value, times in Counter(values).items() if times > 1]
        if twice:
            raise UserError(f"{path}: two categories have the {what} {twice[0]}: give each its own.")
    if not 1 <= len(ids) < IGNORE:
        raise UserError(f"{path} has {len(ids)} categories but 1 to {IGNORE - 1} can be learned.")
    things = frozenset(label for label, entry in enumerate(entries, 1) if entry.get("isthing", 1))
    return Categories(names, {category: label for label, category in enumerate(ids, 1)}, things)


def group_by_image(path: Path, content: Mapping[str, Any], wanted: Sequence[str]) -> dict[Any, list[dict[str, Any]]]:
    """The annotations of each image id, with only the `wanted` fields."""
    known = {id_of(path, entry, "id", "an image") for entry in content["images"]}
    grouped: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for entry in content["annotations"]:
        image = id_of(path, entry, "image_id", f"annotation {brief(entry.get('id'))}")
        id_of(path, entry, "category_id", f"annotation {brief(entry.get('id'))}")
        if image not in known:
            raise UserError(
                f"{path}: annotation {brief(entry.get('id'))} belongs to image {brief(image)}, which is not in the "
                "list of images."
            )
        grouped[image].append({name: entry[name] for name in wanted if name in entry})
    return grouped
