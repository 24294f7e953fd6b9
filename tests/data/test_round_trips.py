"""Every format that is read comes back as it was written: any mask by formats of pixels, any outline by all others.

`test_formats` reads what tools write of one small dataset; here the drawings are random, and the layouts are those that
the tools themselves make of a project.
"""

import json
import shutil

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as run_length
from tool_exports import BOXES, HEIGHT, NAMES, WIDTH, brush, corners, shown, truth, write_images

from comastre.data.sets.drawn import run_lengths
from comastre.data.sources import has_own_validation, open_split, parse_source
from small_data import SIZE, write_image

COLOURS = np.array([(0, 0, 0), (250, 50, 83), (36, 179, 83)], np.uint8)
COUNT = 6


def any_mask(number):
    """(H, W) with both classes in scattered pixels and holes, and a frame of nothing here and there."""
    generator = np.random.default_rng(number)
    mask = generator.choice(3, size=SIZE, p=(0.5, 0.3, 0.2)).astype(np.uint8)
    mask[:, : number % 3] = 0
    mask[0, WIDTH - 2 :] = (1, 2)  # each class is somewhere
    return mask


def parts(number):
    return [(label, any_mask(number) == label) for label in (1, 2)]


# --- formats of pixels -----------------------------------------------------------------------------------------------


def write_masks(folder, colours=None):
    """A picture of numbers for each image, or of colours."""
    folder.mkdir(parents=True)
    for number in range(COUNT):
        mask = any_mask(number)
        Image.fromarray(mask if colours is None else colours[mask]).save(folder / f"{number}.png")


def folder(root):
    write_masks(root / "masks")
    (root / "classes.txt").write_text("cat\ndog\n")
    return "images", root


def colours(root):
    write_masks(root / "masks", COLOURS)
    table = {"background": [0, 0, 0], "cat": COLOURS[1].tolist(), "dog": COLOURS[2].tolist()}
    (root / "colours.json").write_text(json.dumps(table))
    return "images", root


def coco(root, packed=False):
    """Runs as a list, or as the letters that pycocotools packs them into."""
    entries = []
    for number in range(COUNT):
        for label, mask in parts(number):
            runs = run_lengths(mask)
            if packed:
                letters = run_length.encode(np.asfortranarray(mask.astype(np.uint8)))
                runs = {"size": list(SIZE), "counts": letters["counts"].decode()}
            entries.append({"image_id": number, "category_id": label, "iscrowd": 0, "segmentation": runs})
    return "images", write_instances(root / "annotations" / "instances_default.json", entries)


def packed_coco(root):
    return coco(root, packed=True)


def write_instances(file, entries, names=NAMES, where="{}.jpg", count=COUNT):
    file.parent.mkdir(parents=True, exist_ok=True)
    images = [
        {"id": number, "file_name": where.format(number), "height": HEIGHT, "width": WIDTH} for number in range(count)
    ]
    categories = [{"id": place, "name": name, "supercategory": ""} for place, name in enumerate(names, start=1)]
    annotations = [{"id": place, **entry} for place, entry in enumerate(entries, start=1)]
    content = {"licenses": [], "info": {}, "images": images, "categories": categories, "annotations": annotations}
    file.write_text(json.dumps(content))
    return file


def label_studio(root):
    shape = {"original_width": WIDTH, "original_height": HEIGHT, "type": "brushlabels"}
    tasks = []
    for number in range(COUNT):
        results = [
            {**shape, "value": {"format": "rle", "rle": brush(mask * np.uint8(255)), "brushlabels": [NAMES[label - 1]]}}
            for label, mask in parts(number)
        ]
        data = {"image": f"/data/local-files/?d=images/{number}.jpg"}
        tasks.append({"id": number, "annotations": [{"result": results}], "data": data})
    (root / "export.json").write_text(json.dumps(tasks))
    return "images", root / "export.json"


