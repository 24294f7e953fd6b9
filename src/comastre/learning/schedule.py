"""How to train on a few dozen images: what the model was trained with, with amounts that fit the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from comastre.config.older import upgraded
from comastre.config.run import RunConfig
from comastre.config.settings import validate
from comastre.section import merge

# What each of these numbers gave when it was tried: docs/experiments.md, Learning a class from few images.
EPOCHS = 150
"""Passes over the images: with half as many, few images are not learned yet."""
FEWEST, FIRST_FEWEST = 100, 500
"""Iterations, however few images there are, in a later step and in a first one, which learns everything."""
ENOUGH = 600
"""Iterations per new class, however many images there are, unless the model was trained for longer."""
LONGER = 2
"""Times as many iterations, at most, so that images without a class do not take the place of those with one."""
FEW_IMAGES = 500
"""Fewer are varied in colour and size, which keeps much more of the old classes."""
VARIED_SCALE = (0.8, 1.25)
FEW_IMAGES_RATE = 1 / 3
"""Of the first step's learning rate, at most this with few images, which both learn and keep more at a lower rate."""
WITHOUT_NEW = 0.5
"""Share of what training sees without a new class, where images are few, so that not everything is taken for a new one:
images without one, and, as far as they are missing, crops beside the labelled objects."""
SMALLEST_BATCH = 4
LOG_SECONDS, CHECKPOINT_SECONDS = 10.0, 60.0
SPARE = 1.25
"""Iterations that are planned for a time limit, per iteration that fits by what was timed."""
SLOWER = 1.2
"""Time that is set aside for the end, per time that the same took at the beginning: the new model has more classes."""
WRITING_SECONDS = 3.0
"""For the files at the end."""
GATHERING = 0.2
"""Share of a time limit, at most, for a method's look at whole images after the training, where fewer of them do."""
WHOLE_IMAGE = 0.5
"""Time to look at a whole image, per time to train on a crop: without gradients, but of more pixels."""


@dataclass(frozen=True)
class Amounts:
    """What the data asks for."""

    images: int
    """To train on."""
    empty: int
    """Of these, how many show no class."""
    old_classes: int
    new_classes: int
    short_side: int
    """Median, in pixels."""
    one_size: bool
    """Whether all images have the same size."""

    @property
    def labelled(self) -> int:
        """Images that show a class."""
        return self.images - self.empty

    @property
    def first(self) -> bool:
        """Whether a new model learns its first step."""
        return self.old_classes == 0

    @property
    def setting(self) -> str:
        return "joint" if self.first else f"{self.old_classes}-{self.new_classes}"


def choose(
    usual: Mapping[str, Any],
    amounts: Amounts,
    data: Mapping[str, Any],
    overrides: Mapping[str, Any],
    iterations: int | None = None,
) -> RunConfig:
    """The whole configuration of a lesson.

    `usual` is what the model was trained with, `data` names the dataset, `overrides` are the user's own fields.
    """
    config = validate(usual, "the settings that the model was trained with")
    batch = min(config.training.batch_size, max(SMALLEST_BATCH, amounts.images))
    crop = _crop(config.data.crop, amounts.short_side)
    varied = _varied(config, amounts)
    on_small_images = max(crop, amounts.short_side) <= 128
    section = config.spec.section_name
    own = {} if amounts.first else config.method_settings.for_lesson(amounts.new_classes)
    chosen = {
        section: merge({"optimiser": {"later_learning_rate": _later_rate(config, amounts)}}, own),
        "data": {**data, **varied, "crop": crop, "workers": 0 if on_small_images else 2},
        "continual": {"setting": amounts.setting, "protocol": "overlapped"},
        "training": {"batch_size": batch},
        # Seen smaller by as much as it is trained smaller.
        "view": config.view.scaled(crop / config.data.crop).model_dump(),
        # Only labelled classes can be scored, and background is what the data does not label.
        "evaluation": {"convention": "no_background", "batch_size": 16 if on_small_images and amounts.one_size else 1},
    }
    config = validate(merge(merge(usual, chosen), upgraded(overrides, section)), "the settings of this lesson")
    return with_iterations(config, amounts, iterations or usual_iterations(config, amounts))


