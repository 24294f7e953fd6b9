"""What labelling tools write is read as it was drawn, found by its look, and refused in a sentence where it is bad."""

import json

import numpy as np
import pytest
from PIL import Image
from tool_exports import NAMES, WRITERS, brush, masks_of, truth

from comastre.cli.main import dispatch
from comastre.config.run import DataConfig
from comastre.data.build import build_datasets
from comastre.data.sets.colour_table import read_table
from comastre.data.sets.drawn import run_lengths
from comastre.data.sets.label_studio import brush_mask
from comastre.data.sets.outlines import draw
from comastre.data.sources import open_split, parse_source
from comastre.errors import UserError
from small_data import SIZE

SOURCES = {
    "yolo": ("yolo", "{}"),
    "label_studio": ("label_studio", "{}/project-1-at-2026-01-02.json"),
    "cvat": ("cvat", "{}"),
    "datumaro": ("cvat", "{}/annotations/default.json"),
    "voc_pairs": ("voc_pairs", "{}"),
    "labelme": ("voc_pairs", "{}"),
    "voc_xml": ("voc_pairs", "voc_pairs:{}"),
    "colours": ("folder", "{}"),
}


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_is_recognised_and_read_as_it_was_drawn(layout, tmp_path):
    WRITERS[layout](tmp_path)
    dataset, place = SOURCES[layout]
    source = parse_source(place.format(tmp_path))
    assert source.dataset == dataset
    whole = open_split(source, "all")
    assert whole.class_names == NAMES and len(whole) == 20
    masks = masks_of([whole[index] for index in range(20)])
    assert all(np.array_equal(masks[number], truth(number)) for number in range(20))
    presence = whole.presence()
    assert [set(np.unique(whole[index].semantic)) - {0} for index in range(20)] == [set(each) for each in presence]
    training, validation = build_datasets(DataConfig(**source.settings(), held_out=0.3))
    assert 0 < len(validation) < len(training) and len(training) + len(validation) == 20


def test_data_check_reads_an_export(tmp_path, capsys):
    WRITERS["cvat"](tmp_path)
    assert dispatch(["data", "check", str(tmp_path), "--processes", "1"]) == 0
    assert "cvat: 2 classes, 20 images" in capsys.readouterr().out


def test_a_split_of_data_yaml_is_taken(tmp_path):
    WRITERS["yolo"](tmp_path)
    for kind, suffix in (("images", "jpg"), ("labels", "txt")):
        (tmp_path / kind / "val").mkdir()
        (tmp_path / kind / "train" / f"2.{suffix}").rename(tmp_path / kind / "val" / f"2.{suffix}")
    # As Roboflow writes it: one folder up, where nothing is.
    (tmp_path / "data.yaml").write_text("train: ../images/train\nval: ../images/val\nnc: 2\nnames: ['cat', 'dog']\n")
    source = parse_source(tmp_path / "data.yaml")
    (sample,) = (open_split(source, "val")[0],)
    assert sample.image_id == "images/val/2" and np.array_equal(sample.semantic, truth(2))
    assert len(open_split(source, "train")) == 19


def test_run_lengths_and_brushes_come_back_as_they_were():
    generator = np.random.default_rng(0)
    for _ in range(5):
        mask = generator.random((7, 9)) < 0.5
        assert np.array_equal(draw(run_lengths(mask), 7, 9), mask)
        assert np.array_equal(brush_mask("x", brush(mask.astype(np.uint8) * 255), 7, 9), mask)


def test_a_class_that_is_black_and_one_that_is_ignored(tmp_path):
    table = {"road": [0, 0, 0], "void": [9, 9, 9], "ignore": [255, 255, 255]}
    (tmp_path / "colours.json").write_text(json.dumps(table))
    known = read_table(tmp_path / "colours.json")
    pixels = np.array([[[0, 0, 0], [9, 9, 9], [255, 255, 255]]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "mask.png")
    assert known(tmp_path / "mask.png").tolist() == [[1, 0, 255]] and not known.has_background
    Image.fromarray(pixels + 1).save(tmp_path / "mask.png")
    with pytest.raises(UserError, match=r"holds the colour 1,1,1 on 2 pixels, which colours.json does not name"):
        known(tmp_path / "mask.png")


# --- hostile ---------------------------------------------------------------------------------------------------------


def broken(layout, tmp_path, file, change):
    """The sentence about a layout in which `change` made another text of a file's."""
    WRITERS[layout](tmp_path)
    path = tmp_path / file
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError) as error:
        whole = open_split(parse_source(SOURCES[layout][1].format(tmp_path)), "all")
        for index in range(len(whole)):
            whole[index]
    assert "\n" not in str(error.value)
    return str(error.value)


