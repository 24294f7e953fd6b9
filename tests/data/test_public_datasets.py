"""VOC with SBD, ADE20K and COCO in small copies of their own layouts."""

import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from comastre.config.run import DataConfig
from comastre.data.build import build_datasets
from comastre.data.sets.ade20k import CLASS_NAMES, ade20k
from comastre.data.sets.coco import coco
from comastre.data.sets.coco_json import coco_json
from comastre.data.sets.voc import voc, voc_colours
from comastre.errors import UserError
from small_data import (
    SIZE,
    mask_of,
    write_image,
    write_instances,
    write_list,
    write_mask,
    write_panoptic,
    write_sbd,
    write_voc,
)


def names(dataset):
    return [record.name for record in dataset.records]


# --- VOC -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def voc_root(tmp_path):
    write_voc(tmp_path, {"t1": (0, 15), "t2": (1, 255)}, {"v1": (2, 3)}, more=("s1", "s2"))
    return tmp_path


def test_voc_alone_uses_its_train_list(voc_root):
    dataset = voc(voc_root, "train")
    assert names(dataset) == ["t1", "t2"]
    assert dataset.presence() == [{15}, {1}]
    assert dataset.class_names[14] == "person"
    assert dataset.has_background


@pytest.mark.parametrize("below", ["", "VOCdevkit", "VOCdevkit/VOC2012"])
def test_sbd_makes_train_aug_without_validation_images(voc_root, below):
    write_sbd(voc_root / "benchmark_RELEASE" / "dataset", {"t1": (7,), "s2": (4, 0)}, {"v1": (9,), "s1": (5, 6)})
    dataset = voc(voc_root / below, "train")
    assert names(dataset) == ["s1", "s2", "t1", "t2"]  # v1 is VOC's validation, though SBD trains with it
    assert dataset.presence() == [{5, 6}, {4}, {15}, {1}]  # VOC's own masks win over SBD's
    sample = dataset[1]
    assert np.array_equal(sample.semantic, mask_of(4, 0))
    assert names(voc(voc_root / below, "val")) == ["v1"]
    assert voc(voc_root / below, "val").presence() == [{2, 3}]


def test_objects_are_kept_where_all_images_have_them(voc_root):
    assert np.array_equal(voc(voc_root, "train")[1].instances, mask_of(0, 1))
    folder = voc_root / "VOCdevkit" / "VOC2012"
    write_mask(folder / "SegmentationObject" / "t1.png", 3, 255)
    assert set(np.unique(voc(voc_root, "train")[0].instances)) == {0, 3}
    (folder / "SegmentationObject" / "t2.png").unlink()
    assert voc(voc_root, "train")[0].instances is None
    write_sbd(voc_root / "SBD", {"t2": (1,)}, {"v1": (9,)})
    assert voc(voc_root, "train")[1].instances is not None


def test_a_ready_list_and_folder_come_first(voc_root):
    folder = voc_root / "VOCdevkit" / "VOC2012"
    for name, label in (("s1", 11), ("t1", 12), ("v1", 13)):
        write_mask(folder / "SegmentationClassAug" / f"{name}.png", label)
    write_list(folder / "ImageSets" / "Segmentation" / "train_aug.txt", "s1", "/JPEGImages/t1.jpg /Segmentation/t1.png")
    assert voc(voc_root, "train").presence() == [{11}, {12}]
    assert voc(voc_root, "val").presence() == [{2, 3}]  # VOC evaluates against SegmentationClass


def test_voc_problems_are_named(voc_root, tmp_path):
    folder = voc_root / "VOCdevkit" / "VOC2012"
    write_list(folder / "ImageSets" / "Segmentation" / "train.txt", "t1", "s1")
    with pytest.raises(UserError, match=r"labels of s1 in the train split of voc .*SegmentationClass.s1\.png"):
        voc(voc_root, "train").require_files()
    (folder / "ImageSets" / "Segmentation" / "val.txt").unlink()
    with pytest.raises(UserError, match=r"val\.txt does not exist"):
        voc(voc_root, "val")
    with pytest.raises(UserError, match=r"holds no VOCdevkit/VOC2012/JPEGImages.*data prepare voc"):
        voc(folder / "ImageSets", "train")
    write_sbd(voc_root / "SBD", {"t1": (1,), "s1": (1,)}, {"s2": (1,)})
    (voc_root / "SBD" / "cls" / "s1.mat").write_bytes(b"broken")
    write_list(folder / "ImageSets" / "Segmentation" / "val.txt", "v1")
    with pytest.raises(UserError, match=r"s1\.mat cannot be read as SBD's GTcls"):
        voc(voc_root, "train").presence()


