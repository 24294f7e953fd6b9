"""`comastre data prepare`: download a public dataset from its official place, check, unpack and convert it.

Started again it goes on where it stopped: finished archives are not fetched twice, half of one is resumed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from comastre.data.download.fetch import download, size_of
from comastre.data.download.unpack import UNPACKING, unpack
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.files import sweep, write_whole
from comastre.text import say

_COCO = "http://images.cocodataset.org"


@dataclass(frozen=True)
class Archive:
    """One file to download."""

    url: str
    gives: str
    """What is there, below the root, once it is unpacked."""
    md5: str | None = None
    """None where no official or widely confirmed checksum is known."""
    growth: float = 1.1
    """Bytes on disk per byte of the archive."""

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "voc": (
        Archive(
            "http://host.robots.ox.ac.uk/pascal/VOC/voc2012/VOCtrainval_11-May-2012.tar",
            "VOCdevkit/VOC2012/SegmentationClass",
            "6cd6e144f989b92b3379bac3b3de84fd",
        ),
        Archive(
            "https://www2.eecs.berkeley.edu/Research/Projects/CS/vision/grouping/semantic_contours/benchmark.tgz",
            "benchmark_RELEASE/dataset/cls",
            "82b4d87ceb2ed10f6038a1cba92111cb",
        ),
    ),
    "ade20k": (
        Archive(
            "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
            "ADEChallengeData2016/annotations",
            "7328b3957e407ddae1d3cbf487f149ef",
        ),
    ),
    "coco": (
        Archive(f"{_COCO}/zips/train2017.zip", "train2017", "cced6f7f71b7629ddf16f17bbcfab6b2"),
        Archive(f"{_COCO}/zips/val2017.zip", "val2017", "442b8da7639aecaf257c1dceb8ba8c80"),
        Archive(
            f"{_COCO}/annotations/annotations_trainval2017.zip",
            "annotations/instances_train2017.json",
            "f4bbac642086de4f52a3fdda2de5fa2c",
            growth=4.0,
        ),
        Archive(
            f"{_COCO}/annotations/panoptic_annotations_trainval2017.zip",
            "annotations/panoptic_train2017.json",
            growth=3.0,
        ),
    ),
}
_OFFICIAL = {"voc": (10582, 1449), "ade20k": (20210, 2000), "coco": (118287, 5000)}


def prepare(
    dataset: str,
    root: Path,
    base_url: str | None = None,
    keep_archives: bool = False,
    archives: Sequence[Archive] | None = None,
) -> None:
    """Make `root` a folder that `--data.root` takes; `base_url` is a mirror with the same file names."""
    if dataset not in ARCHIVES:
        raise UserError(f"There is no dataset {dataset!r} to prepare: choose {', '.join(ARCHIVES)}.")
    waiting = [each for each in archives or ARCHIVES[dataset] if not (root / each.gives).exists()]
    urls = [each.url if base_url is None else f"{base_url.rstrip('/')}/{each.file}" for each in waiting]
    disk = next(place for place in (root, *root.absolute().parents) if place.exists())
    if not disk.is_dir() or not os.access(disk, os.W_OK):
        raise UserError(f"{root} cannot be written: {disk} is {'not writable' if disk.is_dir() else 'a file'}.")
    _check_space(root, disk, waiting, urls)  # nothing is made before it is known that all can be fetched
    downloads = root / "downloads"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root} cannot be written: {error.strerror}.") from None
    with _alone(root, downloads):
        for archive, url in zip(waiting, urls, strict=True):
            path = download(url, downloads / archive.file, archive.md5)
            if archive.md5 is None:
                _record_checksum(downloads / "checksums.json", archive, url, path)
            unpack(path, root)
            if not (root / archive.gives).exists():
                raise UserError(f"{url} was unpacked into {root} but holds no {archive.gives}: is the mirror right?")
            if not keep_archives:
                path.unlink()
        _finish(dataset, root)
    _report(dataset, root)


@contextmanager
def _alone(root: Path, downloads: Path) -> Iterator[None]:
    """Hold the folder, and remove what killed starts left half unpacked: nobody else is at work in it."""
    lock = FileLock(downloads / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"{root} is being prepared by another process: wait for it, or choose another --root."
        ) from None
    except (OSError, NotImplementedError):
        pass  # a file system without locks: two at once are the user's care
    else:
        for folder in (root, root / "annotations"):
            sweep(folder, f"{UNPACKING}*", seconds=0.0)
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                Path(lock.lock_file).unlink()  # what is left is data
        lock.release()


def _check_space(root: Path, disk: Path, waiting: Sequence[Archive], urls: Sequence[str]) -> None:
    """Refuse before the first byte what would end with a full disk."""
    needed = 0.0
    for archive, url in zip(waiting, urls, strict=True):
        size = size_of(url)
        local = root / "downloads" / archive.file
        here = sum(file.stat().st_size for file in (local, Path(f"{local}.partial")) if file.exists())
        needed += size * (1 + archive.growth) - min(here, size)
    free = shutil.disk_usage(disk).free
    if needed > free:
        raise UserError(
            f"{root} has {free / 1e9:.1f} GB free but about {needed / 1e9:.1f} GB are needed to download and unpack: "
            "free some space or choose another --root."
        )
    if waiting:
        say(f"about {needed / 1e9:.1f} GB are needed in {root}; {free / 1e9:.1f} GB are free")


def _record_checksum(file: Path, archive: Archive, url: str, path: Path) -> None:
    try:
        known = read_json(file)
    except (OSError, ValueError):  # there is none yet, or an earlier version was killed while it wrote
        known = {}
    known = dict(known) if isinstance(known, dict) else {}
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    known[archive.file] = {"url": url, "sha256": digest}
    write_whole(file, json_bytes(known))
    say(f"{archive.file}: no official checksum is known, so it was not verified; sha256 {digest} is kept in {file}")


def _finish(dataset: str, root: Path) -> None:
    if dataset == "voc":
        from comastre.data.download.voc_augmented import make_train_aug

        make_train_aug(root)
    if dataset == "coco":
        for split in ("train", "val"):
            inner = root / "annotations" / f"panoptic_{split}2017.zip"
            if inner.exists():
                unpack(inner, inner.parent)
                inner.unlink()


def _report(dataset: str, root: Path) -> None:
    from comastre.config.datasets import find_dataset
    from comastre.config.run import DataConfig
    from comastre.data.build import build_datasets

    found = tuple(len(split) for split in build_datasets(DataConfig(dataset=dataset, root=str(root))))
    say(f"{dataset} is ready in {root}: {found[0]:,} training and {found[1]:,} validation images")
    if found != _OFFICIAL[dataset]:
        say(f"note: the official numbers are {_OFFICIAL[dataset][0]:,} and {_OFFICIAL[dataset][1]:,}")
    preset = find_dataset(dataset).preset
    if preset is not None:
        say(f"next: comastre train {preset} --data.root {root} --out RUN")