def cvat(root):
    images = ""
    for number in range(COUNT):
        shapes = ""
        for label, mask in parts(number):
            values = np.concatenate(([False], mask.reshape(-1)))  # row by row, in a box that is the image
            changes = np.flatnonzero(values[1:] != values[:-1])
            runs = ", ".join(map(str, np.diff(np.concatenate(([0], changes, [mask.size])))))
            box = f'left="0" top="0" width="{WIDTH}" height="{HEIGHT}"'
            shapes += f'<mask label="{NAMES[label - 1]}" rle="{runs}" {box}></mask>'
        images += f'<image id="{number}" name="{number}.jpg" width="{WIDTH}" height="{HEIGHT}">{shapes}</image>'
    labels = "".join(f"<label><name>{name}</name></label>" for name in NAMES)
    text = f"<annotations><meta><task><labels>{labels}</labels></task></meta>{images}</annotations>"
    (root / "annotations.xml").write_text(text)
    return "images", root


def datumaro(root):
    items = []
    for number in range(COUNT):
        shapes = [
            {"id": 0, "type": "mask", "label_id": label - 1, "rle": run_lengths(mask), "attributes": {}}
            for label, mask in parts(number)
        ]
        items.append({"id": str(number), "annotations": shapes, "image": {"path": f"{number}.jpg", "size": SIZE}})
    labels = {"label": {"labels": [{"name": name} for name in NAMES]}}
    (root / "annotations").mkdir()
    (root / "annotations" / "default.json").write_text(json.dumps({"categories": labels, "items": items}))
    return "images", root


def voc_colours(root):
    write_masks(root / "SegmentationClass", COLOURS)
    rows = [
        f"{name}:{','.join(map(str, colour))}::" for name, colour in zip(("background", *NAMES), COLOURS, strict=True)
    ]
    (root / "labelmap.txt").write_text("# label:color_rgb:parts:actions\n" + "\n".join(rows) + "\n")
    return "JPEGImages", root


def voc_ids(root):
    write_masks(root / "SegmentationClassPNG")
    (root / "class_names.txt").write_text("_background_\ncat\ndog\n")
    return "JPEGImages", root


def voc_xml(root):
    for name in ("SegmentationObject", "Annotations"):
        (root / name).mkdir()
    for number in range(COUNT):
        Image.fromarray(any_mask(number)).save(root / "SegmentationObject" / f"{number}.png")
        objects = "".join(f"<object><name>{name}</name></object>" for name in NAMES)
        (root / "Annotations" / f"{number}.xml").write_text(f"<annotation>{objects}</annotation>")
    return "JPEGImages", f"voc_pairs:{root}"


PIXELS = (folder, colours, coco, packed_coco, label_studio, cvat, datumaro, voc_colours, voc_ids, voc_xml)


def read(place, count=COUNT):
    """Class names and, by the image's number, label maps."""
    whole = open_split(parse_source(place), "all")
    assert len(whole) == count
    samples = [whole[index] for index in range(len(whole))]
    return whole.class_names, {
        int(each.image_id.rsplit("/", 1)[-1].rsplit("-", 1)[-1]): each.semantic for each in samples
    }


@pytest.mark.parametrize("write", PIXELS)
def test_any_mask_comes_back_pixel_by_pixel(write, tmp_path):
    where, place = write(tmp_path)
    write_images(tmp_path / where, COUNT)
    names, masks = read(place)
    assert names == NAMES
    for number in range(COUNT):
        np.testing.assert_array_equal(masks[number], any_mask(number))


# --- formats of outlines ---------------------------------------------------------------------------------------------


def outline(number):
    """A polygon of four to nine corners between pixels, as x, y, x, y, ...; it may cross itself."""
    generator = np.random.default_rng(100 + number)
    many = int(generator.integers(4, 10))
    return (generator.random((many, 2)) * (WIDTH, HEIGHT)).reshape(-1).tolist()


def outlines_of_coco(root):
    entries = [{"image_id": number, "category_id": 1, "segmentation": [outline(number)]} for number in range(COUNT)]
    return write_instances(root / "annotations.json", entries)


def outlines_of_yolo(root):
    for number in range(COUNT):
        shares = [value / (HEIGHT if odd % 2 else WIDTH) for odd, value in enumerate(outline(number))]
        (root / "labels").mkdir(exist_ok=True)
        (root / "labels" / f"{number}.txt").write_text(f"0 {' '.join(map(repr, shares))}\n")
    (root / "data.yaml").write_text("train: images\nnames: [cat, dog]\n")
    return root