def test_voc_colours_are_the_official_ones():
    assert voc_colours(21)[1] == (128, 0, 0)
    assert voc_colours(21)[15] == (192, 128, 128)
    assert voc_colours(21)[20] == (0, 64, 128)


def test_voc_mini_is_as_its_presence_table_says(shared):
    root = shared / "data" / "voc-mini"
    if not root.is_dir():
        pytest.skip("voc-mini is not in the shared data")
    table = json.loads((shared / "data" / "voc-class-presence.json").read_text())
    full = table["train_aug"] | table["val"]
    training, validation = build_datasets(DataConfig(dataset="voc", root=str(root)))
    assert (len(training), len(validation)) == (1128, 316)
    assert not set(names(training)) & set(names(validation))
    presence = training.presence()
    # The copies are smaller, so a class of a few pixels may have gone; none may have come.
    assert all(found <= set(full[name]) for found, name in zip(presence, names(training), strict=True))
    assert sum(found == set(full[name]) for found, name in zip(presence, names(training), strict=True)) > 1110
    sample = validation[0]
    assert sample.image.shape[:2] == sample.semantic.shape


# --- ADE20K ----------------------------------------------------------------------------------------------------------


def test_ade20k_is_sorted_and_its_zero_is_void(tmp_path):
    folder = tmp_path / "ADEChallengeData2016"
    for part, image, labels in (
        ("training", "ADE_train_00000002", (150, 0)),
        ("training", "ADE_train_00000001", (1, 2)),
        ("validation", "ADE_val_00000001", (3,)),
    ):
        write_image(folder / "images" / part / f"{image}.jpg")
        write_mask(folder / "annotations" / part / f"{image}.png", *labels)
    training, validation = build_datasets(DataConfig(dataset="ade20k", root=str(tmp_path)))
    assert names(training) == ["ADE_train_00000001", "ADE_train_00000002"]
    assert training.presence() == [{1, 2}, {150}]
    assert validation.presence() == [{3}]
    assert not training.has_background
    assert len(set(CLASS_NAMES)) == 150
    assert (CLASS_NAMES[0], CLASS_NAMES[149]) == ("wall", "flag")
    write_mask(folder / "annotations" / "training" / "ADE_train_00000001.png", 151)
    with pytest.raises(UserError, match=r"ADE_train_00000001\.png holds the label 151"):
        training.presence()


def test_ade20k_class_names_are_the_challenges_in_its_order():
    # Of the 150 names, one per line, as they stand in the challenge's table.
    golden = "a997f1a4d99d3d2b9854eee95cdb00666c8832bd1c07149576120d73ed17b9fa"
    assert hashlib.sha256("\n".join(CLASS_NAMES).encode()).hexdigest() == golden


def test_a_folder_that_is_not_ade20k_says_how_to_get_it(tmp_path):
    with pytest.raises(UserError, match=r"holds no ADEChallengeData2016 .*data prepare ade20k --root"):
        ade20k(tmp_path, "train")


# --- COCO ------------------------------------------------------------------------------------------------------------


def test_panoptic_masks_give_classes_objects_crowds_and_void(tmp_path):
    for split in ("train", "val"):
        write_panoptic(tmp_path, split, ("a", "b"))
    dataset = coco(tmp_path, "train")
    assert dataset.class_names == ("person", "sky")
    assert not dataset.has_background
    sample = dataset[0]
    assert np.array_equal(sample.semantic, mask_of(1, 2, 255, 0))
    person = sample.instances[0, 0]
    assert person > 0
    assert np.array_equal(sample.instances, mask_of(1, 0, 0, 0) * person)
    assert dataset.presence() == [{1, 2}, {1, 2}]


