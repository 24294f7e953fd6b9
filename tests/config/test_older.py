"""What was written before a method owned its section still means the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from comastre.config.older import renamed, upgraded
from comastre.config.overrides import UsageError, find_field, split_overrides
from comastre.config.run import RunConfig
from comastre.config.sections import BackboneConfig
from comastre.config.settings import Difference, differences, load_config, validate
from comastre.errors import UserError
from comastre.section import merge

# What version 0.1 wrote to the config.yaml of a run of shapes-6-2, all of it.
OLD_DUMP: dict[str, Any] = {
    "method": "comastre",
    "init": None,
    "seed": 0,
    "model": {
        "size": "tiny",
        "backbone": {
            "name": "test_resnet", "weights": "none", "frozen_batch_norm": False, "frozen_stride": 0, "mean": None,
            "std": None,
        },
        "pixel_decoder": {"dim": 64, "layers": 0, "top_down": True, "heads": 4, "points": 4, "feedforward": 128},
        "mask_decoder": {"num_queries": 16, "layers": 3, "heads": 4, "feedforward": 128},
        "class_decoder": {"heads": 4, "feedforward": 128, "level": 8, "masked_attention": True, "task_queries": True},
        "inference": {"alpha": 0.5, "overlap": 0.8, "mask_threshold": 0.5},
    },
    "data": {
        "dataset": "shapes", "root": None, "coco_labels": "auto", "without": [], "without_removes": "objects",
        "train_json": None, "val_json": None, "held_out": 0.1, "crop": 64, "scale": [1.0, 1.0],
        "later_scale": [0.8, 1.8], "later_beside": 0.0, "flip": True, "colour_jitter": False, "train_images": 4000,
        "val_images": 300, "image_size": 64, "seed": 0, "masks": "semantic", "workers": 0,
    },
    "continual": {"setting": "6-2", "protocol": "overlapped", "class_order": None, "partition": None},
    "matching": {"bce": 5.0, "dice": 5.0, "objectness_cost": 2.0, "points": 256},
    "masks": {"points": 256, "oversample": 3.0, "importance": 0.75},
    "classification": {
        "loss": "focal", "gamma": 2.0, "negatives_for_new": False, "negatives_for_old": False, "across_tasks": True,
    },
    "distillation": {
        "score": True, "mask": True, "position": True, "unmatched_classes": True, "matched_classes": True,
        "auxiliary": True, "class_scores": "softmax", "beta": 2.0, "alpha": 0.8, "spare_labelled": False,
        "all_layers": False, "from_init": True,
    },
    "weights": {
        "objectness": 2.0, "no_object": 0.1, "mask_bce": 5.0, "mask_dice": 5.0, "classification": 4.0,
        "score_kd": 5.0, "mask_kd": 5.0, "position_kd": 5.0, "unmatched_class_kd": 5.0, "matched_class_kd": 5.0,
        "auxiliary": 0.1, "negatives_for_new": 1.0, "negatives_for_old": 1.0, "across_tasks": 2.0,
    },
    "training": {
        "iterations": 4000, "iterations_per_class": 250, "batch_size": 16, "accumulate": 1, "learning_rate": 0.003,
        "later_learning_rate": 0.003, "backbone_factor": 1.0, "later_backbone_factor": 0.1, "weight_decay": 0.05,
        "clip": 1.0, "warmup": 50, "power": 0.9, "freeze_batch_norm_later": True, "sync_batch_norm": True,
        "devices": 1, "nodes": 1, "accelerator": "auto", "strategy": "auto", "precision": "32-true", "log_every": 50,
        "checkpoint_every": 500,
    },
    "evaluation": {"batch_size": 50, "convention": "paper"},
}  # fmt: skip


def write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


# What the preset has otherwise today; a run of then goes on as it began.
AS_THEN: dict[str, Any] = {
    "model": {"inference": {"class_threshold": 0.0}},
    "classification": {"unlabelled_negatives": False},
    "distillation": {"class_scores": "softmax"},
    "weights": {"score_kd": 5.0, "mask_kd": 5.0, "position_kd": 5.0},
    "training": {"later_learning_rate": 3.0e-3},
}


def test_a_whole_old_run_is_the_same_run_today(tmp_path: Path) -> None:
    then = load_config("shapes-6-2", AS_THEN)
    assert load_config(write(tmp_path / "config.yaml", OLD_DUMP)) == then != load_config("shapes-6-2")
    assert validate(OLD_DUMP, "an old run") == RunConfig(**OLD_DUMP) == then


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name, value in tree.items():
        found += leaves(value, (*path, name)) if isinstance(value, dict) else [(*path, name)]
    return found


# Values that no field has in the dump; of choices, what is allowed.
OTHERS: dict[str, Any] = {
    "method": "joint", "init": "a", "model.size": "small", "model.backbone.name": "resnet18",
    "model.backbone.weights": "hub", "model.backbone.frozen_stride": 4, "model.backbone.mean": [0.1, 0.2, 0.3],
    "model.backbone.std": [0.1, 0.2, 0.3], "model.pixel_decoder.dim": 128, "model.pixel_decoder.heads": 8,
    "model.mask_decoder.heads": 8, "model.class_decoder.heads": 8, "model.class_decoder.level": 16,
    "data.dataset": "voc", "data.root": "a", "data.coco_labels": "panoptic", "data.without_removes": "images",
    "data.train_json": "a", "data.val_json": "a", "data.scale": [0.5, 3.0], "data.later_scale": None,
    "data.masks": "instance", "continual.setting": "6-1", "continual.protocol": "disjoint",
    "continual.class_order": [2, 1], "continual.partition": "a", "classification.loss": "cross_entropy",
    "distillation.class_scores": "sigmoid", "training.devices": 2, "training.nodes": 2, "training.accumulate": 2,
    "training.batch_size": 32, "training.accelerator": "cpu", "training.strategy": "ddp",
    "training.precision": "bf16-mixed", "evaluation.convention": "no_background",
}  # fmt: skip
# Of two truth values one choice of three was made.
ANOTHER_NAME = {
    "model.backbone.frozen_batch_norm": ("freeze_batch_norm", "always"),
    "training.freeze_batch_norm_later": ("freeze_batch_norm", "none"),
}
FIELDS = [path for path in leaves(OLD_DUMP) if path != ("data", "without")]


def other_value(path: tuple[str, ...], old: Any) -> Any:
    name = ".".join(path)
    if name in OTHERS:
        return OTHERS[name]
    return not old if isinstance(old, bool) else old + 1 if isinstance(old, int) else old / 2 + 0.3


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_every_old_field_still_acts_in_files_and_overrides(path: tuple[str, ...], tmp_path: Path) -> None:
    """Changed alone it changes exactly one field of today, whose last name is the old one, or one of `ANOTHER_NAME`."""
    changed = copy.deepcopy(OLD_DUMP)
    below = changed
    for section in path[:-1]:
        below = below[section]
    value = below[path[-1]] = other_value(path, below[path[-1]])
    config = validate(changed, "an old run")
    (found,) = differences(load_config("shapes-6-2", AS_THEN), config)
    name, expected = ANOTHER_NAME.get(".".join(path), (path[-1], tuple(value) if isinstance(value, list) else value))
    assert found.field.split(".")[-1] == name
    assert found.new == expected

    alone: Any = value
    for section in reversed(path):
        alone = {section: alone}
    # A size also fills in what belongs to it, which the dump has written out.
    if path != ("model", "size"):
        changes = merge(AS_THEN, alone)
        assert load_config("shapes-6-2", changes) == config
        assert load_config(write(tmp_path / "mine.yaml", {"base": "shapes-6-2", **changes})) == config
    # On the command line, by its full old name, it is today's field.
    assert find_field(".".join(path), config.method).name == found.field


def test_an_old_size_fills_in_what_belongs_to_it() -> None:
    config = load_config("shapes-6-2", {"model": {"size": "small"}})
    assert config == load_config("shapes-6-2", {"size": "small"})
    assert config.backbone.name == "tf_efficientnet_lite0"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--model.size", "small"], ["--size", "small"]),
        (["--model.backbone.weights=a"], ["--backbone.weights", "a"]),
        (["--model.pixel_decoder.dim", "96"], ["--comastre.pixel_decoder.dim", "96"]),
        (["--training.learning-rate", "1e-3"], ["--comastre.optimiser.learning_rate", "1e-3"]),
        (["--training.freeze_batch_norm_later", "off"], ["--backbone.freeze_batch_norm", "none"]),
        (["--freeze-batch-norm-later=on"], ["--backbone.freeze_batch_norm", "later"]),
        (["--model.backbone.frozen_batch_norm", "true"], ["--backbone.freeze_batch_norm", "always"]),
        (["--backbone.frozen_batch_norm=false"], ["--backbone.freeze_batch_norm", "later"]),
        (["--matching.points", "9"], ["--comastre.matching.points", "9"]),
    ],
)
def test_old_names_on_the_command_line_are_todays(old: list[str], new: list[str]) -> None:
    assert split_overrides(old, ()) == split_overrides(new, ())


def test_old_names_are_the_names_of_whatever_method_it_is() -> None:
    assert upgraded({"training": {"clip": 1, "nodes": 2}}, "other") == {
        "other": {"optimiser": {"clip": 1}},
        "training": {"nodes": 2},
    }
    assert renamed("training.clip") == "optimiser.clip"
    assert renamed("training.nodes") is None and renamed("data.root") is None and renamed("model") is None


def test_what_is_written_in_todays_layout_is_left_as_it_is() -> None:
    today = load_config("voc-15-5-cpu").model_dump(mode="json")
    assert upgraded(today, "comastre") == today


def test_where_old_and_new_names_meet_the_new_one_counts(tmp_path: Path) -> None:
    mixed = {"weights": {"auxiliary": 0.5, "mask_kd": 7.0}, "comastre": {"weights": {"auxiliary": 0.6}}}
    weights = load_config("voc-15-5", mixed).method_settings.weights
    assert (weights.auxiliary, weights.mask_kd) == (0.6, 7.0)
    # From file to file what lies on top counts, in whichever layout it is.
    first = write(tmp_path / "first.yaml", {"base": "shapes-6-2", "comastre": {"optimiser": {"clip": 3.0}}})
    second = write(tmp_path / "second.yaml", {"base": str(first), "training": {"clip": 4.0}})
    assert load_config(second).method_settings.optimiser.clip == 4.0
    assert differences(load_config(first), load_config(second)) == [Difference("comastre.optimiser.clip", 3.0, 4.0)]


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ({"frozen_batch_norm": True, "freeze_batch_norm_later": True}, "always"),
        ({"frozen_batch_norm": True, "freeze_batch_norm_later": False}, "always"),
        ({"frozen_batch_norm": False, "freeze_batch_norm_later": True}, "later"),
        ({"frozen_batch_norm": False, "freeze_batch_norm_later": False}, "none"),
        ({"frozen_batch_norm": False}, "later"),
        ({"freeze_batch_norm_later": False}, "none"),
    ],
)
def test_batch_norm_stands_still_when_it_did(older: dict[str, Any], today: str) -> None:
    """In files, and in bundles, which hold a backbone alone; of a ResNet-50, too, whose default is another one now."""
    for config in (load_config("voc-15-5", {"size": "r50", "backbone": older}).backbone, BackboneConfig(**older)):
        assert config.freeze_batch_norm == today and not config.freeze_batch_norm_weights


def test_what_an_older_file_says_of_batch_norm_lies_under_what_is_laid_over_it(tmp_path: Path) -> None:
    file = write(tmp_path / "mine.yaml", {"base": "voc-15-5-cpu", "backbone": {"frozen_batch_norm": False}})
    assert load_config(file).backbone.freeze_batch_norm == "later"
    assert load_config(file, {"backbone": {"freeze_batch_norm": "none"}}).backbone.freeze_batch_norm == "none"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"objectness": -1}}, r"comastre\.weights\.objectness is -1 but must be greater"),
        ({"training": {"clip": -1}}, r"comastre\.optimiser\.clip is -1 but must be greater"),
        ({"model": {"size": "huge"}}, "size is 'huge' but must be"),
        ({"model": {"pixel_decoder": {"dmi": 3}}}, r"no field comastre\.pixel_decoder\.dmi"),
        ({"model": 3}, "there is no field model"),
        (
            {"backbone": {"frozen_batch_norm": "sometimes"}},
            "backbone.freeze_batch_norm is 'sometimes' but must be 'none'",
        ),
        ({"matching": 3}, r"comastre\.matching is 3 but must be a section"),
        ({"training": {"learning_rat": 3}}, r"no field training\.learning_rat: did you mean .*learning_rate"),
    ],
)
def test_a_mistake_in_an_old_file_is_told_in_todays_names(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config("shapes-6-2", settings)


def test_names_that_never_were_are_refused() -> None:
    for name in ("model.iterations_of", "training.size", "model"):
        with pytest.raises(UsageError, match="there is no field"):
            find_field(name)
