"""A prediction as arrays, pictures, files and the formats of other tools, checked on masks drawn by hand."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import comastre
from comastre.class_table import class_table
from comastre.errors import UserError
from comastre.prediction.pictures import (
    OKABE_ITO,
    _grown,
    _squared_distances,
    distinct_colours,
    draw_overlay,
    label_picture,
)
from comastre.prediction.result import Prediction
from comastre.segmentation import ProposedMasks, Segment, Segmentation

CLASSES = class_table(["disk", "star", "ring"], [2, 1], [(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)])


def proposed(height: int = 20, width: int = 30) -> ProposedMasks:
    return ProposedMasks(torch.ones(5), torch.ones(5, 3), 0.8, torch.zeros(5, 5, 8), (height, width))


def prediction(height: int = 20, width: int = 30) -> Prediction:
    """A ring at columns 3..7, rows 2..5 and a disk in the bottom right corner."""
    segment_map = torch.zeros(height, width, dtype=torch.long)
    segment_map[2:6, 3:8] = 1
    segment_map[10:, 20:] = 2
    labels = torch.tensor([0, 3, 1])[segment_map]
    ring = Segment(3, 0.75, 20, 1, segment_map, query=4)
    disk = Segment(1, 0.5, int((segment_map == 2).sum()), 2, segment_map, query=1)
    found = Segmentation(labels, segment_map, (ring, disk), proposed(height, width))
    return Prediction(found, CLASSES, np.full((height, width, 3), 128, np.uint8), "photo.jpg")


def empty() -> Prediction:
    nothing = torch.zeros(20, 30, dtype=torch.long)
    return Prediction(Segmentation(nothing, nothing, (), proposed()), CLASSES, np.zeros((20, 30, 3), np.uint8))


def decoded(runs: dict) -> np.ndarray:
    from pycocotools import mask as run_length

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return run_length.decode(runs).astype(bool)


def test_segments_have_names_boxes_and_masks() -> None:
    ring, disk = prediction().segments
    assert (ring.name, ring.label, ring.class_index, ring.score, ring.area, ring.query) == ("ring", 3, 2, 0.75, 20, 4)
    assert ring.box == (3, 2, 5, 4)
    assert disk.box == (20, 10, 10, 10)
    assert ring.mask.sum() == ring.area
    assert "mask" not in repr(ring)


def test_run_lengths_are_what_pycocotools_reads_back() -> None:
    for segment in prediction().segments:
        assert np.array_equal(decoded(segment.rle), segment.mask)


def test_saved_files_hold_labels_overlay_and_segments(tmp_path: Path) -> None:
    labels, overlay, segments = prediction().save(tmp_path / "new" / "photo.v2")
    assert [file.name for file in (labels, overlay, segments)] == [
        "photo.v2.labels.png",
        "photo.v2.overlay.jpg",
        "photo.v2.segments.json",
    ]
    with Image.open(labels) as written:
        assert written.mode == "P"
        assert np.array_equal(np.asarray(written), prediction().label_map)
        assert (written.getpalette() or [])[:12] == [0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255]
    with Image.open(overlay) as written:
        assert written.size == prediction().plot().size
    content = json.loads(segments.read_text())
    assert (content["image"], content["width"], content["height"]) == ("photo.jpg", 30, 20)
    assert content["labels"] == {"0": "background", "1": "disk", "3": "ring"}
    ring = content["segments"][0]
    assert (ring["class"], ring["category_id"], ring["score"], ring["area"]) == ("ring", 3, 0.75, 20)
    assert ring["bbox"] == [3, 2, 5, 4]
    assert np.array_equal(decoded(ring["segmentation"]), prediction().segments[0].mask)


def test_saving_replaces_nothing_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "a.overlay.jpg").write_text("mine")
    with pytest.raises(UserError, match=r"a\.overlay\.jpg is already there"):
        prediction().save(tmp_path / "a")
    assert [file.name for file in tmp_path.iterdir()] == ["a.overlay.jpg"]
    prediction().save(tmp_path / "a", overwrite=True)
    assert (tmp_path / "a.overlay.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comastre.prediction.result.write_whole", full)
    with pytest.raises(UserError, match=r"results cannot be written to .*No space left"):
        prediction().save(tmp_path / "a")


def test_coco_reads_our_results(tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    entries = prediction().to_coco(image_id=7)
    truth = COCO()
    truth.dataset = {"images": [{"id": 7, "width": 30, "height": 20}], "annotations": [], "categories": [{"id": 3}]}
    truth.createIndex()
    (tmp_path / "results.json").write_text(json.dumps(entries))
    loaded = truth.loadRes(str(tmp_path / "results.json"))
    ring, disk = loaded.loadAnns(loaded.getAnnIds(imgIds=[7]))
    assert (ring["category_id"], ring["area"], list(ring["bbox"])) == (3, 20, [3, 2, 5, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert np.array_equal(loaded.annToMask(disk).astype(bool), prediction().segments[1].mask)
    assert empty().to_coco(7) == []


@pytest.mark.filterwarnings("default")  # of other people's packages
def test_supervision_takes_our_results() -> None:
    pytest.importorskip("supervision", reason="the optional package supervision is not installed")
    found = prediction().to_supervision()
    assert found.xyxy.tolist() == [[3, 2, 8, 6], [20, 10, 30, 20]]
    assert found.class_id is not None and found.class_id.tolist() == [3, 1]
    assert found.confidence is not None and found.confidence.tolist() == [0.75, 0.5]
    assert list(found.data["class_name"]) == ["ring", "disk"]
    assert np.array_equal(found.mask, np.stack([each.mask for each in prediction().segments]))
    assert len(found[found.confidence > 0.6]) == 1
    assert len(empty().to_supervision()) == 0


def test_without_supervision_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "supervision", None)
    with pytest.raises(UserError, match="pip install supervision"):
        prediction().to_supervision()


# --- pictures --------------------------------------------------------------------------------------------------------


def test_more_labels_than_a_palette_holds_are_kept() -> None:
    labels = np.array([[0, 300]])
    assert np.asarray(label_picture(labels, [(0, 0, 0)] * 301)).tolist() == [[0, 300]]


@pytest.mark.parametrize("value", [0, 255])
def test_an_outline_stands_out_on_black_and_on_white(value: int) -> None:
    image = np.full((64, 64, 3), value, np.uint8)
    numbers = np.zeros((64, 64), int)
    numbers[16:48, 16:48] = 1
    picture = np.asarray(draw_overlay(image, numbers, [("disk", 1, 0.9)])).astype(int)
    row = picture[200, :640]  # scaled by ten, above the number: the segment begins at column 160
    colours = {tuple(pixel) for pixel in row[155:170].tolist()}
    assert {OKABE_ITO[0], (255, 255, 255), (20, 20, 20)} <= colours
    assert tuple(row[10]) == (value,) * 3  # what is no segment stays as it is


def test_neighbours_of_one_class_are_told_apart_by_an_edge() -> None:
    numbers = np.ones((700, 700), int)
    numbers[:, 350:] = 2
    picture = np.asarray(draw_overlay(np.zeros((700, 700, 3), np.uint8), numbers, [("a", 1, 0.5), ("a", 1, 0.5)]))
    assert (picture[100, 349:351] == 255).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (1400, 40)])
def test_any_size_can_be_drawn(size: tuple[int, int]) -> None:
    numbers = np.zeros(size, int)
    numbers[0, 0] = 1
    picture = draw_overlay(np.zeros((*size, 3), np.uint8), numbers, [("disk", 1, 0.9)])
    assert max(picture.size) >= 100


@pytest.mark.parametrize("size", [(1, 1), (2, 30), (31, 24)])
@pytest.mark.parametrize("radius", [1, 2, 5])
def test_a_mask_grows_as_pils_largest_of_a_square(size: tuple[int, int], radius: int) -> None:
    mask = np.random.default_rng(radius).random(size) < 0.03
    mask[0, -1] = True
    largest = Image.fromarray(mask).convert("L").filter(ImageFilter.MaxFilter(2 * radius - 1))
    assert np.array_equal(_grown(mask, radius), np.asarray(largest) > 0)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (31, 24), (60, 50)])
def test_distances_are_scipys(size: tuple[int, int]) -> None:
    from scipy.ndimage import distance_transform_edt

    generator = np.random.default_rng(0)
    for outside in (0.0, 0.01, 0.3):
        mask = generator.random(size) >= outside
        expected = distance_transform_edt(np.pad(mask, 1))[1:-1, 1:-1] ** 2
        assert np.array_equal(_squared_distances(mask), expected.round().astype(int))


def test_a_legend_makes_room_for_every_segment_and_for_long_names() -> None:
    numbers = np.arange(40)[:, None].repeat(40, axis=1) + 1
    names = ["ring"] * 39 + ["a name that nobody wants to read in full, because it has no end\nand two lines"]
    picture = draw_overlay(np.zeros((40, 40, 3), np.uint8), numbers, [(name, 1, 0.5) for name in names])
    assert picture.height > 40 * 34
    assert picture.width < 640 + 500
    assert not (np.asarray(picture)[40 * 34 + 33, 640:] == 255).all()  # the last row is written


def test_classes_of_an_image_have_colours_of_their_own() -> None:
    assert distinct_colours([1, 8, 1]) == [OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[0]]  # 8 would be the colour of 1
    assert distinct_colours([5]) == [OKABE_ITO[4]]
    assert len(set(distinct_colours(range(1, 21)))) == len(OKABE_ITO)


def test_nothing_found_is_said() -> None:
    assert empty().plot().width > 640


def test_a_notebook_shows_a_prediction_as_its_picture(tiny_bundle: Path) -> None:
    result = comastre.load(tiny_bundle).predict(np.zeros((24, 32, 3), np.uint8))
    with Image.open(io.BytesIO(result._repr_png_())) as picture:
        assert picture.size == result.plot().size
    assert repr(result).startswith("Prediction of an image (32 x 24): ") and "\n" not in repr(result)