def test_panoptic_problems_are_named(tmp_path):
    write_panoptic(tmp_path, "train", ("a",))
    dataset = coco(tmp_path, "train")
    path = tmp_path / "annotations" / "panoptic_train2017" / "a.png"
    Image.fromarray(np.full((*SIZE, 3), 9, dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match=r"a\.png holds the segment 592137, whose category"):
        dataset[0]
    Image.fromarray(np.zeros((4, 4, 3), dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match=r"a\.png is 4 x 4 but its image a\.jpg is 16 x 12"):
        dataset[0]
    write_mask(path, 1)
    with pytest.raises(UserError, match=r"a\.png has mode L but a panoptic mask is RGB"):
        dataset[0]
    path.unlink()
    with pytest.raises(UserError, match=r"a\.png does not exist"):
        dataset[0]
    with pytest.raises(UserError, match="holds no annotations/ of COCO"):
        coco(tmp_path / "train2017", "train")


def test_coco_instances_are_used_where_there_is_no_panoptic_json(tmp_path):
    square = {"category_id": 7, "segmentation": [[0, 0, 8, 0, 8, 12, 0, 12]]}
    write_instances(tmp_path / "annotations" / "instances_train2017.json", [square])
    write_image(tmp_path / "train2017" / "one.jpg")
    dataset = coco(tmp_path, "train")
    assert dataset.has_background
    assert np.array_equal(dataset[0].semantic, mask_of(2, 0))


# --- COCO's JSON for any data ----------------------------------------------------------------------------------------


@pytest.fixture
def drawn(tmp_path):
    """A function from annotations to the labels of one 16 x 12 image."""

    def draw(*annotations):
        write_image(tmp_path / "images" / "one.jpg")
        path = write_instances(tmp_path / "annotations" / "train.json", list(annotations))
        return coco_json(tmp_path, "train", str(path), str(path))[0]

    return draw


def test_small_objects_lie_on_large_ones_and_crowds_below(drawn):
    everything = [[0, 0, 16, 0, 16, 12, 0, 12]]
    sample = drawn(
        {"category_id": 7, "segmentation": [[0, 0, 4, 0, 4, 12, 0, 12]]},
        {"category_id": 3, "segmentation": [[0, 0, 8, 0, 8, 12, 0, 12]]},
        {"category_id": 7, "segmentation": everything, "iscrowd": 1},
    )
    assert np.array_equal(sample.semantic, mask_of(2, 1, 255, 255))
    assert len(np.unique(sample.instances)) == 3
    assert np.all(sample.instances[:, 8:] == 0)


def test_run_lengths_packed_or_not_and_several_polygons(drawn):
    from pycocotools import mask as run_length

    left = np.asfortranarray(mask_of(1, 0))
    packed = run_length.encode(left)
    packed["counts"] = packed["counts"].decode()
    plain = {"size": [12, 16], "counts": [0, 96, 96]}
    for shape in (packed, plain, [[0, 0, 4, 0, 4, 12, 0, 12], [4, 0, 8, 0, 8, 12, 4, 12], [1, 1, 2, 2]]):
        assert np.array_equal(drawn({"category_id": 3, "segmentation": shape}).semantic, mask_of(1, 0))
    assert not drawn({"category_id": 3, "segmentation": [[1, 1, 2, 2]]}).semantic.any()


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        ({"category_id": 4, "segmentation": []}, r"annotation 50 of one\.jpg has the category 4"),
        ({"category_id": 3, "bbox": [0, 0, 1, 1]}, r"annotation 50 of one\.jpg has no segmentation"),
        (
            {"category_id": 3, "segmentation": {"size": [4, 5], "counts": [20]}},
            "mask of 5 x 4 but the image is 16 x 12",
        ),
        ({"category_id": 3, "segmentation": [["a"] * 6]}, "cannot be read"),
        ({"category_id": 3, "segmentation": [], "image_id": 9}, "belongs to image 9, which is not in the list"),
    ],
)
def test_bad_annotations_are_named(drawn, annotation, message):
    with pytest.raises(UserError, match=message):
        drawn(annotation)


def test_usual_places_are_found_and_a_share_is_held_out(tmp_path):
    images = tuple(f"{number}.jpg" for number in range(40))
    for name in images:
        write_image(tmp_path / "train" / name)
    write_instances(tmp_path / "train" / "_annotations.coco.json", [], images)
    training, validation = build_datasets(DataConfig(dataset="coco_json", root=str(tmp_path), held_out=0.3))
    assert sorted(names(training) + names(validation), key=int) == [str(number) for number in range(40)]
    assert 4 <= len(validation) <= 20


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "has no list 'images'"),
        ('{"images": [], "annotations": [], "categories": []}', "0 categories"),
        ('{"images": [], "annotations": [], "categories": [{"name": "a"}]}', "needs an id and a name"),
        ('{"images": [{"id": 1}], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "an id and a file_name"),
        ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "has no images"),
        (
            '{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}',
            "two categories have the name a",
        ),
        (
            '{"images": [{"id": 1, "file_name": "x.jpg"}], "annotations": [], "categories": [{"id": 1, "name": "a"}]}',
            r"x\.jpg of .*found neither",
        ),
    ],
)
def test_bad_annotation_files_are_named(tmp_path, content, message):
    (tmp_path / "train.json").write_text(content)
    with pytest.raises(UserError, match=message):
        coco_json(tmp_path, "train", "train.json", "train.json")


def test_missing_annotation_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"name it with --data\.train_json"):
        coco_json(tmp_path, "train")
    with pytest.raises(UserError, match=r"data\.val_json: there is no file"):
        coco_json(tmp_path, "train", val_json="nothing.json")
