"""A proof that a dataset keeps the promises that everything else builds on; for the tests of its own package.

def test_my_dataset(tmp_path):
    write_some_images(tmp_path)
    check_dataset(SPEC, DataConfig(dataset="mine", root=str(tmp_path)))
"""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np

from comastre.config.datasets import DatasetSpec
from comastre.config.run import DataConfig
from comastre.config.settings import preset_names
from comastre.data.dataset import IGNORE, Sample, SegmentationDataset
from comastre.data.files import classes_in
from comastre.errors import UserError

MOST = 50


def check_dataset(spec: DatasetSpec, config: DataConfig, most: int = MOST) -> None:
    """Raise AssertionError, with a sentence, for the first promise that the dataset of `spec` breaks.

    `config` names small data; of each split the first `most` images are read, several times.
    """
    _check_spec(spec, config)
    splits = {"train": spec.open(config, "train"), "val": spec.open(config, "val")}
    for split, dataset in splits.items():
        where = f"{spec.name} ({split})"
        _check_classes(dataset, spec, where)
        _check_images(dataset, spec.open(config, split), most, where)
    training, validation = splits.values()
    for what in ("name", "class_names", "colours", "has_background", "things"):
        one, other = getattr(training, what), getattr(validation, what)
        _require(one == other, f"{spec.name}: training has {what} {one} but validation {other}")
    if not spec.validates(config):
        whole = spec.open(config, "all")
        ids = [_ids(dataset, len(dataset)) for dataset in (whole, training, validation)]
        same = sorted(ids[0]) == sorted(ids[1] + ids[2])
        _require(same, f'{spec.name}: the split "all" does not hold the images of training and validation')


def _require(kept: bool, sentence: str) -> None:
    if not kept:  # not `assert`, which Python leaves out when it optimises
        raise AssertionError(sentence)


def _check_spec(spec: DatasetSpec, config: DataConfig) -> None:
    name = spec.name
    _require(config.dataset == name, f"{name}: the configuration is for {config.dataset}")
    _require(bool(spec.title and spec.about), f"{name}: title and about must say something")
    _require("\n" not in spec.about, f"{name}: about must be one line")
    known = (*DataConfig.model_fields, *(each for each in spec.validation_fields if each.startswith("options.")))
    for field in (*spec.fields, *spec.validation_fields):
        _require(field in known, f"{name}: '{field}' is no field of the data section")
    _require(spec.preset is None or spec.preset in preset_names(), f"{name}: there is no preset '{spec.preset}'")
    if spec.needs_root:
        try:
            spec.open(config.model_copy(update={"root": None}), "train")
        except UserError:
            pass
        except Exception as error:
            raise AssertionError(f"{name}: without a root it must raise a UserError, not {error!r}") from error
        else:
            raise AssertionError(f"{name}: it says that it needs a root, but opens without one")


def _check_classes(dataset: SegmentationDataset, spec: DatasetSpec, where: str) -> None:
    names, colours = dataset.class_names, dataset.colours
    ours = dataset.name == spec.name or dataset.name.startswith(f"{spec.name}-")
    _require(ours, f"{where} calls itself {dataset.name}, but a report looks for {spec.name}")
    _require(
        isinstance(names, tuple) and 1 <= len(names) < IGNORE,
        f"{where} must have a tuple of 1 to {IGNORE - 1} class_names, not {names!r}",
    )
    _require(all(isinstance(name, str) and name for name in names), f"{where} has a class without a name: {names}")
    twice = [name for name, times in Counter(names).items() if times > 1]
    _require(not twice, f"{where} has two classes called {twice[:1]}")
    _require(
        len(colours) == len(names) + 1,
        f"{where} has {len(colours)} colours for background and {len(names)} classes",
    )
    valid = [
        len(each) == 3 and all(isinstance(channel, int) and 0 <= channel <= 255 for channel in each) for each in colours
    ]
    _require(all(valid), f"{where} has a colour that is no three whole numbers of 0..255")
    _require(isinstance(dataset.has_background, bool), f"{where}: has_background must be a bool")
    possible = range(1, len(names) + 1)
    _require(
        isinstance(dataset.things, frozenset) and all(label in possible for label in dataset.things),
        f"{where}: things must be a frozenset of ids 1..{len(names)}, not {dataset.things}",
    )