def outlines_of_label_studio(root):
    tasks = []
    for number in range(COUNT):
        x, y = outline(number)[0::2], outline(number)[1::2]
        points = [[100 * a / WIDTH, 100 * b / HEIGHT] for a, b in zip(x, y, strict=True)]
        result = {"original_width": WIDTH, "original_height": HEIGHT, "type": "polygonlabels"}
        result["value"] = {"points": points, "polygonlabels": ["cat"]}
        tasks.append(
            {"annotations": [{"result": [result]}], "data": {"image": f"/data/upload/3/0a1b2c3d-{number}.jpg"}}
        )
    (root / "export.json").write_text(json.dumps(tasks))
    return root / "export.json"


def outlines_of_cvat(root):
    images = ""
    for number in range(COUNT):
        x, y = outline(number)[0::2], outline(number)[1::2]
        points = ";".join(f"{a!r},{b!r}" for a, b in zip(x, y, strict=True))
        shape = f'<polygon label="cat" points="{points}"></polygon>'
        images += f'<image id="{number}" name="{number}.jpg" width="{WIDTH}" height="{HEIGHT}">{shape}</image>'
    (root / "annotations.xml").write_text(f"<annotations>{images}</annotations>")
    return root


def outlines_of_datumaro(root):
    items = [
        {
            "id": str(number),
            "annotations": [{"type": "polygon", "label_id": 0, "points": outline(number)}],
            "image": {"path": f"{number}.jpg"},
        }
        for number in range(COUNT)
    ]
    (root / "annotations").mkdir()
    content = {"categories": {"label": {"labels": [{"name": "cat"}]}}, "items": items}
    (root / "annotations" / "default.json").write_text(json.dumps(content))
    return root


OUTLINES = (outlines_of_coco, outlines_of_yolo, outlines_of_label_studio, outlines_of_cvat, outlines_of_datumaro)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between pycocotools and numpy
@pytest.mark.parametrize("write", OUTLINES)
def test_any_outline_is_drawn_as_pycocotools_draws_it(write, tmp_path):
    place = write(tmp_path)
    write_images(tmp_path / "images", COUNT)
    names, masks = read(place)
    assert names[0] == "cat"
    for number in range(COUNT):
        (runs,) = run_length.frPyObjects([outline(number)], HEIGHT, WIDTH)
        expected = run_length.decode(runs)
        # A share of the width times the width may be another number in its last digit, and a corner one pixel away.
        assert (masks[number] != expected).sum() <= 1 and expected.any()


# --- what tools make of a project ------------------------------------------------------------------------------------


def polygon_lines(number):
    return "".join(
        f"{label - 1} {' '.join(f'{x / WIDTH:.6f} {y / HEIGHT:.6f}' for x, y in corners(label))}\n"
        for label in shown(number)
    )


def cvat_ultralytics(root):
    """CVAT's "Ultralytics YOLO Segmentation 1.0": a list of images, a folder per subset, and an empty file for none."""
    write_images(root / "images" / "train")
    (root / "labels" / "train").mkdir(parents=True)
    for number in range(20):
        (root / "labels" / "train" / f"{number}.txt").write_text(polygon_lines(number))
    (root / "train.txt").write_text("".join(f"images/train/{number}.jpg\n" for number in range(20)))
    (root / "data.yaml").write_text("names:\n  0: cat\n  1: dog\npath: .\ntrain: train.txt\n")
    return root


def roboflow_yolo(root):
    """Roboflow's "YOLOv8": train/images and train/labels, named as seen from a folder that is not there."""
    write_images(root / "train" / "images")
    (root / "train" / "labels").mkdir()
    for number in range(20):
        (root / "train" / "labels" / f"{number}.txt").write_text(polygon_lines(number))
    text = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\nnames: ['cat', 'dog']\n"
    (root / "data.yaml").write_text(f"{text}\nroboflow:\n  workspace: w\n  project: p\n  version: 1\n")
    return root


