"""The user's own data: images, masks of class ids, and a list of classes.

`root` holds images/ (any format, in any sub-folders), masks/ with a PNG of the same name for every image, and
classes.txt or classes.json. Splits are the first of these that is there:

- images/train + masks/train and images/val + masks/val (val may be called valid or validation);
- train/images + train/masks and val/images + val/masks;
- train.txt and val.txt with image names, with or without suffix, one per line;
- else a fixed share of the images (`data.held_out`) is held out for validation.

classes.txt has one name per line, the first line being class 1, unless it says background or void, which is id 0.
classes.json is a list of names in the same order, a list of {"id", "name"}, or {"1": name, "2": name, ...}.
Masks may hold colours instead where labelmap.txt, class_dict.csv or colours.json says which is which (`colour_table`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from comastre.class_table import name_problem, palette
from comastre.config.run import DataConfig
from comastre.data.dataset import IGNORE
from comastre.data.files import FileDataset, MaskReader, Record, data_root, files_below, read_names
from comastre.data.images import IMAGE_SUFFIXES
from comastre.data.names import refuse_unlearnable
from comastre.data.sets.colour_table import find_table, read_table
from comastre.data.sets.held_out import is_held_out
from comastre.documents import Unreadable, read_json
from comastre.errors import UserError
from comastre.paths import user_path

_VOID = ("void", "unlabeled", "unlabelled")
_VAL = ("val", "valid", "validation")


def build(config: DataConfig, split: Literal["train", "val", "all"]) -> FileDataset:
    """The split that the data section describes."""
    if split == "all":
        return folder(config.root, "train", held_out=0.0)
    return folder(config.root, split, config.held_out)


def has_validation(config: DataConfig) -> bool:
    """Whether the folder says itself which images are for validation."""
    if config.root is None:
        return True  # opening it says what is missing
    base = user_path(config.root, "data.root")
    return _split_folders(base, _VAL) is not None or any((base / f"{name}.txt").exists() for name in _VAL)


def folder(root: str | Path | None, split: Literal["train", "val"], held_out: float = 0.1) -> FileDataset:
    """One split of the images and masks under `root`."""
    base = data_root(root, "folder")
    table = find_table(base)
    records = _split_records(base, split, held_out)
    if table is not None:
        known = read_table(table)
        names, has_background, colours = known.names, known.has_background, known.colours
        reader = MaskReader(len(names), known)
    else:
        names, has_background = read_classes(base)
        colours = palette(len(names) + 1)
        reader = MaskReader(len(names), names_zero=_names_zero(_listed_classes(base)[1]))
    return FileDataset("folder", split, names, colours, records, reader, has_background, source=base)


# --- images and masks ------------------------------------------------------------------------------------------------


def _split_records(base: Path, split: Literal["train", "val"], held_out: float) -> list[Record]:
    training, validation = _split_folders(base, ("train",)), _split_folders(base, _VAL)
    if validation is not None:
        if training is None:
            raise UserError(f"{validation[0]} has validation images but there are none for training: add images/train.")
        return _pairs(*(training if split == "train" else validation))
    if training is None and not (base / "images").is_dir():
        raise UserError(f"{base} has no folder images/: put the images there and their masks into masks/.")
    records = _pairs(*(training or (base / "images", base / "masks")))
    lists = [base / f"{name}.txt" for name in ("train", *_VAL) if (base / f"{name}.txt").exists()]
    if not lists:
        return [record for record in records if is_held_out(record.name, held_out) == (split == "val")]
    if len(lists) != 2 or lists[0].stem != "train":
        raise UserError(f"{base} has {lists[0].name} but a split needs both train.txt and val.txt: add the other one.")
    return _listed(lists[0] if split == "train" else lists[1], records)


def _split_folders(base: Path, names: Sequence[str]) -> tuple[Path, Path] | None:
    """The folders of images and masks of a split called by one of the names."""
    for name in names:
        for images, masks in (("images/{}", "masks/{}"), ("{}/images", "{}/masks")):
            if (base / images.format(name)).is_dir():
                return base / images.format(name), base / masks.format(name)
    return None


def _listed(path: Path, records: list[Record]) -> list[Record]:
    known = {record.name: record for record in records}
    chosen = []
    for line in read_names(path):
        name = line.removeprefix("images/")
        record = known.get(name) or known.get(Path(name).with_suffix("").as_posix())
        if record is None:
            raise UserError(f"{path} lists {line}, which is not in images/: correct the list or add the image.")
        chosen.append(record)
    return chosen


def _pairs(images: Path, masks: Path) -> list[Record]:
    """Every image with the mask of the same relative name."""
    found = files_below(images, IMAGE_SUFFIXES)
    if not found:
        raise UserError(f"The folder {images} holds no images ({', '.join(IMAGE_SUFFIXES)}).")
    if not masks.is_dir():
        raise UserError(f"There is no folder {masks} with a mask for every image of {images}.")
    seen: dict[str, Path] = {}
    for image in found:
        name = image.relative_to(images).with_suffix("").as_posix()
        if name in seen:
            raise UserError(
                f"{seen[name]} and {image} would share the mask {name}.png: give every image one name of its own."
            )
        seen[name] = image
    return [Record(name, image, masks / f"{name}.png") for name, image in seen.items()]


# --- classes ---------------------------------------------------------------------------------------------------------


def read_classes(base: Path) -> tuple[tuple[str, ...], bool]:
    """The class names 1..C, and whether id 0 is a background (rather than void)."""
    path, names = _listed_classes(base)
    has_background = True
    if _names_zero(names):
        has_background = _zero_name(names[0]) == "background"
        names = names[1:]
    for number, name in enumerate(names, start=1):
        if problem := name_problem(name):
            raise UserError(f"{path}: the name of class {number} ({name[:40]!r}) {problem}: give it another one.")
    refuse_unlearnable(path, names)
    return tuple(names), has_background


def _names_zero(names: Sequence[str]) -> bool:
    """Whether a list begins with what id 0 is."""
    return bool(names) and _zero_name(names[0]) in ("background", *_VOID)


def _zero_name(name: str) -> str:
    """A name as it is compared with those of id 0, which labelling tools put between underscores."""
    return name.strip("_").lower()


def _listed_classes(base: Path) -> tuple[Path, list[str]]:
    """The list's file and all of its names."""
    text, listed = base / "classes.txt", base / "classes.json"
    if text.exists():
        return text, read_names(text)
    if listed.exists():
        return listed, _from_json(listed)
    raise UserError(f"{base} has neither classes.txt nor classes.json: write one class name per line, id 1 first.")


