"""Classes taken out of COCO: their objects are gone, or the images that show one; the others keep their place."""

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from comastre.config.run import DataConfig
from comastre.data.build import build_datasets
from comastre.data.dataset import IGNORE
from comastre.data.sets.coco import coco
from comastre.data.sets.removal import NOTHING, VOC_IN_COCO, Removal
from comastre.data.sets.voc import CLASS_NAMES
from comastre.errors import UserError
from small_data import SIZE, write_image, write_panoptic

HEIGHT, WIDTH = SIZE
# A zebra over the whole image, with a dog in its left half; an image with a dog alone; one with a kite.
IMAGES = {"zebra-and-dog": ((24, 0, WIDTH), (18, 0, WIDTH // 2)), "dog": ((18, 0, 4),), "kite": ((38, 4, 8),)}
NAMES = {18: "dog", 24: "zebra", 38: "kite", 72: "tv"}


def write_coco(root: Path) -> Path:
    for split in ("train", "val"):
        annotations = []
        for image, (name, objects) in enumerate(IMAGES.items()):
            write_image(root / f"{split}2017" / f"{name}.jpg")
            for category, left, right in objects:
                outline = [left, 0, right, 0, right, HEIGHT, left, HEIGHT]
                annotations.append(
                    {"id": len(annotations), "image_id": image, "category_id": category, "segmentation": [outline]}
                )
        content = {
            "images": [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate(IMAGES)],
            "annotations": annotations,
            "categories": [{"id": number, "name": name} for number, name in NAMES.items()],
        }
        path = root / "annotations" / f"instances_{split}2017.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return root


def test_every_voc_class_has_a_name_in_coco():
    assert tuple(VOC_IN_COCO) == CLASS_NAMES


def test_objects_of_removed_classes_become_background_and_hide_nothing(tmp_path: Path):
    dataset = coco(write_coco(tmp_path), "train", "instances", Removal(("voc",)))
    assert (dataset.name, dataset.class_names) == ("coco-without-voc", ("zebra", "kite"))
    zebra, dog, kite = (dataset[index] for index in range(3))
    assert (zebra.semantic == 1).all()  # also where the dog stood
    assert (dog.semantic == 0).all()
    assert np.unique(kite.semantic).tolist() == [0, 2]
    assert dataset.presence() == [{1}, set(), {2}]


def test_images_of_removed_classes_can_go_as_a_whole(tmp_path: Path):
    dataset = coco(write_coco(tmp_path), "train", "instances", Removal(("voc",), whole_images=True))
    assert [record.name for record in dataset.records] == ["kite"]
    assert dataset.presence() == [{2}]  # the labels of its own place in the file


def test_the_index_of_other_classes_is_not_taken_for_ones_own(tmp_path: Path):
    write_coco(tmp_path)
    without_zebra = coco(tmp_path, "train", "instances", Removal(("zebra",)))
    without_kite = coco(tmp_path, "train", "instances", Removal(("kite",)))
    assert without_zebra.presence() == [{1}, {1}, {2}]
    assert without_kite.presence() == [{1, 2}, {1}, set()]


def test_removed_things_of_panoptic_masks_are_void(tmp_path: Path):
    write_panoptic(tmp_path, "train", ("one",))
    sample = coco(tmp_path, "train", "panoptic", Removal(("voc",)))[0]
    # Four stripes: a person, sky, a crowd of persons, and void.
    assert [int(sample.semantic[0, column]) for column in (0, 5, 9, 15)] == [0, 1, 0, 0]
    assert sample.instances is not None
    assert not sample.instances.any()
    kept = coco(tmp_path, "train", "panoptic", NOTHING)[0]
    assert [int(kept.semantic[0, column]) for column in (0, 5, 9, 15)] == [1, 2, IGNORE, 0]


def test_the_configuration_takes_classes_out_of_both_splits(tmp_path: Path):
    write_coco(tmp_path)
    config = DataConfig(dataset="coco", root=str(tmp_path), without="voc")  # type: ignore[arg-type]
    assert config.without == ("voc",)
    training, validation = build_datasets(config)
    assert training.class_names == validation.class_names == ("zebra", "kite")


@pytest.mark.parametrize(
    ("without", "message"),
    [
        (("cat", "zebra"), "data.without names 'cat', which is no class of .*: its classes are dog, kite, tv, zebra"),
        (("voc", "zebra", "kite"), "data.without takes away every class"),
    ],
)
def test_removals_that_cannot_be_are_named(tmp_path: Path, without: tuple[str, ...], message: str):
    with pytest.raises(UserError, match=message):
        coco(write_coco(tmp_path), "train", "instances", Removal(without))


def test_other_datasets_have_nothing_to_take_out():
    with pytest.raises(ValidationError, match="coco and coco_json only, but dataset is voc"):
        DataConfig(dataset="voc", without=("voc",))
