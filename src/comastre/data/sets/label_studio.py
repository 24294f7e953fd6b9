"""Label Studio's own JSON export: tasks with polygons and brush masks.

A polygon's corners are percentages; a brush mask is packed runs of the four channels of a drawing, of which the last
says where it is. Of a task with several annotations the last that was not cancelled counts; one without any is not
labelled yet and left out. Images are looked for below the file's folder, with and without the mark that an upload gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from comastre import documents
from comastre.config.run import DataConfig
from comastre.data.files import FileDataset, data_root
from comastre.data.sets.drawn import DrawnImage, drawn_dataset, run_lengths
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.text import brief

_LABELS = ("polygonlabels", "brushlabels", "labels")
MOST_PIXELS = 1 << 28


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes: a share is held out for validation."""
    root = data_root(config.root, "label_studio")
    file = _file(root, config.train_json)
    names, images = read_tasks(file)
    held_out = None if split == "all" else config.held_out
    return drawn_dataset("label_studio", split, root, file, names, images, held_out)


def has_validation(config: DataConfig) -> bool:
    """Never: an export is one list of tasks."""
    return False


def _file(root: Path, given: str | None) -> Path:
    if given is not None:
        return root / user_path(given, "data.train_json")
    found = sorted(root.glob("*.json"))
    if len(found) != 1:
        raise UserError(f"{root} holds {len(found)} files *.json: name Label Studio's with --data.train_json FILE.")
    return found[0]


def read_tasks(file: Path) -> tuple[tuple[str, ...], list[DrawnImage]]:
    """The names of all labels, in alphabetical order, and the images with what is drawn on them."""
    try:
        tasks = documents.read_json(file, deepest=None)
    except FileNotFoundError:
        raise UserError(f"The annotation file {file} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The annotation file {file} cannot be read as JSON: {error}.") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise UserError(f"{file} is not a list of tasks: export it from Label Studio as JSON.")
    drawn = [(_image(file, task), _results(file, task)) for task in tasks if _results(file, task) is not None]
    names = sorted({_label(file, result) for _, results in drawn for result in results or ()})
    label_of = {name: label for label, name in enumerate(names, start=1)}
    return tuple(names), [
        DrawnImage(
            image,
            tuple(
                {
                    "id": number,
                    "category_id": label_of[_label(file, result)],
                    "segmentation": _segmentation(file, image, result),
                }
                for number, result in enumerate(results or (), start=1)
            ),
        )
        for image, results in drawn
    ]


def _image(file: Path, task: Mapping[str, Any]) -> str:
    data = task.get("data")
    given = next((value for value in data.values() if isinstance(value, str)), None) if isinstance(data, dict) else None
    if not given:
        raise UserError(f"{file}: the task {brief(task.get('id'))} names no image in its data.")
    parts = urlsplit(given)
    # Files of a local folder are given as /data/local-files/?d=photos/a.jpg.
    local = parse_qs(parts.query).get("d")
    path = unquote(local[0] if local else parts.path).lstrip("/")
    # An upload lies in a folder with the number of its project.
    return path.removeprefix("data/upload/").split("/", 1)[-1] if path.startswith("data/upload/") else path


def _results(file: Path, task: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What is drawn on a task's image; None where nobody has labelled it."""
    annotations = task.get("annotations", task.get("completions"))
    if not isinstance(annotations, list):
        raise UserError(f"{file}: the task {brief(task.get('id'))} has no list of annotations: export it as JSON.")
    done = [each for each in annotations if isinstance(each, dict) and not each.get("was_cancelled")]
    if not done:
        return None
    results = done[-1].get("result")
    if not isinstance(results, list):
        raise UserError(f"{file}: an annotation of task {brief(task.get('id'))} has no result.")
    # Relations and choices about the whole image are no outlines.
    return [each for each in results if isinstance(each, dict) and isinstance(each.get("value"), dict) and _shape(each)]


def _shape(result: Mapping[str, Any]) -> bool:
    kinds = ("points", "rle", "x")
    return any(kind in result["value"] for kind in kinds)


def _label(file: Path, result: Mapping[str, Any]) -> str:
    value = result["value"]
    for kind in _LABELS:
        labels = value.get(kind)
        if isinstance(labels, list) and labels and isinstance(labels[0], str):
            return labels[0]
    raise UserError(
        f"{file}: the result {brief(result.get('id'))} ({brief(result.get('type'))}) is no labelled polygon or brush "
        "mask: draw objects with PolygonLabels or BrushLabels."
    )


def _segmentation(file: Path, image: str, result: Mapping[str, Any]) -> Any:
    value = result["value"]
    where = f"{file}: the result {brief(result.get('id'))} of {image}"
    width, height = result.get("original_width"), result.get("original_height")
    if not (type(width) is int and type(height) is int and 0 < width * height <= MOST_PIXELS and width > 0):
        raise UserError(f"{where} does not say original_width and original_height: export it again.")
    if isinstance(value.get("rle"), list):
        return run_lengths(brush_mask(where, value["rle"], height, width))
    points = value.get("points")
    try:
        corners = [
            float(part) * side / 100 for point in points for part, side in zip(point, (width, height), strict=True)
        ]
    except (TypeError, ValueError):
        raise UserError(f"{where} has a corner that is no pair of numbers: correct it.") from None
    return [corners]


def brush_mask(where: str, packed: Sequence[Any], height: int, width: int) -> np.ndarray:
    """The mask (H, W) of a brush from its packed runs.

    A stream of bits: 32 of the number of values, 5 of a value's bits less one, four times 4 of the bits less one that a
    length may take; then runs, each with a bit that says whether its value repeats, 2 bits for which kind of length,
    the length less one, and one value or as many as it is long.
    """
    try:
        data = np.asarray(packed, dtype=np.int64)
        if data.ndim != 1 or data.min(initial=0) < 0 or data.max(initial=0) > 255:
            raise ValueError("it holds numbers that are no bytes")
        return _unpacked(np.unpackbits(data.astype(np.uint8)), height * width * 4).reshape(height, width, 4)[..., 3] > 0
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{where} has a brush mask that cannot be read ({error}): export it again.") from None


def _unpacked(bits: np.ndarray, expected: int) -> np.ndarray:
    place = 0

    def read(count: int) -> int:
        nonlocal place
        if place + count > len(bits):
            raise ValueError("it ends too early")
        number = int.from_bytes(
            np.packbits(np.r_[np.zeros(-count % 8, np.uint8), bits[place : place + count]]).tobytes()
        )
        place += count
        return number

    total, word = read(32), read(5) + 1
    if total != expected:
        raise ValueError(f"it has {total:,} values instead of {expected:,}")
    sizes = [read(4) + 1 for _ in range(4)]
    values = np.zeros(total, dtype=np.uint8)
    done = 0
    while done < total:
        repeats = read(1)
        length = read(sizes[read(2)]) + 1
        if done + length > total:
            raise ValueError("a run is longer than the image")
        if repeats:
            values[done : done + length] = min(255, read(word))
        else:
            for step in range(length):
                values[done + step] = min(255, read(word))
        done += length
    return values