def _text(name: Any) -> str:
    if isinstance(name, bool) or not isinstance(name, str | int | float):
        raise TypeError(name)
    return str(name).strip()


def _from_json(path: Path) -> list[str]:
    try:
        content = read_json(path)
    except (OSError, Unreadable) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}.") from None
    if isinstance(content, dict) and isinstance(content.get("classes"), list):
        content = content["classes"]
    if isinstance(content, list) and all(isinstance(each, str) for each in content):
        return [name.strip() for name in content]
    try:
        entries = content.items() if isinstance(content, dict) else [(each["id"], each["name"]) for each in content]
        by_id = {int(number): _text(name) for number, name in entries}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise UserError(
            f'{path} must be a list of names, a list of {{"id": 1, "name": "cat"}}, or {{"1": "cat", ...}}.'
        ) from None
    by_id = {number: name for number, name in by_id.items() if number != IGNORE}
    if not _names_zero([by_id.setdefault(0, "background")]):
        # Counted as a list it would be class 1, and every mask would be read under the name of its neighbour.
        raise UserError(
            f"{path} gives id 0 to {by_id[0][:40]!r}, but 0 is what has no class: count the classes from 1, in the "
            "masks too, or call id 0 background."
        )
    if sorted(by_id) != list(range(len(by_id))):
        raise UserError(f"{path} must number the classes 1, 2, 3, ... without gaps, not {sorted(by_id)[:12]}.")
    return [by_id[number] for number in sorted(by_id)]
