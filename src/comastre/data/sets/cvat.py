"""CVAT's own exports: "CVAT for images" (annotations.xml) and Datumaro's JSON, with polygons and masks.

Its exports in COCO's format are `coco_json`, in YOLO's `yolo`, and "Segmentation mask" is `voc_pairs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from comastre import documents
from comastre.config.run import DataConfig
from comastre.data.files import FileDataset, data_root
from comastre.data.sets.drawn import DrawnImage, drawn_dataset, run_lengths
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.text import brief

USUAL = ("annotations.xml", "annotations/default.json")
MOST_PIXELS = 1 << 28


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes: a share is held out for validation."""
    root = data_root(config.root, "cvat")
    file = _file(root, config.train_json)
    names, images = read_xml(file) if file.suffix.lower() == ".xml" else read_datumaro(file)
    return drawn_dataset("cvat", split, root, file, names, images, None if split == "all" else config.held_out)


def has_validation(config: DataConfig) -> bool:
    """Never: an export is one list of images."""
    return False


def find_export(root: Path) -> Path | None:
    """The export in one of the usual places."""
    return next((root / name for name in USUAL if (root / name).is_file()), None)


def _file(root: Path, given: str | None) -> Path:
    if given is not None:
        return root / user_path(given, "data.train_json")
    found = find_export(root)
    if found is None:
        raise UserError(f"{root} has no {' and no '.join(USUAL)}: name CVAT's export with --data.train_json FILE.")
    return found


# --- CVAT for images -------------------------------------------------------------------------------------------------


def parse_xml(file: Path) -> ElementTree.Element:
    """The root of an XML file that defines nothing of its own: entities could stand for gigabytes."""
    try:
        text = text_of(file)
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise UserError(f"{file} defines entities, which no export of CVAT does: export it again.")
        return ElementTree.fromstring(text)
    except FileNotFoundError:
        raise UserError(f"The annotation file {file} does not exist.") from None
    except (OSError, Unreadable, ElementTree.ParseError, ValueError) as error:
        raise UserError(f"The annotation file {file} cannot be read as XML: {error}.") from None


def read_xml(file: Path) -> tuple[tuple[str, ...], list[DrawnImage]]:
    """The labels in CVAT's order, and the images with their polygons and masks."""
    document = parse_xml(file)
    if document.tag != "annotations":
        raise UserError(f"{file} is not an export 'CVAT for images': its root is {brief(document.tag)}.")
    names = [(label.findtext("name") or "").strip() for label in document.iterfind("meta//labels/label")]
    images = list(document.iterfind("image"))
    if not names:
        names = sorted({str(shape.get("label")) for image in images for shape in image if shape.get("label")})
    label_of = {name: label for label, name in enumerate(names, start=1)}
    return tuple(names), [_xml_image(file, image, label_of) for image in images]


def _xml_image(file: Path, image: ElementTree.Element, label_of: Mapping[str, int]) -> DrawnImage:
    name = image.get("name")
    if not name:
        raise UserError(f"{file}: an image has no name.")
    objects = []
    for number, shape in enumerate(image, start=1):
        if shape.tag not in ("polygon", "mask", "box", "ellipse", "cuboid"):
            continue  # tags of the whole image, lines and points have no pixels
        where = f"{file}: the {shape.tag} {number} of {name}"
        label = label_of.get(shape.get("label") or "")
        if label is None:
            raise UserError(f"{where} has the label {brief(shape.get('label'))}, which the file does not list.")
        if shape.tag == "polygon":
            segmentation: Any = [_corners(where, shape.get("points") or "")]
        elif shape.tag == "mask":
            segmentation = run_lengths(_xml_mask(where, image, shape))
        else:
            raise UserError(f"{where} is no outline, but pixels are to be learned: draw polygons or masks.")
        objects.append({"id": number, "category_id": label, "segmentation": segmentation})
    return DrawnImage(name, tuple(objects))


def _corners(where: str, text: str) -> list[float]:
    try:
        pairs = [[float(part) for part in point.split(",")] for point in text.split(";")]
        return [part for x, y in pairs for part in (x, y)]
    except ValueError:
        raise UserError(f"{where} has points {brief(text)}: corners are pairs x,y with ; between.") from None


def _xml_mask(where: str, image: ElementTree.Element, shape: ElementTree.Element) -> np.ndarray:
    """The mask (H, W) of runs of zeros and ones in turn, row by row inside a box."""
    try:
        width, height = (int(image.get(side) or "") for side in ("width", "height"))
        left, top, box_width, box_height = (int(shape.get(side) or "") for side in ("left", "top", "width", "height"))
        runs = [int(run) for run in (shape.get("rle") or "").split(",")]
    except ValueError:
        raise UserError(f"{where} has a size or runs that are no whole numbers: export it again.") from None
    fits = left >= 0 and top >= 0 and 0 < box_width <= width - left and 0 < box_height <= height - top
    if not fits or width * height > MOST_PIXELS or min(runs) < 0 or sum(runs) != box_width * box_height:
        raise UserError(f"{where} does not fit into its image of {width} x {height}: export it again.")
    inside = np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(box_height, box_width)
    mask = np.zeros((height, width), dtype=bool)
    mask[top : top + box_height, left : left + box_width] = inside
    return mask


# --- Datumaro --------------------------------------------------------------------------------------------------------


def read_datumaro(file: Path) -> tuple[tuple[str, ...], list[DrawnImage]]:
    """The labels in the file's order, and the images with their polygons and masks."""
    try:
        content = documents.read_json(file, deepest=None)
    except FileNotFoundError:
        raise UserError(f"The annotation file {file} does not exist.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The annotation file {file} cannot be read as JSON: {error}.") from None
    try:
        names = tuple(str(label["name"]).strip() for label in content["categories"]["label"]["labels"])
        items = [(item, item["annotations"]) for item in content["items"]]
    except (KeyError, TypeError):
        raise UserError(f"{file} is not Datumaro's JSON: it has no items, or no categories with labels.") from None
    return names, [_item(file, item, shapes, len(names)) for item, shapes in items]


def _item(file: Path, item: Mapping[str, Any], shapes: Any, num_labels: int) -> DrawnImage:
    image = item.get("image")
    name = image.get("path") if isinstance(image, dict) else None
    name = name or item.get("id")
    if not isinstance(name, str) or not name or not isinstance(shapes, list):
        raise UserError(f"{file}: the item {brief(item.get('id'))} has no image, or no list of annotations.")
    objects = []
    for number, shape in enumerate(shapes, start=1):
        where = f"{file}: annotation {number} of {name}"
        if not isinstance(shape, dict):
            raise UserError(f"{where} is {brief(shape)} but must be an object.")
        kind, label = shape.get("type"), shape.get("label_id")
        if kind in ("label", "caption", "points", "polyline"):
            continue
        if type(label) is not int or not 0 <= label < num_labels:
            raise UserError(f"{where} has the label_id {brief(label)}, which the file does not list.")
        if kind not in ("polygon", "mask"):
            raise UserError(f"{where} is a {brief(kind)}, but pixels are to be learned: draw polygons or masks.")
        segmentation = [shape.get("points")] if kind == "polygon" else shape.get("rle")
        objects.append({"id": number, "category_id": label + 1, "segmentation": segmentation})
    return DrawnImage(name, tuple(objects))
