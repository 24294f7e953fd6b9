"""Small files in the layout of real datasets, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (12, 16)  # height, width


def write_image(path: Path, size: tuple[int, int] = SIZE, value: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, dtype=np.uint8)).save(path)
    return path


def mask_of(*labels: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Vertical stripes of equal width, one per label."""
    columns = np.arange(size[1]) * len(labels) // size[1]
    return np.tile(np.array(labels, dtype=np.uint8)[columns], (size[0], 1))


def write_mask(path: Path, *labels: int, size: tuple[int, int] = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask_of(*labels, size=size)).save(path)
    return path


def write_folder(root: Path, masks: dict[str, tuple[int, ...]], classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """A dataset `folder` of all images in one split."""
    for name, labels in masks.items():
        write_image(root / "images" / f"{name}.jpg")
        write_mask(root / "masks" / f"{name}.png", *labels)
    (root / "classes.txt").write_text("\n".join(classes) + "\n")
    return root


def write_list(path: Path, *names: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(names) + "\n")


def write_sbd(folder: Path, train: dict[str, tuple[int, ...]], val: dict[str, tuple[int, ...]]) -> None:
    """SBD's dataset/ with cls/ and inst/ as MATLAB files, and its own lists."""
    from scipy.io import savemat

    for name, labels in {**train, **val}.items():
        for kind, key, values in (
            ("cls", "GTcls", mask_of(*labels)),
            ("inst", "GTinst", mask_of(*range(len(labels)))),
        ):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            savemat(folder / kind / f"{name}.mat", {key: {"Segmentation": values, "Boundaries": np.zeros(1)}})
    write_list(folder / "train.txt", *train)
    write_list(folder / "val.txt", *val)


def write_voc(
    root: Path, train: dict[str, tuple[int, ...]], val: dict[str, tuple[int, ...]], more: tuple[str, ...] = ()
):
    """VOCdevkit/VOC2012 with SegmentationClass and SegmentationObject; `more` are images without masks."""
    folder = root / "VOCdevkit" / "VOC2012"
    for name, labels in {**train, **val}.items():
        write_image(folder / "JPEGImages" / f"{name}.jpg")
        write_mask(folder / "SegmentationClass" / f"{name}.png", *labels)
        write_mask(folder / "SegmentationObject" / f"{name}.png", *range(len(labels)))
    for name in more:
        write_image(folder / "JPEGImages" / f"{name}.jpg")
    write_list(folder / "ImageSets" / "Segmentation" / "train.txt", *train)
    write_list(folder / "ImageSets" / "Segmentation" / "val.txt", *val)
    return folder


def write_panoptic(root: Path, split: str, names: tuple[str, ...]) -> None:
    """COCO's panoptic format: a thing (person, id 1), a stuff (sky, id 187), a crowd and void, in four stripes."""
    numbers = mask_of(10, 20, 30, 0).astype(np.int64) * 1000  # needs more than one byte
    pixels = np.stack([numbers % 256, numbers // 256 % 256, numbers // 65536], axis=-1).astype(np.uint8)
    images, annotations = [], []
    for number, name in enumerate(names):
        write_image(root / f"{split}2017" / f"{name}.jpg")
        path = root / "annotations" / f"panoptic_{split}2017" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        images.append({"id": number, "file_name": f"{name}.jpg", "height": SIZE[0], "width": SIZE[1]})
        segments = [
            {"id": 10000, "category_id": 1, "iscrowd": 0},
            {"id": 20000, "category_id": 187, "iscrowd": 0},
            {"id": 30000, "category_id": 1, "iscrowd": 1},
        ]
        annotations.append({"image_id": number, "file_name": f"{name}.png", "segments_info": segments})
    categories = [{"id": 187, "name": "sky", "isthing": 0}, {"id": 1, "name": "person", "isthing": 1}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (root / "annotations" / f"panoptic_{split}2017.json").write_text(json.dumps(content))


def write_instances(path: Path, annotations: list[dict], images: tuple[str, ...] = ("one.jpg",)) -> Path:
    """COCO's instance format with the categories 3 = car and 7 = dog."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(images)],
        "annotations": [{"id": 50 + number, "image_id": 0, **entry} for number, entry in enumerate(annotations)],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "car"}],
    }
    path.write_text(json.dumps(content))
    return path
