"""The user's own folders: splits, names, lists of classes, and what can be wrong with them."""

import json

import numpy as np
import pytest

from comastre.config.run import DataConfig
from comastre.data.build import build_datasets
from comastre.data.sets.folder import folder, read_classes
from comastre.errors import UserError
from small_data import mask_of, write_folder, write_image, write_mask


def names(dataset):
    return [record.name for record in dataset.records]


def test_images_meet_their_masks_in_nested_folders(tmp_path):
    write_folder(tmp_path, {"left/a": (0, 1), "right/a": (2, 255)})
    write_image(tmp_path / "images" / "deep" / "er" / "b.PNG")
    write_mask(tmp_path / "masks" / "deep" / "er" / "b.png", 1)
    for each in ("train", "val"):
        (tmp_path / f"{each}.txt").write_text("images/left/a.jpg\nright/a\ndeep/er/b.PNG\n")
    dataset = folder(tmp_path, "train")
    assert names(dataset) == ["left/a", "right/a", "deep/er/b"]
    assert (dataset.name, dataset.class_names, len(dataset.colours)) == ("folder", ("cat", "dog"), 3)
    sample = dataset[1]
    assert np.array_equal(sample.semantic, mask_of(2, 255))
    assert (sample.image.shape, sample.instances, sample.image_id) == ((12, 16, 3), None, "right/a")
    assert dataset.presence() == [{1}, {2}, {1}]


@pytest.mark.parametrize(
    ("images", "masks", "val"),
    [("images/{}", "masks/{}", "val"), ("{}/images", "{}/masks", "valid"), ("images/{}", "masks/{}", "validation")],
)
def test_split_folders_are_found(tmp_path, images, masks, val):
    for name, split in (("a", "train"), ("b", "train"), ("c", val)):
        write_image(tmp_path / images.format(split) / f"{name}.jpg")
        write_mask(tmp_path / masks.format(split) / f"{name}.png", 1)
    (tmp_path / "classes.txt").write_text("cat\n")
    training, validation = build_datasets(DataConfig(dataset="folder", root=str(tmp_path)))
    assert (names(training), names(validation)) == (["a", "b"], ["c"])


@pytest.mark.parametrize("place", ["", "train/"])
def test_without_a_split_a_fixed_share_is_held_out(tmp_path, place):
    masks = {f"{number:03d}": (1,) for number in range(60)}
    for name in masks:
        write_image(tmp_path / "images" / place / f"{name}.jpg")
        write_mask(tmp_path / "masks" / place / f"{name}.png", 1)
    (tmp_path / "classes.txt").write_text("cat\n")
    training, validation = folder(tmp_path, "train", 0.3), folder(tmp_path, "val", 0.3)
    assert sorted(names(training) + names(validation)) == sorted(masks)
    assert 9 <= len(validation) <= 27
    held = set(names(validation))
    write_image(tmp_path / "images" / place / "new.jpg")
    write_mask(tmp_path / "masks" / place / "new.png", 1)
    assert held <= set(names(folder(tmp_path, "val", 0.3))) <= held | {"new"}


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("classes.txt", "cat\n\n dog \n", (("cat", "dog"), True)),
        ("classes.txt", "Background\ncat\n", (("cat",), True)),
        ("classes.txt", "void\ncat\n", (("cat",), False)),
        ("classes.txt", "_background_\ncat\n", (("cat",), True)),
        ("classes.json", '["cat", "dog"]', (("cat", "dog"), True)),
        ("classes.json", '{"classes": ["background", "cat"]}', (("cat",), True)),
        ("classes.json", '{"2": "dog", "1": "cat"}', (("cat", "dog"), True)),
        ("classes.json", '[{"id": 0, "name": "void"}, {"id": 1, "name": "cat"}]', (("cat",), False)),
        ("classes.json", '{"1": "cat", "255": "border"}', (("cat",), True)),
    ],
)
def test_lists_of_classes(tmp_path, file, content, expected):
    (tmp_path / file).write_text(content)
    assert read_classes(tmp_path) == expected


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("other.txt", "", "neither classes.txt nor classes.json"),
        ("classes.txt", "cat\ndog\ncat\n", "classes.txt names the class cat twice"),
        ("classes.txt", "\n", "classes.txt is empty"),
        ("classes.txt", "background\n", "names 0 classes"),
        ("classes.json", "[1]", "must be a list of names"),
        ("classes.json", "{", "cannot be read as JSON"),
        ("classes.json", '{"1": "cat", "3": "dog"}', r"without gaps, not \[0, 1, 3\]"),
        ("classes.json", '{"0": "cat", "1": "dog"}', "gives id 0 to 'cat', but 0 is what has no class"),
        ("classes.json", json.dumps([f"c{number}" for number in range(255)]), "255 classes but 1 to 254"),
    ],
)
def test_bad_lists_of_classes_are_named(tmp_path, file, content, message):
    (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=message):
        read_classes(tmp_path)


