"""YOLO's segmentation format: data.yaml with the names, and beside each image a text file of polygons.

data.yaml has `names` (a list, or a mapping from 0, 1, ...), `train` and, where there is one, `val`: folders of images
or lists of them, relative to `path` or to the file itself. Labels are in labels/ where images are in images/. A line is
a class and a polygon in shares of the image's width and height: `0 0.1 0.2 0.3 0.2 0.3 0.4`. An image without a text
file shows nothing. Class 0 there is class 1 here. Label Studio writes classes.txt, images/ and labels/, and no
data.yaml.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from comastre.class_table import palette
from comastre.config.run import DataConfig
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.data.files import FileDataset, Labels, Record, data_root, files_below, read_names
from comastre.data.images import IMAGE_SUFFIXES, image_size
from comastre.data.sets.annotations import Categories, Notes, packed
from comastre.data.sets.coco_json import InstanceReader
from comastre.data.sets.drawn import checked_names
from comastre.data.sets.held_out import is_held_out
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.text import brief

FILES = ("data.yaml", "data.yml")
LIST = "classes.txt"
_VAL = ("val", "valid", "validation")


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes."""
    root = data_root(config.root, "yolo")
    file, content = _description(root)
    names = _names(file, content)
    training = _images(root, file, content, ("train",))
    if training is None:
        raise UserError(f"{file} names no images for training: add `train: images/train`.")
    validation = _images(root, file, content, _VAL)
    if validation is not None:
        images = training if split != "val" else validation
    else:
        kept = {"train": False, "val": True}
        images = [each for each in training if split == "all" or is_held_out(each.name, config.held_out) == kept[split]]
    records = [Record(_name(root, image), image, _labels_of(image, file)) for image in images]
    reader = YoloReader(names, file)
    return FileDataset("yolo", split, names, palette(len(names) + 1), records, reader, source=file)


def has_validation(config: DataConfig) -> bool:
    """Whether data.yaml names images for validation."""
    if config.root is None:
        return True  # opening it says what is missing
    root = user_path(config.root, "data.root")
    try:
        file, content = _description(root)
        return _images(root, file, content, _VAL) is not None
    except UserError:
        return True


def find_description(root: Path) -> Path | None:
    """The file that describes a dataset of this format, where the folder has one."""
    named = next((root / name for name in FILES if (root / name).is_file()), None)
    if named is None and (root / LIST).is_file() and any((root / "labels").rglob("*.txt")):
        return root / LIST
    return named


@dataclass(frozen=True)
class YoloReader:
    """Draws the polygons of an image's text file."""

    names: tuple[str, ...]
    description: Path

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        height, width = size or image_size(record.image)
        objects = []
        if record.labels != self.description:
            for number, line in enumerate(_lines(record.labels), start=1):
                objects.append(self._object(record, number, line.split(), height, width))
        labels = frozenset(range(1, len(self.names) + 1))
        categories = Categories(self.names, {label: label for label in labels}, labels)
        drawn = InstanceReader(categories, Notes([packed(record.labels, objects)]))
        return drawn(0, record, (height, width))

    def _object(self, record: Record, number: int, words: list[str], height: int, width: int) -> dict[str, Any]:
        where = f"{record.labels}: line {number}"
        try:
            place, corners = int(words[0]), [float(word) for word in words[1:]]
        except ValueError:
            raise UserError(f"{where} holds {brief(' '.join(words))}: write a class and a polygon's corners.") from None
        if not 0 <= place < len(self.names):
            raise UserError(
                f"{where} has the class {place}, but {self.description.name} names 0 to {len(self.names) - 1}: correct "
                "it."
            )
        if len(corners) == 4:
            raise UserError(f"{where} is a box, but pixels are to be learned: export polygons (segmentation).")
        scaled = [corner * (height if odd % 2 else width) for odd, corner in enumerate(corners)]
        return {"id": number, "category_id": place + 1, "segmentation": [scaled]}


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in text_of(file).splitlines() if line.strip()]
    except (OSError, Unreadable) as error:
        raise UserError(f"The labels {file} cannot be read: {error}.") from None


def _description(root: Path) -> tuple[Path, Mapping[str, Any]]:
    file = find_description(root)
    if file is None:
        raise UserError(f"{root} has no data.yaml with the names of the classes: add it.")
    if file.name == LIST:
        return file, {"names": list(read_names(file)), "train": "images"}
    try:
        content = parse_yaml(text_of(file))
    except (OSError, Unreadable) as error:
        raise UserError(f"{file} cannot be read: {error}.") from None
    except NotYaml as error:
        raise UserError(f"{file} is not YAML{error}.") from None
    if not isinstance(content, Mapping):
        raise UserError(f"{file} must hold `names:` and `train:`, but holds {brief(content)}.")
    return file, content


def _names(file: Path, content: Mapping[str, Any]) -> tuple[str, ...]:
    given = content.get("names")
    if isinstance(given, Mapping):
        wanted = list(range(len(given)))
        if sorted(given, key=str) != sorted(wanted, key=str):
            raise UserError(f"{file}: names must be numbered 0, 1, 2 and so on, without a gap.")
        given = [given[place] for place in wanted]
    if not isinstance(given, list) or not given:
        raise UserError(f"{file} has no names: write `names: [cat, dog]`.")
    return checked_names(file, [str(name).strip() for name in given])


def _images(root: Path, file: Path, content: Mapping[str, Any], keys: tuple[str, ...]) -> list[Path] | None:
    """The images of a split; None where the file does not name it, or names what is not there for validation."""
    given = next((content[key] for key in keys if content.get(key)), None)
    if given is None:
        return None
    places = given if isinstance(given, list) else [given]
    found: list[Path] = []
    for place in places:
        if not isinstance(place, str):
            raise UserError(f"{file}: {keys[0]} is {brief(place)} but must be a folder or a list file.")
        path = _place(root, content.get("path"), place)
        if path is None:
            if keys != ("train",):
                return None  # many tools name a split that they did not export
            raise UserError(f"{file}: {keys[0]} names {place}, which is not below {root}: correct it.")
        found += files_below(path, IMAGE_SUFFIXES) if path.is_dir() else _listed(root, path)
    if not found and keys == ("train",):
        raise UserError(f"{file}: {given} holds no images ({', '.join(IMAGE_SUFFIXES)}).")
    return sorted(found) or None


def _place(root: Path, base: Any, given: str) -> Path | None:
    """Where a path of data.yaml leads: tools write it relative to `path`, to the file, or to a folder beside it."""
    plain = given
    while plain.startswith("../"):
        plain = plain.removeprefix("../")
    bases = [root / base, root] if isinstance(base, str) else [root]
    tries = [each / part for each in bases for part in (given, plain)]
    return next((each for each in tries if each.exists()), None)


def _listed(root: Path, file: Path) -> list[Path]:
    return [root / line for line in read_names(file)]


def _labels_of(image: Path, description: Path) -> Path:
    """The text file of an image; the description, which is there, where it has none."""
    parts = list(image.parts)
    if "images" in parts:
        place = len(parts) - 1 - parts[::-1].index("images")
        parts[place] = "labels"
    for path in (Path(*parts).with_suffix(".txt"), image.with_suffix(".txt")):
        if path.is_file():
            return path
    return description


def _name(root: Path, image: Path) -> str:
    try:
        return image.relative_to(root).with_suffix("").as_posix()
    except ValueError:
        return image.with_suffix("").name