def _check_images(dataset: SegmentationDataset, again: SegmentationDataset, most: int, where: str) -> None:
    _require(len(dataset) > 0, f"{where} has no image")
    number = min(len(dataset), most)
    samples = [dataset[index] for index in range(number)]
    for sample in samples:
        _check_sample(sample, len(dataset.class_names), where)
    twice = [each for each, times in Counter(sample.image_id for sample in samples).items() if times > 1]
    _require(not twice, f"{where} has two images called {twice[:1]}")
    presence = dataset.presence()
    _require(
        isinstance(presence, list) and len(presence) == len(dataset),
        f"{where}: presence() must be a list with a set for each of the {len(dataset)} images",
    )
    for sample, classes in zip(samples, presence, strict=False):
        shown = classes_in(sample.semantic)
        _require(
            isinstance(classes, frozenset) and classes == shown,
            f"{where}: presence() says {classes!r} of {sample.image_id}, which shows {shown}",
        )
    try:
        copy: SegmentationDataset = pickle.loads(pickle.dumps(dataset))
    except Exception as error:
        raise AssertionError(f"{where} cannot be pickled for loader processes: {error}") from error
    # Backwards, so that a dataset whose answers depend on what was asked before is found out.
    others = {"read a second time": dataset, "opened a second time": again, "pickled and read back": copy}
    for how, other in others.items():
        _require(len(other) == len(dataset), f"{where}, {how}, has {len(other)} images instead of {len(dataset)}")
        for index in reversed(range(number)):
            same = _equal(samples[index], other[index])
            _require(same, f"{where}: {samples[index].image_id} is another image or mask when {how}")
    _require(again.presence() == presence, f"{where}: presence() differs when opened a second time")


def _check_sample(sample: Sample, num_classes: int, where: str) -> None:
    _require(isinstance(sample, Sample), f"{where} gives {type(sample).__name__} instead of Sample")
    _require(
        isinstance(sample.image_id, str) and bool(sample.image_id), f"{where}: an image has the id {sample.image_id!r}"
    )
    image, semantic, instances = sample.image, sample.semantic, sample.instances
    of = f"{where}, {sample.image_id}"
    _require(
        isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3,
        f"{of}: the image must be (H, W, 3) uint8, not {_kind(image)}",
    )
    _require(
        isinstance(semantic, np.ndarray) and semantic.dtype == np.uint8 and semantic.shape == image.shape[:2],
        f"{of}: the label map must be {image.shape[:2]} uint8 like its image, not {_kind(semantic)}",
    )
    wrong = [label for label in np.unique(semantic).tolist() if num_classes < label < IGNORE]
    _require(not wrong, f"{of} has the ids {wrong[:5]} but classes are 1..{num_classes}, and {IGNORE} is ignored")
    if instances is not None:
        _require(
            isinstance(instances, np.ndarray) and instances.dtype == np.int32 and instances.shape == semantic.shape,
            f"{of}: object numbers must be {semantic.shape} int32, not {_kind(instances)}",
        )
        _require(bool((instances >= 0).all()), f"{of} has an object number below 0")


def _equal(one: Sample, other: Sample) -> bool:
    return (
        one.image_id == other.image_id
        and np.array_equal(one.image, other.image)
        and np.array_equal(one.semantic, other.semantic)
        and (one.instances is None) == (other.instances is None)
        and (one.instances is None or other.instances is None or np.array_equal(one.instances, other.instances))
    )


def _ids(dataset: SegmentationDataset, number: int) -> list[str]:
    return [dataset[index].image_id for index in range(number)]


def _kind(value: object) -> str:
    return f"{value.shape} {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
