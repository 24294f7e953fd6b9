"""A dataset of image and label files, read when asked for; what a label file means is one small function."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from comastre.class_table import Colour
from comastre.data.dataset import IGNORE, Sample
from comastre.data.images import check_mask, checked_size, read_image, read_mask
from comastre.data.presence import Fingerprint, cached_presence
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.paths import user_path


@dataclass(frozen=True)
class Labels:
    """The ground truth of one image."""

    semantic: np.ndarray
    """(H, W) uint8 dataset ids."""
    instances: np.ndarray | None = None
    """(H, W) int32, 0 = none."""


@dataclass(frozen=True)
class Record:
    """Where one image and its labels are."""

    name: str
    image: Path
    labels: Path
    """The file that holds the labels; a JSON file holds those of many images."""
    objects: Path | None = None
    """A mask with object numbers."""


LabelReader = Callable[[int, Record, tuple[int, int] | None], Labels]
"""(index, record, size (H, W) of the image or None where it was not opened) -> checked labels."""


@dataclass(frozen=True)
class MaskReader:
    """Reads a mask of class ids and, where there is one, a mask of object numbers."""

    num_classes: int
    read: Callable[[Path], np.ndarray] = read_mask
    """From a file to the values (H, W) uint8 in it."""
    names_zero: bool = True
    """Whether anybody says what 0 is in the masks; where nobody does, they may count their classes from 0."""

    def __call__(self, index: int, record: Record, size: tuple[int, int] | None) -> Labels:
        semantic = self.read(record.labels)
        check_mask(record.labels, semantic, self.num_classes, size or semantic.shape, record.image)
        if record.objects is None:
            return Labels(semantic)
        objects = self.read(record.objects)
        check_mask(record.objects, objects, IGNORE - 1, size or semantic.shape, record.image)
        # VOC draws the unsure edges of objects with 255, as in the semantic mask.
        return Labels(semantic, np.where(objects == IGNORE, 0, objects).astype(np.int32))


class FileDataset:
    """Images and labels of one split of a dataset on disk."""

    def __init__(
        self,
        name: str,
        split: str,
        class_names: Sequence[str],
        colours: Sequence[Colour],
        records: Sequence[Record],
        read_labels: LabelReader,
        has_background: bool = True,
        source: Path | None = None,
        things: Collection[int] | None = None,
    ) -> None:
        """A split of `records`; `things` are the ids of classes that have objects, by default all."""
        if not records:
            raise UserError(
                f"The {split} split of {name} has no images{f' in {source}' if source else ''}: add some; where a "
                "share of the images is held out for validation, --data.held_out is that share."
            )
        twice = [each for each, times in Counter(record.name for record in records).items() if times > 1]
        if twice:
            raise UserError(
                f"{twice[0]} is in the {split} split of {name} twice{f' ({source})' if source else ''}: "
                "give every image one name of its own."
            )
        self.name = name
        self.split = split
        self.class_names = tuple(class_names)
        self.colours = tuple(colours)
        self.has_background = has_background
        self.things = frozenset(range(1, len(self.class_names) + 1) if things is None else things)
        self.records = tuple(records)
        self.read_labels = read_labels

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Sample:
        return self.sample(index)

    def sample(self, index: int, short_side: int | None = None) -> Sample:
        """The sample; with `short_side` its image alone may come smaller, with at least that short side."""
        record = self.records[index]
        image, size = read_image(record.image, short_side)
        labels = self.read_labels(index, record, size)
        return Sample(image, labels.semantic, labels.instances, record.name)

    def require_files(self) -> None:
        """Refuse a split with missing files before anything is trained, not when they are first read."""
        label_files = {record.labels: record.labels.is_file() for record in self.records}
        for what, missing in (
            ("labels", [record for record in self.records if not label_files[record.labels]]),
            ("image", [record for record in self.records if not record.image.is_file()]),
        ):
            if missing:
                first = missing[0]
                file = first.labels if what == "labels" else first.image
                more = (
                    f" ({len(missing) - 1} more are missing: `comastre data check` lists them)" if missing[1:] else ""
                )
                raise UserError(
                    f"The {what} of {first.name} in the {self.split} split of {self.name} should be in {file}, "
                    f"which does not exist{more}: add the file, or take {first.name} away."
                )

    def classes_of(self, index: int) -> frozenset[int]:
        """The classes of one image, whose file is whole and of its labels' size."""
        record = self.records[index]
        return classes_in(self.read_labels(index, record, checked_size(record.image)).semantic)

    def presence(self) -> list[frozenset[int]]:
        """The classes (1..C) of each image: worked out once, then read from the cache until a file changes.

        It is also where bad files are found, before anything is trained.
        """
        return cached_presence(self.fingerprint(), self.classes_of, len(self))

    def fingerprint(self) -> Fingerprint:
        """What the class-presence index depends on: names, sizes and times of all label and image files."""
        labels = {record.labels: None for record in self.records}
        place = os.path.commonpath([file.absolute().parent for file in labels])
        files = [*labels, *(record.image for record in self.records)]
        marks = [*self.class_names, f"{len(self.class_names)} classes"]
        marks += [f"{record.name} {record.labels.name}" for record in self.records]
        marks += [_mark(file) for file in files]
        return Fingerprint.of(f"{self.name}-{self.split}", place, marks)


