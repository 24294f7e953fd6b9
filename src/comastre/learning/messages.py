"""What a lesson says before it trains."""

from __future__ import annotations

import math

from comastre.config.run import RunConfig
from comastre.learning.images import EMPTY_SHARE, ENOUGH_TO_SPARE
from comastre.learning.plan import Plan
from comastre.learning.schedule import SLOWER, WRITING_SECONDS, Amounts, total_iterations
from comastre.text import readable_time, shortened, table
from comastre.training.clock import Times

MOST = 30  # names in a line


def understood(found: Plan, start: str) -> str:
    """Old and new classes, images per class, and what counts as unlabelled; `start` is where learning starts from."""
    lesson, roles = found.lesson, found.lesson.roles
    images = {name: _images(found.shown[name], found.held_out[name]) for name in roles.names}
    rows = [("model", start)]
    if lesson.continued is not None:
        rows.append(("goes on", f"with the lesson of {lesson.continued.folder}: {shortened(roles.new, MOST)}"))
    if lesson.practises:
        rows.append(("practises", f"{shortened(roles.taught, MOST)}: nothing in the data is new to the model"))
    rows += [("knows", shortened(roles.old, MOST))] if roles.old else []
    rows += [("data", f"{lesson.title}: {found.total} images")]
    rows += [("new class", f"{name}: {images[name]}") for name in roles.new]
    used = "labelled here too, so learned from"
    rows += [("old class", f"{name}: {images[name]}, {used}") for name in roles.old if name in roles.labelled_old]
    if found.empty:
        unused = found.total - found.amounts.images - len(lesson.held_out)
        enough = f", {unused} of them not used: {EMPTY_SHARE} for each that shows one are enough" if unused else ""
        rows.append(("no label", f"{found.empty} images, which show what is none of the classes{enough}"))
    silent = [name for name in roles.old if name not in roles.labelled_old]
    if silent:
        rows.append(("not labelled", f"{shortened(silent, MOST)}: kept as the old model sees them"))
    rows.append(("unlabelled", f"every pixel without one of these labels, which counts as {lesson.background}"))
    if roles.unseen:
        rows.append(("left out", f"{shortened(roles.unseen, MOST)}: listed in the data, but no image shows them"))
    if roles.left_out:
        rows.append(("left out", f"{shortened(roles.left_out, MOST)}: not asked for with --only, so unlabelled here"))
    return table(rows, indent=0)


def warnings(found: Plan, config: RunConfig) -> list[str]:
    """What may go wrong without being wrong."""
    shown, lines = found.shown, [f"warning: {hint}" for hint in found.hints]
    for name in found.lesson.roles.taught:
        if shown[name] == 1:
            lines.append(f"warning: {name} has one image only: the model will hardly know it from others; add images")
        elif shown[name] < ENOUGH_TO_SPARE and found.lesson.scoring is None:
            lines.append(
                f"warning: {name} has {shown[name]} images, so that none is held out and it is not scored: "
                "add images, or give --val DATA"
            )
    largest = config.data.crop * config.data.scale[1]
    if found.amounts.short_side > 2 * largest:
        lines.append(
            f"warning: the images are about {found.amounts.short_side} pixels high or wide, but the model is trained "
            f"at up to {largest:.0f}: shrink images to that size, here and for predictions"
        )
    return lines


def schedule(
    config: RunConfig, amounts: Amounts, seconds: float, wanted: int, device: str, times: Times, passed: float
) -> str:
    """How it will train, and how long; an iteration takes `seconds`, and so much has `passed` before the first."""
    training, total = config.training, total_iterations(config, amounts)
    rate = config.method_settings.optimiser.rate(0 if amounts.first else 1)
    text = (
        f"{total} iterations of {training.batch_size} images at {config.data.crop} x {config.data.crop} pixels, "
        f"{_varied(config)}, learning rate {rate:g}, about "
        f"{readable_time(min(total * seconds, times.training or math.inf) + times.scoring)} with scoring on {device}"
    )
    if times.training is None:
        return text
    text += f"; the clock ends the training after {readable_time(times.training)}, and the learning rate with it"
    if wanted * seconds > times.training:
        needed = (wanted * seconds + passed + SLOWER * times.scoring + WRITING_SECONDS) / 60
        text += (
            f"; these minutes are too few for the {wanted} iterations that this data would take, which need "
            f"--minutes {max(1, math.ceil(needed))}"
        )
    return text


def _varied(config: RunConfig) -> str:
    data = config.data
    smallest, largest = data.scale
    kinds = [
        "mirrored" if data.flip else "",
        f"scaled by {smallest:g} to {largest:g}" if smallest < largest else "",
        "varied in colour" if data.colour_jitter else "",
        f"{data.later_beside:.0%} of them beside what is labelled" if data.later_beside else "",
    ]
    return ", ".join(filter(None, kinds)) or "not varied"


def _images(shown: int, held_out: int) -> str:
    text = f"{shown} {'image' if shown == 1 else 'images'}"
    return f"{text}, {held_out} of them held out for scoring" if held_out else text
