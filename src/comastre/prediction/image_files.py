"""The image files that a user names: files, folders with their sub-folders, and patterns."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.data.files import files_below
from comastre.data.images import IMAGE_SUFFIXES
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.prediction.result import LABELS, OVERLAY

_LONGEST_NAME = 200
"""Bytes of an image's name; systems allow 255, of which the names of results and of their making take some."""


@dataclass(frozen=True)
class ImageFile:
    """An image and the name of its results."""

    path: Path
    name: Path
    """Relative, without suffix: folders as below the deepest folder that holds everything that was named."""


def find_images(sources: Sequence[str | Path], leave_out: Path | None = None) -> list[ImageFile]:
    """Every image once, in order; results of an earlier run below `leave_out` are no images."""
    if not sources:
        raise UserError("no images given: name image files, folders or patterns after the model")
    found: dict[Path, Path] = {}  # absolute path -> path as given
    tops: list[Path] = []
    for source in sources:
        top, images = _expand(str(source))
        images = [image for image in images if not _is_result(image, leave_out)]
        if not images:
            raise UserError(f"{source} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        tops.append(top)
        for image in images:
            found.setdefault(_absolute(image), image)
    names = _unique_names([_below(path, tops) for path in found])
    return [ImageFile(path, name) for path, name in zip(found.values(), names, strict=True)]


def _expand(source: str) -> tuple[Path, list[Path]]:
    """The folder that a source is about, and its images."""
    path = user_path(source, "the image")
    if path.is_dir():
        return path, files_below(path, IMAGE_SUFFIXES)
    if path.exists():  # also a named pipe, which reading refuses
        return path.parent, [path]
    if not glob.has_magic(source):
        raise UserError(f"there is no image or folder {source}: check the name")
    matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 (absolute patterns)
    if not matches:
        raise UserError(f"no file fits the pattern {source}: check it")
    images: list[Path] = []
    for match in matches:
        if match.is_dir():
            images += files_below(match, IMAGE_SUFFIXES)
        elif match.suffix.lower() in IMAGE_SUFFIXES:
            images.append(match)
    fixed = path.parts[:-1]
    magic = next((place for place, part in enumerate(fixed) if glob.has_magic(part)), len(fixed))
    return Path(*fixed[:magic]), images


def _is_result(image: Path, folder: Path | None) -> bool:
    if folder is None or not image.name.endswith((LABELS, OVERLAY)):
        return False
    return _absolute(image).is_relative_to(_absolute(folder))


def _absolute(path: Path) -> Path:
    """The whole path without `..`, which a name of results must not have: it would lead out of their folder."""
    up = [place for place, part in enumerate(path.parts) if part == ".."]
    if not up:
        return path.absolute()
    # What `..` leads to, only the disk knows: the folder before it may be a link.
    return Path(*path.parts[: up[-1] + 1]).resolve().joinpath(*path.parts[up[-1] + 1 :])


def _below(image: Path, tops: Sequence[Path]) -> Path:
    """The image's path below the deepest folder that holds all of `tops`."""
    try:
        return image.relative_to(os.path.commonpath([_absolute(top) for top in tops]))
    except ValueError:  # on two drives of Windows
        return Path(image.drive.strip(":\\/"), *image.parts[1:])


def _unique_names(paths: Sequence[Path]) -> list[Path]:
    """Paths without suffix; a.jpg and a.png of one folder become a-jpg and a-png."""
    paths = [_short_enough(path) for path in paths]
    plain = [path.with_suffix("") for path in paths]
    times = Counter(map(_same, plain))
    names: list[Path] = []
    taken: set[str] = set()
    for path, short in zip(paths, plain, strict=True):
        wanted = short if times[_same(short)] == 1 else path.with_name(path.name.replace(".", "-"))
        name, number = wanted, 2
        while _same(name) in taken:
            name, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
        taken.add(_same(name))
        names.append(name)
    return names


def _short_enough(path: Path) -> Path:
    """The path with a name that leaves room for what results add to it; what is cut off, a mark stands for."""
    if len(os.fsencode(path.name)) <= _LONGEST_NAME:
        return path
    mark = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:8]
    start = os.fsencode(path.stem)[: _LONGEST_NAME - 40].decode(errors="ignore")
    return path.with_name(f"{start}-{mark}{path.suffix[:20]}")


def _same(name: Path) -> str:
    """Equal for names that some file systems take for one."""
    return str(name).casefold()