def second_image(root):
    write_image(root / "images" / "a.bmp")


def lonely_list(root):
    (root / "train.txt").write_text("a\n")


def wrong_list(root):
    (root / "train.txt").write_text("a\nzebra\n")
    (root / "val.txt").write_text("b\n")


def name_twice(root):
    (root / "train.txt").write_text("a\na.jpg\n")
    (root / "val.txt").write_text("b\n")


def empty_list(root):
    (root / "train.txt").write_text("\n")
    (root / "val.txt").write_text("b\n")


def no_images(root):
    for image in (root / "images").iterdir():
        image.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (second_image, r"a\.bmp and .*a\.jpg would share the mask a\.png"),
        (lonely_list, r"train\.txt but a split needs both"),
        (wrong_list, r"train\.txt lists zebra, which is not in images/"),
        (name_twice, "a is in the train split of folder twice"),
        (empty_list, r"train\.txt is empty"),
        (no_images, "images holds no images"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(tmp_path, damage, message):
    write_folder(tmp_path, {"a": (1,), "b": (2,)})
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        folder(tmp_path, "train", 0.0001)


def test_an_empty_split_is_refused(tmp_path):
    write_folder(tmp_path, {"a": (1,)})
    with pytest.raises(UserError, match="The val split of folder has no images in"):
        folder(tmp_path, "val", 0.0001)


def test_roots_that_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"folder needs --data\.root FOLDER"):
        folder(None, "train")
    with pytest.raises(UserError, match="is not a folder"):
        folder(tmp_path / "nowhere", "train")
    from pathlib import Path

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(UserError, match="cannot be read: Permission denied"):
        folder(tmp_path, "train")


def test_unknown_datasets_are_refused():
    listed = "there is no dataset 'cityscapes': the datasets are shapes, shapes_other, ade20k"
    with pytest.raises(UserError, match=listed):
        build_datasets(DataConfig(dataset="cityscapes"))
    with pytest.raises(UserError, match="there is no dataset 'VCO': did you mean voc"):
        build_datasets(DataConfig(dataset="VCO"))


def test_splits_must_agree_on_the_classes(tmp_path):
    from small_data import write_instances

    for split, classes in (("train", ["car", "dog"]), ("val", ["car", "cat"])):
        path = write_instances(tmp_path / "annotations" / f"{split}.json", [])
        content = json.loads(path.read_text())
        content["categories"] = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
        path.write_text(json.dumps(content))
    write_image(tmp_path / "images" / "one.jpg")
    with pytest.raises(UserError, match="different classes"):
        build_datasets(DataConfig(dataset="coco_json", root=str(tmp_path)))


def test_missing_files_are_named_before_anything_is_read(tmp_path):
    for split in ("train", "val"):
        for name in ("a", "b"):
            write_image(tmp_path / "images" / split / f"{name}.jpg")
            write_mask(tmp_path / "masks" / split / f"{name}.png", 1)
    (tmp_path / "classes.txt").write_text("cat\n")
    config = DataConfig(dataset="folder", root=str(tmp_path))
    build_datasets(config)
    for name in ("a", "b"):
        (tmp_path / "masks" / "val" / f"{name}.png").unlink()
    with pytest.raises(UserError, match=r"labels of a in the val split .*a\.png, which does not exist \(1 more are"):
        build_datasets(config)
    training, validation = build_datasets(config, require_files=False)
    assert training.presence() == [{1}, {1}]
    with pytest.raises(UserError, match=r"a\.png does not exist"):
        validation.presence()
