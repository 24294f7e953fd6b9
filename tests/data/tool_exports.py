"""One small dataset in the layout of every labelling tool: 20 images with a cat, a dog or neither."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from small_data import SIZE, write_image, write_list

NAMES = ("cat", "dog")
COLOURS = {"background": (0, 0, 0), "cat": (250, 50, 83), "dog": (36, 179, 83)}
HEIGHT, WIDTH = SIZE
BOXES = {1: (2, 1, 9, 8), 2: (10, 3, 15, 11)}
"""Class -> x, y, x, y of its rectangle."""


def shown(number: int) -> tuple[int, ...]:
    """The classes of image `number`."""
    return ((1,), (2,), (1, 2), ())[number % 4]


def truth(number: int) -> np.ndarray:
    mask = np.zeros(SIZE, dtype=np.uint8)
    for label in shown(number):
        left, top, right, bottom = BOXES[label]
        mask[top:bottom, left:right] = label
    return mask


def corners(label: int) -> list[tuple[int, int]]:
    left, top, right, bottom = BOXES[label]
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def write_images(folder: Path, count: int = 20) -> None:
    for number in range(count):
        write_image(folder / f"{number}.jpg")


def write_yolo(root: Path) -> None:
    """As Ultralytics documents it."""
    write_images(root / "images" / "train")
    for number in range(20):
        lines = [
            f"{label - 1} " + " ".join(f"{x / WIDTH:.6f} {y / HEIGHT:.6f}" for x, y in corners(label))
            for label in shown(number)
        ]
        if lines:  # an image that shows nothing has no file
            path = root / "labels" / "train" / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n")
    (root / "data.yaml").write_text("path: .\ntrain: images/train\nval:\nnames:\n  0: cat\n  1: dog\n")


def write_label_studio(root: Path) -> None:
    """As `Export > JSON` gives it, with polygons in one half of the images and brush masks in the other."""
    write_images(root / "images")
    tasks = []
    for number in range(20):
        results = [_result(number, label) for label in shown(number)]
        annotation = {"id": number, "was_cancelled": False, "result": results, "lead_time": 3.2}
        skipped = {"id": 100 + number, "was_cancelled": True, "result": []}
        # An upload gets a mark before its name.
        data = {"image": f"/data/upload/1/{number:08x}-{number}.jpg"}
        tasks.append({"id": number, "annotations": [annotation, skipped], "predictions": [], "data": data})
    tasks.append({"id": 99, "annotations": [], "data": {"image": "/data/upload/1/00000000-unlabelled.jpg"}})
    (root / "project-1-at-2026-01-02.json").write_text(json.dumps(tasks))


def _result(number: int, label: int) -> dict:
    shape = {"original_width": WIDTH, "original_height": HEIGHT, "image_rotation": 0, "id": f"r{number}-{label}"}
    if number < 10:
        points = [[100 * x / WIDTH, 100 * y / HEIGHT] for x, y in corners(label)]
        value = {"points": points, "closed": True, "polygonlabels": [NAMES[label - 1]]}
        return {**shape, "value": value, "from_name": "label", "to_name": "image", "type": "polygonlabels"}
    left, top, right, bottom = BOXES[label]
    mask = np.zeros(SIZE, dtype=np.uint8)
    mask[top:bottom, left:right] = 255
    value = {"format": "rle", "rle": brush(mask), "brushlabels": [NAMES[label - 1]]}
    return {**shape, "value": value, "from_name": "tag", "to_name": "image", "type": "brushlabels"}


def brush(mask: np.ndarray) -> list[int]:
    """Label Studio's packed runs of a drawing whose four channels all are the mask."""
    values = np.repeat(mask.reshape(-1), 4).tolist()
    bits = f"{len(values):032b}" + f"{8 - 1:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    place = 0
    while place < len(values):
        length = 1
        while place + length < len(values) and values[place + length] == values[place]:
            length += 1
        if length > 2:
            bits += f"1{2:02b}{min(length, 256) - 1:08b}{values[place]:08b}"
            place += min(length, 256)
        else:  # as they are
            bits += f"0{0:02b}{length - 1:03b}" + "".join(f"{value:08b}" for value in values[place : place + length])
            place += length
    bits += "0" * (-len(bits) % 8)
    return [int(bits[start : start + 8], 2) for start in range(0, len(bits), 8)]


