"""`check_dataset` passes all datasets of ours, and finds every broken promise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tool_exports

from comastre.config.datasets import DatasetSpec, find_dataset, installed
from comastre.config.run import DataConfig
from comastre.data.dataset import Sample
from comastre.data.testing import check_dataset
from comastre.errors import UserError
from small_data import mask_of, write_folder, write_image, write_instances, write_list, write_mask, write_panoptic
from small_data import write_voc as write_voc_folder

# --- ours ------------------------------------------------------------------------------------------------------------


def write_shapes(root: Path) -> None:
    """Nothing: they are drawn."""


def write_voc(root: Path) -> None:
    write_voc_folder(root, {"a": (0, 1, 255), "b": (0, 2)}, {"c": (20, 0)})


def write_ade20k(root: Path) -> None:
    for part in ("training", "validation"):
        for name in ("a", "b"):
            write_image(root / "images" / part / f"{name}.jpg")
            write_mask(root / "annotations" / part / f"{name}.png", 0, 7, 150)


def write_coco(root: Path) -> None:
    for split in ("train", "val"):
        write_panoptic(root, split, ("a", "b"))


def write_own_folder(root: Path) -> None:
    write_folder(root, {f"image{number}": (0, 1 + number % 2, 255) for number in range(20)})


def write_coco_json(root: Path) -> None:
    images = tuple(f"{number}.jpg" for number in range(20))
    for name in images:
        write_image(root / "images" / name)
    write_instances(root / "train.json", [{"category_id": 3, "segmentation": [[0, 0, 8, 0, 8, 8, 0, 8]]}], images)


WRITERS: dict[str, Callable[[Path], None]] = {
    "shapes": write_shapes,
    "shapes_other": write_shapes,
    "voc": write_voc,
    "ade20k": write_ade20k,
    "coco": write_coco,
    "folder": write_own_folder,
    "coco_json": write_coco_json,
    **{name: tool_exports.WRITERS[name] for name in ("yolo", "label_studio", "cvat", "voc_pairs")},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "shapes": {"train_images": 4, "val_images": 3},
    "shapes_other": {"train_images": 4, "val_images": 3},
    "coco_json": {"held_out": 0.3},
    **{name: {"held_out": 0.3} for name in ("yolo", "label_studio", "cvat", "voc_pairs")},
}
OURS = sorted(name for name, package in installed().packages.items() if package == "comastre")


@pytest.mark.parametrize("name", OURS)
def test_our_datasets_keep_their_promises(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path)
    root = {"root": str(tmp_path)} if find_dataset(name).needs_root else {}
    check_dataset(find_dataset(name), DataConfig(dataset=name, **root, **SETTINGS.get(name, {})))


def test_data_that_says_itself_what_is_for_validation_keeps_its_promises(tmp_path: Path) -> None:
    root = write_folder(tmp_path, {"a": (0, 1), "b": (0, 2), "c": (1, 2)})
    write_list(root / "train.txt", "a", "b")
    write_list(root / "val.txt", "c")
    check_dataset(find_dataset("folder"), DataConfig(dataset="folder", root=str(root)))


def test_coco_without_some_classes_keeps_its_promises(tmp_path: Path) -> None:
    write_coco(tmp_path)
    check_dataset(find_dataset("coco"), DataConfig(dataset="coco", root=str(tmp_path), without=("sky",)))


# --- broken ones -----------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """A dataset that keeps every promise, until a test replaces one of its fields."""

    split: str
    name: str = "made"
    class_names: Any = ("cat", "dog")
    colours: Any = ((0, 0, 0), (1, 2, 3), (4, 5, 6))
    has_background: Any = True
    things: Any = frozenset({1})
    masks: Any = ((0, 1), (2, 255), (1, 2))
    change: Callable[[Sample, int], Any] | None = None
    known: Any = (frozenset({1}), frozenset({2}), frozenset({1, 2}))
    extra: Any = None

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int) -> Sample:
        semantic = mask_of(*self.masks[index])
        image = np.full((*semantic.shape, 3), index, np.uint8)
        sample = Sample(image, semantic, semantic.astype(np.int32), f"{self.split}-{index}")
        return sample if self.change is None else self.change(sample, index)

    def presence(self) -> Any:
        return list(self.known)


SPEC = DatasetSpec(
    name="made", title="Made", about="made up", implementation="test_dataset_promises:build", needs_root=False
)
CONFIG = DataConfig(dataset="made")
changes: dict[str, Any] = {}


def build(config: DataConfig, split: str) -> Made:
    only = changes.get("only")
    if only is not None and split != only:
        return Made(split)
    return Made(split, **{name: value for name, value in changes.items() if name != "only"})


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    yield
    changes.clear()


def refused(sentence: str, spec: DatasetSpec = SPEC, config: DataConfig = CONFIG, **changed: Any) -> None:
    changes.update(changed)
    with pytest.raises(AssertionError, match=sentence):
        check_dataset(spec, config)


def test_the_dataset_that_is_broken_below_is_sound() -> None:
    check_dataset(SPEC, CONFIG)


def test_classes() -> None:
    refused(r"tuple of 1 to 254 class_names, not \['cat', 'dog'\]", class_names=["cat", "dog"])
    refused("tuple of 1 to 254 class_names", class_names=())
    refused("a class without a name", class_names=("cat", ""))
    refused(r"two classes called \['cat'\]", class_names=("cat", "cat"))
    refused("calls itself thing, but a report looks for made", name="thing", class_names=("cat", "dog"))


def test_colours() -> None:
    refused("2 colours for background and 2 classes", colours=((0, 0, 0), (1, 1, 1)))
    refused("no three whole numbers", colours=((0, 0, 0), (1, 1, 1), (0.5, 1, 1)))
    refused("no three whole numbers", colours=((0, 0, 0), (1, 1, 1), (256, 1, 1)))


def test_things_and_background() -> None:
    refused(r"things must be a frozenset of ids 1\.\.2", things=frozenset({3}))
    refused("things must be a frozenset", things=frozenset({0}))
    refused("things must be a frozenset", things={1})
    refused("has_background must be a bool", things=frozenset(), has_background="yes")


def test_splits_share_their_classes() -> None:
    refused("training has class_names .* but validation .*cow", only="val", class_names=("cat", "cow"))
    changes.clear()
    refused("training has things", only="train", things=frozenset())


BAD_SAMPLES: dict[str, Callable[[Sample, int], Any]] = {
    "gives tuple instead of Sample": lambda sample, index: (sample.image, sample.semantic),
    r"the image must be \(H, W, 3\) uint8, not \(12, 16\) uint8": lambda s, i: replace(s, image=s.semantic),
    r"the image must be \(H, W, 3\) uint8, not .* float64": lambda s, i: replace(s, image=s.image / 255),
    r"label map must be \(12, 16\) uint8 like its image, not .* int64": lambda s, i: replace(
        s, semantic=s.semantic.astype(np.int64)
    ),
    r"label map must be .* not \(12, 8\) uint8": lambda s, i: replace(s, semantic=s.semantic[:, ::2]),
    r"has the ids \[3\] but classes are 1\.\.2": lambda s, i: replace(s, semantic=np.full_like(s.semantic, 3)),
    "object numbers must be .* int32, not .* uint8": lambda s, i: replace(s, instances=s.semantic),
    "object number below 0": lambda s, i: replace(s, instances=s.instances - 1),
    "an image has the id 7": lambda s, i: replace(s, image_id=7),
    r"two images called \['one'\]": lambda s, i: replace(s, image_id="one"),
}


@pytest.mark.parametrize("sentence", BAD_SAMPLES)
def test_samples(sentence: str) -> None:
    refused(sentence, change=BAD_SAMPLES[sentence])


def test_presence() -> None:
    right = Made("train").known
    refused("presence.. must be a list with a set for each of the 3 images", known=right[:2])
    refused(r"presence.. says frozenset\(\{1, 255\}\)", known=(frozenset({1, 255}), *right[1:]))
    refused(r"presence.. says \{1\}", known=({1}, *right[1:]))
    refused("has no image", masks=(), known=())


calls = itertools.count()


def flicker(sample: Sample, index: int) -> Sample:
    return replace(sample, image=sample.image + np.uint8(next(calls) % 7))


def test_the_same_answer_every_time() -> None:
    refused("is another image or mask when read a second time", change=flicker)


def test_opening_again_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = itertools.count()

    def shuffled(config: DataConfig, split: str) -> Made:
        turn = next(opened) % 3
        masks, known = Made(split).masks, Made(split).known
        return Made(split, masks=masks[turn:] + masks[:turn], known=known[turn:] + known[:turn])

    monkeypatch.setattr("test_dataset_promises.build", shuffled)
    refused("is another image or mask when opened a second time")


class Forgetful(Made):
    """Comes back from a pickle with its images turned round, or without one."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, masks=state["masks"][::-1] if state["extra"] is None else state["masks"][1:])