LABELS = "labels/train/0.txt"
EXPORT = "project-1-at-2026-01-02.json"
DATUMARO = "annotations/default.json"
HUGE = "<!DOCTYPE a [<!ENTITY b 'c'>]>"


@pytest.mark.parametrize(
    ("layout", "file", "change", "said"),
    [
        ("yolo", LABELS, lambda text: "0 0.5 0.5 0.2 0.2\n", "line 1 is a box"),
        ("yolo", LABELS, lambda text: "7 0 0 1 0 1 1\n", "has the class 7, but data.yaml names 0 to 1"),
        ("yolo", LABELS, lambda text: "cat 0 0 1 0 1 1\n", "write a class and a polygon's corners"),
        ("yolo", LABELS, lambda text: "0 0 0 1 0 1e30 1\n", "far outside the image"),
        ("yolo", LABELS, lambda text: "0 0 0 nan 0 1 1\n", "no number"),
        ("yolo", LABELS, lambda text: "0 0 0 1 0 1 1 1\n", "corners are pairs"),
        ("yolo", "data.yaml", lambda text: "names: [cat, cat]\ntrain: images/train\n", "names the class cat twice"),
        ("yolo", "data.yaml", lambda text: "names: {1: cat}\ntrain: images/train\n", "without a gap"),
        ("yolo", "data.yaml", lambda text: "train: images/train\n", "has no names"),
        ("yolo", "data.yaml", lambda text: "names: [a]\ntrain: nowhere\n", "names nowhere, which is not below"),
        ("yolo", "data.yaml", lambda text: "a: [", "is not YAML"),
        ("label_studio", EXPORT, lambda text: "[1]", "is not a list of tasks"),
        ("label_studio", EXPORT, lambda text: "[", "cannot be read as JSON"),
        ("label_studio", EXPORT, lambda text: text.replace('"polygonlabels": ["cat"]', '"x": 1'), "is no labelled"),
        (
            "label_studio",
            EXPORT,
            lambda text: text.replace('"original_width": 16', '"original_width": -1'),
            "export it",
        ),
        ("label_studio", EXPORT, lambda text: text.replace('"rle": [0', '"rle": [9'), "brush mask that cannot be read"),
        ("label_studio", EXPORT, lambda text: text.replace('"points": [[', '"points": [[1,'), "no pair of numbers"),
        ("cvat", "annotations.xml", lambda text: text[:-30], "cannot be read as XML"),
        ("cvat", "annotations.xml", lambda text: text.replace("<annotations>", HUGE + "<annotations>"), "entities"),
        (
            "cvat",
            "annotations.xml",
            lambda text: text.replace('<polygon label="cat"', '<polygon label="x"'),
            "not list",
        ),
        ("cvat", "annotations.xml", lambda text: text.replace("polygon", "box"), "is no outline"),
        ("cvat", "annotations.xml", lambda text: text.replace('left="1"', 'left="99"'), "does not fit into its image"),
        ("cvat", "annotations.xml", lambda text: text.replace("2.00,1.00;", "two;"), "corners are pairs"),
        (
            "datumaro",
            "annotations/default.json",
            lambda text: text.replace('"label_id": 0', '"label_id": 9'),
            "label_id 9",
        ),
        ("datumaro", DATUMARO, lambda text: text.replace('"polygon"', '"bbox"'), "draw polygons"),
        ("datumaro", "annotations/default.json", lambda text: text.replace('"labels"', '"x"'), "not Datumaro's JSON"),
        ("voc_pairs", "labelmap.txt", lambda text: "cat:1,2\n", "three whole numbers"),
        ("voc_pairs", "labelmap.txt", lambda text: "cat:250,50,83::\n", "which labelmap.txt does not name"),
        ("voc_xml", "Annotations/0.xml", lambda text: "<annotation></annotation>", "holds the label 1"),
        ("labelme", "class_names.txt", lambda text: "cat\n", "holds the label 2"),
        ("colours", "class_dict.csv", lambda text: text + "cow,250,50,83\n", "the colour of another class"),
    ],
)
def test_what_is_broken_gets_a_sentence(layout, file, change, said, tmp_path):
    assert said in broken(layout, tmp_path, file, change)


def test_an_image_that_is_missing_or_there_twice_is_named(tmp_path):
    WRITERS["cvat"](tmp_path)
    (tmp_path / "images" / "3.jpg").unlink()
    with pytest.raises(UserError, match=r"images/3.jpg, which does not exist"):
        open_split(parse_source(tmp_path), "all")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.new("RGB", SIZE[::-1]).save(tmp_path / folder / "3.jpg")
    with pytest.raises(UserError, match=r"There are 2 images called 3.jpg"):
        open_split(parse_source(tmp_path), "all")