def write_cvat(root: Path) -> None:
    """As 'CVAT for images 1.1' is written, with polygons and masks in turn."""
    write_images(root / "images")
    images = []
    for number in range(20):
        shapes = ["<tag label='cat' source='manual'></tag>"] if number == 3 else []
        for label in shown(number):
            if number < 10:
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in corners(label))
                where = f'source="manual" occluded="0" points="{points}" z_order="0"'
                shapes.append(f'<polygon label="{NAMES[label - 1]}" {where}></polygon>')
            else:
                left, top, right, bottom = BOXES[label]
                # One zero column more on the left, so that the runs are more than one.
                runs = ", ".join(["1", str(right - left)] * (bottom - top))
                box = f'left="{left - 1}" top="{top}" width="{right - left + 1}" height="{bottom - top}"'
                shapes.append(
                    f'<mask label="{NAMES[label - 1]}" source="manual" rle="{runs}" {box} z_order="0"></mask>'
                )
        inside = "".join(shapes)
        images.append(f'<image id="{number}" name="{number}.jpg" width="{WIDTH}" height="{HEIGHT}">{inside}</image>')
    labels = "".join(f"<label><name>{name}</name><color>#fa3253</color></label>" for name in NAMES)
    meta = f"<meta><job><labels>{labels}</labels></job></meta>"
    document = f'<?xml version="1.0" encoding="utf-8"?>\n<annotations><version>1.1</version>{meta}{"".join(images)}'
    (root / "annotations.xml").write_text(f"{document}</annotations>\n")


def write_datumaro(root: Path) -> None:
    """As CVAT's export 'Datumaro 1.0' is written."""
    write_images(root / "images")
    items = []
    for number in range(20):
        shapes = []
        for label in shown(number):
            entry = {"id": 0, "attributes": {"occluded": False}, "group": 0, "label_id": label - 1, "z_order": 0}
            points = [float(value) for corner in corners(label) for value in corner]
            shapes.append({**entry, "type": "polygon", "points": points})
        image = {"path": f"{number}.jpg", "size": list(SIZE)}
        items.append({"id": str(number), "annotations": shapes, "attr": {"frame": number}, "image": image})
    labels = [{"name": name, "parent": "", "attributes": []} for name in NAMES]
    content = {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": items}
    (root / "annotations").mkdir()
    (root / "annotations" / "default.json").write_text(json.dumps(content))


def coloured(mask: np.ndarray) -> Image.Image:
    return Image.fromarray(np.array(list(COLOURS.values()), dtype=np.uint8)[mask])


def write_voc_pairs(root: Path) -> None:
    """As CVAT's 'Segmentation mask 1.1' is written: masks in colours and labelmap.txt."""
    write_images(root / "JPEGImages")
    (root / "SegmentationClass").mkdir()
    for number in range(20):
        coloured(truth(number)).save(root / "SegmentationClass" / f"{number}.png")
    lines = [f"{name}:{','.join(map(str, colour))}::" for name, colour in COLOURS.items()]
    (root / "labelmap.txt").write_text("# label:color_rgb:parts:actions\n" + "\n".join(lines) + "\n")
    write_list(root / "ImageSets" / "Segmentation" / "default.txt", *map(str, range(20)))


def write_labelme_voc(root: Path) -> None:
    """As LabelMe's labelme2voc writes it: masks of ids and class_names.txt."""
    write_images(root / "JPEGImages")
    (root / "SegmentationClassPNG").mkdir()
    for number in range(20):
        Image.fromarray(truth(number)).save(root / "SegmentationClassPNG" / f"{number}.png")
    (root / "class_names.txt").write_text("_background_\ncat\ndog\n")


def write_voc_xml(root: Path) -> None:
    """As VOC itself: objects numbered in a mask and named in an XML file."""
    write_images(root / "JPEGImages")
    for folder in ("SegmentationObject", "Annotations"):
        (root / folder).mkdir()
    for number in range(20):
        mask, objects = np.zeros(SIZE, dtype=np.uint8), ""
        for place, label in enumerate(reversed(shown(number)), start=1):
            mask[truth(number) == label] = place
            objects += f"<object><name>{NAMES[label - 1]}</name><bndbox><xmin>1</xmin></bndbox></object>"
        Image.fromarray(mask).save(root / "SegmentationObject" / f"{number}.png")
        start = f"<annotation><filename>{number}.jpg</filename><segmented>1</segmented>"
        (root / "Annotations" / f"{number}.xml").write_text(f"{start}{objects}</annotation>\n")


def write_colour_folder(root: Path) -> None:
    """images/, masks/ in colours and CamVid's class_dict.csv."""
    write_images(root / "images")
    (root / "masks").mkdir()
    for number in range(20):
        coloured(truth(number)).save(root / "masks" / f"{number}.png")
    rows = [",".join([name, *map(str, colour)]) for name, colour in COLOURS.items()]
    (root / "class_dict.csv").write_text("name,r,g,b\n" + "\n".join(rows) + "\n")


WRITERS = {
    "yolo": write_yolo,
    "label_studio": write_label_studio,
    "cvat": write_cvat,
    "datumaro": write_datumaro,
    "voc_pairs": write_voc_pairs,
    "labelme": write_labelme_voc,
    "voc_xml": write_voc_xml,
    "colours": write_colour_folder,
}


def number_of(name: str) -> int:
    """Which image a name of any of the layouts means."""
    return int(name.rsplit("/", 1)[-1].rsplit("-", 1)[-1])


def masks_of(samples: Sequence) -> dict[int, np.ndarray]:
    return {number_of(sample.image_id): sample.semantic for sample in samples}