def test_loader_processes_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    refused("cannot be pickled for loader processes", extra=lambda: None)
    changes.clear()
    monkeypatch.setattr("test_dataset_promises.build", lambda config, split: Forgetful(split))
    refused("is another image or mask when pickled and read back")
    monkeypatch.setattr("test_dataset_promises.build", lambda config, split: Forgetful(split, extra="fewer"))
    refused("pickled and read back, has 2 images instead of 3")


def test_presence_is_the_same_when_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = itertools.count()
    right = Made("train").known
    made = lambda config, split: Made(split, known=right if next(opened) != 2 else (*right[:2], frozenset()))  # noqa: E731
    monkeypatch.setattr("test_dataset_promises.build", made)
    # The third to be opened is the second copy of the training set.
    refused("presence.. differs when opened a second time")


def test_specs() -> None:
    refused("the configuration is for shapes", config=DataConfig(dataset="shapes"))
    refused("title and about must say something", replace(SPEC, title=""))
    refused("about must be one line", replace(SPEC, about="two\nlines"))
    refused("'colour' is no field of the data section", replace(SPEC, validation_fields=("options.year", "colour")))
    refused("'sise' is no field of the data section", replace(SPEC, fields=("sise",)))
    refused("there is no preset 'made-1-1'", replace(SPEC, preset="made-1-1"))
    refused("it says that it needs a root, but opens without one", replace(SPEC, needs_root=True))


def test_a_missing_root_is_a_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: DataConfig, split: str) -> Made:
        if config.root is None:
            raise TypeError("Path(None)")
        return Made(split)

    monkeypatch.setattr("test_dataset_promises.build", fail)
    refused("must raise a UserError, not TypeError", replace(SPEC, needs_root=True))

    def say(config: DataConfig, split: str) -> Made:
        if config.root is None:
            raise UserError("give a root")
        return Made(split)

    monkeypatch.setattr("test_dataset_promises.build", say)
    check_dataset(replace(SPEC, needs_root=True), DataConfig(dataset="made", root="."))


def without_validation(config: DataConfig) -> bool:
    return False


def test_all_images_are_those_of_both_splits() -> None:
    undivided = replace(SPEC, has_validation="test_dataset_promises:without_validation")
    refused('the split "all" does not hold the images of training and validation', undivided)
