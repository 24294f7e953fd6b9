"""Which classes have objects, and that this survives relabelling, removal and joining."""

from __future__ import annotations

from pathlib import Path

from comastre.data.relabel import relabel
from comastre.data.sets.ade20k import ade20k
from comastre.data.sets.coco import coco
from comastre.data.sets.coco_json import coco_json
from comastre.data.sets.folder import folder
from comastre.data.sets.removal import Removal
from comastre.data.sets.shapes import Shapes
from comastre.data.sets.voc import voc
from comastre.data.sources import Joined
from small_data import write_folder, write_image, write_instances, write_mask, write_panoptic, write_voc

BOX = {"category_id": 3, "segmentation": [[0, 0, 8, 0, 8, 8, 0, 8]]}


def test_every_class_of_objects_is_a_thing(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "own", {"a": (0, 1), "b": (0, 2)})
    write_voc(tmp_path / "voc", {"a": (0, 1)}, {"b": (0, 1)})
    write_image(tmp_path / "coco" / "one.jpg")
    write_instances(tmp_path / "coco" / "train.json", [BOX])
    datasets = (
        Shapes("train", num_images=1),
        voc(tmp_path / "voc", "train"),
        folder(own, "train", 0.001),
        coco_json(tmp_path / "coco", "train", held_out=0.001),
    )
    for dataset in datasets:
        assert dataset.things == set(range(1, len(dataset.class_names) + 1))


def test_masks_without_objects_have_no_things(tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "training" / "a.jpg")
    write_mask(tmp_path / "annotations" / "training" / "a.png", 1)
    assert ade20k(tmp_path, "train").things == frozenset()


def test_coco_says_what_is_stuff_also_after_a_removal(tmp_path: Path) -> None:
    write_panoptic(tmp_path, "train", ("a",))
    whole = coco(tmp_path, "train")
    assert (whole.class_names, whole.things) == (("person", "sky"), {1})
    assert coco(tmp_path, "train", removal=Removal(("person",))).things == frozenset()
    assert coco(tmp_path, "train", removal=Removal(("sky",))).things == {1}


def test_relabelled_and_joined_data_carries_things_along(tmp_path: Path) -> None:
    write_panoptic(tmp_path, "train", ("a",))
    dataset = coco(tmp_path, "train")  # person is a thing, sky is stuff
    names, colours = ("sky", "car", "person"), tuple((i, i, i) for i in range(4))
    assert relabel(dataset, (3, 1), names, colours).things == {3}
    assert relabel(dataset, (0, 1), names, colours).things == frozenset()
    shapes = Shapes("train", num_images=1)
    shifted = relabel(shapes, range(2, 12), ("old", *shapes.class_names), ((0, 0, 0),) * 12)
    assert shifted.things == set(range(2, 12))
    assert Joined((dataset, dataset)).things == {1}
