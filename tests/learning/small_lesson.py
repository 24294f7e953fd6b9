"""The user's own data for the tests of `learn`: Shapes written to disk, labelled for some classes only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from comastre.data.dataset import Sample
from comastre.data.sets.shapes import drawn_once


def samples_with(classes: Sequence[str], count: int, split: str = "train", seed: int = 100) -> list[Sample]:
    """The first `count` images of a Shapes stream that show one of the classes."""
    stream = drawn_once(split, 64, 2000, seed)
    wanted = [stream.class_names.index(name) + 1 for name in classes]
    found = []
    for index in range(len(stream)):
        sample = stream[index]
        if np.isin(wanted, sample.semantic).any():
            found.append(sample)
        if len(found) == count:
            break
    return found


def masks_of(samples: Sequence[Sample], labelled: Sequence[str]) -> list[np.ndarray]:
    """Their masks with class i of `labelled` as id i + 1, and everything else as background."""
    names = drawn_once("train", 64, 2000, 100).class_names
    table = np.zeros(256, dtype=np.uint8)
    for label, name in enumerate(labelled, start=1):
        table[names.index(name) + 1] = label
    return [table[sample.semantic] for sample in samples]


def write_folder(
    root: Path, samples: Sequence[Sample], labelled: Sequence[str], called: Sequence[str] | None = None
) -> Path:
    """images/, masks/ and classes.txt, where the classes may be called otherwise."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for sample, mask in zip(samples, masks_of(samples, labelled), strict=True):
        Image.fromarray(sample.image).save(root / "images" / f"{sample.image_id}.png")
        Image.fromarray(mask).save(root / "masks" / f"{sample.image_id}.png")
    (root / "classes.txt").write_text("\n".join(called or labelled) + "\n")
    return root


def write_coco(root: Path, samples: Sequence[Sample], labelled: Sequence[str]) -> Path:
    """The same as a COCO JSON file with uncompressed run-length masks, one per class and image."""
    root.mkdir(parents=True)
    images, annotations = [], []
    for number, (sample, mask) in enumerate(zip(samples, masks_of(samples, labelled), strict=True), start=1):
        height, width = mask.shape
        Image.fromarray(sample.image).save(root / f"{sample.image_id}.png")
        images.append({"id": number, "file_name": f"{sample.image_id}.png", "height": height, "width": width})
        for label in range(1, len(labelled) + 1):
            if (mask == label).any():
                shape = {"size": [height, width], "counts": run_lengths(mask == label)}
                entry = {"id": len(annotations) + 1, "image_id": number, "category_id": 10 * label, "iscrowd": 0}
                annotations.append({**entry, "segmentation": shape})
    categories = [{"id": 10 * label, "name": name} for label, name in enumerate(labelled, start=1)]
    file = root / "labels.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file


def run_lengths(mask: np.ndarray) -> list[int]:
    """COCO's runs of zeros and ones in turn, column by column."""
    values = np.concatenate(([False], mask.T.reshape(-1)))
    changes = np.flatnonzero(values[1:] != values[:-1])
    return np.diff(np.concatenate(([0], changes, [mask.size]))).tolist()