def label_studio_yolo(root):
    """Label Studio's "YOLO": classes.txt and notes.json, and no data.yaml."""
    write_images(root / "images")
    (root / "labels").mkdir()
    for number in range(20):
        (root / "labels" / f"{number}.txt").write_text(polygon_lines(number))
    (root / "classes.txt").write_text("cat\ndog")
    notes = {"categories": [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}], "info": {"year": 2026}}
    (root / "notes.json").write_text(json.dumps(notes))
    return root


def label_studio_coco(root):
    """Label Studio's "COCO": result.json, whose categories count from 0, with images/ in their names."""
    write_images(root / "images")
    entries = [
        {"image_id": number, "category_id": label, "segmentation": [list(map(float, sum(corners(label), ())))]}
        for number in range(20)
        for label in shown(number)
    ]
    file = write_instances(root / "result.json", entries, where="images/{}.jpg", count=20)
    content = json.loads(file.read_text())
    for entry, field in [(each, "id") for each in content["categories"]] + [
        (each, "category_id") for each in content["annotations"]
    ]:
        entry[field] -= 1
    file.write_text(json.dumps(content))
    return root


def cvat_coco(root):
    """CVAT's "COCO 1.0": brush masks are run lengths, which it calls crowds, one and all."""
    write_images(root / "images" / "default")
    entries = []
    for number in range(20):
        for label in shown(number):
            entry = {"image_id": number, "category_id": label, "attributes": {"occluded": False}}
            if number % 2:
                left, top, right, bottom = BOXES[label]
                mask = np.zeros(SIZE, bool)
                mask[top:bottom, left:right] = True
                entries.append({**entry, "segmentation": run_lengths(mask), "iscrowd": 1})
            else:
                flat = [float(value) for corner in corners(label) for value in corner]
                entries.append({**entry, "segmentation": [flat], "iscrowd": 0})
    write_instances(root / "annotations" / "instances_default.json", entries, count=20)
    return root


def roboflow_coco(root):
    """Roboflow's "COCO Segmentation": images beside _annotations.coco.json in a folder per split."""
    entries = [
        {
            "image_id": number,
            "category_id": label,
            "iscrowd": 0,
            "segmentation": [[float(value) for corner in corners(label) for value in corner]],
        }
        for number in range(20)
        for label in shown(number)
    ]
    write_images(root / "train")
    write_instances(root / "train" / "_annotations.coco.json", entries, count=20)
    return root


TOOLS = (cvat_ultralytics, roboflow_yolo, label_studio_yolo, label_studio_coco, cvat_coco, roboflow_coco)


@pytest.mark.parametrize("write", TOOLS)
def test_the_layout_of_a_tool_is_recognised_and_read(write, tmp_path):
    names, masks = read(write(tmp_path), 20)
    assert names == NAMES
    for number in range(20):
        np.testing.assert_array_equal(masks[number], truth(number))


def test_a_split_of_roboflow_is_taken(tmp_path):
    roboflow_yolo(tmp_path)
    shutil.copytree(tmp_path / "train", tmp_path / "valid")
    for file in (tmp_path / "valid").rglob("1*.*"):
        file.unlink()
    source = parse_source(tmp_path)
    assert has_own_validation(source) and len(open_split(source, "val")) == 9 and len(open_split(source, "train")) == 20


def test_a_crowd_of_coco_itself_stays_ignored(tmp_path):
    """It has no attributes, or one that says so."""
    write_image(tmp_path / "images" / "0.jpg")
    entry = {"image_id": 0, "category_id": 1, "iscrowd": 1, "segmentation": run_lengths(truth(0) == 1)}
    for more in ({}, {"attributes": {"is_crowd": True}}):
        file = write_instances(tmp_path / "annotations.json", [{**entry, **more}], count=1)
        _, masks = read(file, 1)
        assert set(np.unique(masks[0])) == {0, 255}


def test_masks_in_a_folder_called_labels_are_no_outlines(tmp_path):
    folder(tmp_path)
    write_images(tmp_path / "images", COUNT)
    (tmp_path / "masks").rename(tmp_path / "labels")
    assert parse_source(tmp_path).dataset == "folder"