def usual_iterations(config: RunConfig, amounts: Amounts) -> int:
    """So many passes over the images, between a fewest and what is enough or what the model's own training took."""
    counted = amounts.images if amounts.first else max(1, amounts.labelled)
    passes = math.ceil(EPOCHS * counted / config.training.batch_size)
    if amounts.first:
        return min(max(FIRST_FEWEST, passes), config.training.iterations)
    most = max(ENOUGH, config.training.iterations_per_class) * amounts.new_classes
    return round(min(max(FEWEST, passes), most) * min(LONGER, amounts.images / counted))


def with_iterations(config: RunConfig, amounts: Amounts, iterations: int) -> RunConfig:
    """A schedule of `iterations`, in later steps rounded up to a multiple of the new classes, as the loop counts."""
    per_class = math.ceil(iterations / amounts.new_classes)
    training = {"iterations": iterations} if amounts.first else {"iterations_per_class": per_class}
    warmup = min(config.method_settings.optimiser.warmup, iterations // 5)
    return _changed(config, {"training": training, config.spec.section_name: {"optimiser": {"warmup": warmup}}})


def with_pace(config: RunConfig, seconds: float) -> RunConfig:
    """Log lines and checkpoints at times that suit a user, when an iteration takes `seconds`."""
    return _changed(
        config,
        {
            "training": {
                "log_every": max(1, round(LOG_SECONDS / seconds)),
                "checkpoint_every": max(1, round(CHECKPOINT_SECONDS / seconds)),
            }
        },
    )


def training_seconds(minutes: float, passed: float, scoring: float) -> float:
    """What is left of the minutes for training: `passed` seconds are over, and `scoring` will take so many."""
    # Where it took long to begin, it takes long to end: a slow disk, or a machine that others use too.
    left = 60 * minutes - SLOWER * (passed + scoring) - WRITING_SECONDS
    # Something must be trained, or there would be nothing to score.
    return max(left, 0.1 * 60 * minutes)


def seconds_after_look(passed: float, scoring: float) -> float:
    """What must be left of the minutes when a method's last look ends, for `scoring` and files."""
    return SLOWER * scoring + (SLOWER - 1) * passed + WRITING_SECONDS


def iterations_within(minutes: float, seconds: float, scoring_seconds: float) -> int:
    """How many iterations of `seconds` each fit into the minutes beside the scoring, at least one."""
    # At least half of the time is for training, or there would be nothing to score.
    return max(1, int(max(60 * minutes - scoring_seconds, 30 * minutes) / seconds))


def planned_iterations(available: float, seconds: float) -> int:
    """How many iterations of `seconds` each to plan for that time, at least one.

    Some more than are expected to fit: where the machine turns out faster they are used, and else the clock ends the
    training, with the learning rate at its end.
    """
    return max(1, int(SPARE * available / seconds))


def learns_at_once(config: RunConfig, amounts: Amounts) -> bool:
    """Whether the lesson is one look at each image, without any iteration."""
    return config.method_settings.learns_at_once(0 if amounts.first else 1)


def total_iterations(config: RunConfig, amounts: Amounts) -> int:
    if learns_at_once(config, amounts):
        return 0
    training = config.training
    return training.iterations if amounts.first else training.iterations_per_class * amounts.new_classes


def _varied(config: RunConfig, amounts: Amounts) -> dict[str, Any]:
    """More variety where there are few images; what the model was trained with where that varied more."""
    if amounts.images >= FEW_IMAGES:
        return {}
    smallest, largest = (None if amounts.first else config.data.later_scale) or config.data.scale
    scale = (min(smallest, VARIED_SCALE[0]), max(largest, VARIED_SCALE[1]))
    return {"colour_jitter": True, "scale": scale, "later_scale": None, "later_beside": _beside(amounts)}


def _beside(amounts: Amounts) -> float:
    shown = amounts.labelled / amounts.images
    return 0.0 if amounts.first or not shown else round(max(0.0, 1 - (1 - WITHOUT_NEW) / shown), 2)


def _later_rate(config: RunConfig, amounts: Amounts) -> float:
    usual, first = config.method_settings.optimiser.rate(1), config.method_settings.optimiser.rate(0)
    return min(usual, FEW_IMAGES_RATE * first) if amounts.images < FEW_IMAGES else usual


def _crop(trained: int, short_side: int) -> int:
    """The model's own training size; what images are smaller than half of it is not blown up to it."""
    return trained if 2 * short_side > trained else max(64, 32 * round(short_side / 32))


def _changed(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    return RunConfig.model_validate(merge(config.model_dump(), changes))