def classes_in(semantic: np.ndarray) -> frozenset[int]:
    """Dataset ids of the classes in a label map, without 0 and 255."""
    counts = np.bincount(semantic.reshape(-1), minlength=256)
    return frozenset(int(label) for label in np.flatnonzero(counts) if 0 < label < IGNORE)


def _mark(file: Path) -> str:
    try:
        state = file.stat()
    except (OSError, ValueError):
        return f"{file.name} missing"  # reading the file, later, ends in an error that names it
    return f"{file.name} {state.st_size} {state.st_mtime_ns}"


# --- finding files ---------------------------------------------------------------------------------------------------


def data_root(root: str | Path | None, dataset: str) -> Path:
    """The folder of a dataset, or a sentence that says how to name one."""
    if root is None:
        raise UserError(f"{dataset} needs --data.root FOLDER, the folder that holds the data.")
    folder = user_path(root, "data.root")
    if not folder.is_dir():
        raise UserError(f"data.root: {folder} is not a folder: give the folder that holds the data of {dataset}.")
    listing(folder)
    return folder


def listing(folder: Path) -> list[Path]:
    """The entries of a folder, sorted by name."""
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        raise UserError(f"There is no folder {folder}.") from None
    except OSError as error:
        raise UserError(f"The folder {folder} cannot be read: {error.strerror}.") from None


def files_below(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """All files in a folder and its sub-folders with one of the suffixes; hidden ones are left out.

    Links to folders are followed, but each folder is read once, under its own name where it has one below `folder`: a
    link that leads back up would have no end.
    """
    wanted = tuple(suffixes)
    found: list[Path] = []
    visited: set[tuple[int, int]] = set()
    folders, links = [folder], list[Path]()
    while folders or links:
        current = folders.pop() if folders else links.pop(0)  # links last: what they lead to may lie here as well
        state = current.stat()
        if (state.st_dev, state.st_ino) in visited:
            continue
        visited.add((state.st_dev, state.st_ino))
        for entry in listing(current):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                (links if entry.is_symlink() else folders).append(entry)
            elif entry.suffix.lower() in wanted:
                found.append(entry)
    return sorted(found)


def read_names(path: Path) -> list[str]:
    """The names in a list file, one per line; empty lines are left out."""
    try:
        names = [line.strip() for line in text_of(path).splitlines() if line.strip()]
    except FileNotFoundError:
        raise UserError(f"The list {path} does not exist.") from None
    except (OSError, Unreadable) as error:
        raise UserError(f"The list {path} cannot be read: {error}.") from None
    if not names:
        raise UserError(f"The list {path} is empty: write one image name per line.")
    return names


def first_existing(*paths: Path) -> Path | None:
    """The first of the paths that exists."""
    return next((path for path in paths if path.exists()), None)
