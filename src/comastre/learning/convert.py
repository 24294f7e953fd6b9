"""`comastre convert`: a Mask2Former becomes CoMasTRe, taught by itself on images without labels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comastre.bundle import store
from comastre.bundle.hub import locate
from comastre.bundle.store import Bundle, Description
from comastre.config.older import upgraded
from comastre.config.run import RunConfig
from comastre.config.run_files import CONFIG, step_bundle
from comastre.config.settings import write_config
from comastre.data.unlabelled import unlabelled
from comastre.documents import json_bytes
from comastre.errors import UserError
from comastre.evaluation.results import StepResult
from comastre.learning import directory
from comastre.learning.conversion import SAME_PIXELS, Conversion
from comastre.learning.conversion_settings import SECTION, check, choose, wanted
from comastre.learning.images import hold_out, typical_size
from comastre.learning.schedule import iterations_within, with_pace
from comastre.learning.starting_model import StartingModel
from comastre.paths import user_path
from comastre.prediction.image_files import find_images
from comastre.text import readable_time, shortened, table
from comastre.text import say as say_line
from comastre.training.checkpoint import write_atomically
from comastre.training.launch import build_fabric
from comastre.training.lock import locked
from comastre.training.pace import seconds_per_iteration
from comastre.training.run import run
from comastre.training.stopping import Interrupted

Say = Callable[[str], None]
HELD_OUT = 0.1
"""Share of the images on which both models are compared."""
MOST_COMPARED = 500
"""Images, at most: more would not say more."""


@dataclass(frozen=True)
class Converted:
    """What a conversion brought, in percent."""

    path: Path
    """The new bundle."""
    same_pixels: float | None
    """Of the compared images, pixels with the label that the original gives them."""
    per_class: Mapping[str, float | None]
    """Of the pixels that one of the two models takes for the class, those that both do; None where neither does."""


def convert(
    model: str | Path,
    images: Sequence[str | Path],
    *,
    out: str | Path,
    minutes: float | None = None,
    iterations: int | None = None,
    fresh: bool = False,
    settings: Mapping[str, Any] | None = None,
    say: Say = say_line,
) -> Converted:
    """Turn the Mask2Former `model` (a bundle's folder or hub id) into CoMasTRe, and write that to the new folder `out`.

    Backbone, pixel decoder, mask decoder and queries stay as they are, and so do its masks. On `images` (files, folders
    or patterns), which need no labels, it teaches objectness and stage 2 what it sees itself. Training happens in the
    folder `<out>.training`: interrupted, the same call goes on there, unless `fresh`.
    """
    out = user_path(out, "out")
    settings = upgraded(settings or {}, SECTION)
    check(minutes, iterations, settings)
    folder = locate(model)
    directory.refuse_bad_out(out, folder)
    original = store.load(folder)
    plan, short_side = _plan(original, wanted(original.model, store.portable(original), settings, str(model)), images)
    place, amount = plan.images[0].parent, len(plan.training)
    config = choose(plan.description, folder, place, amount, short_side, settings, iterations)
    build_fabric(config.training)  # a device that is not there is refused before anything is written
    say(_understood(plan, str(model)))

    work = directory.training_folder(out)
    request = {
        "the model": StartingModel(original.description, original, "").digest(),
        "the images": hashlib.sha256(repr((plan.images, plan.compared)).encode()).hexdigest()[:16],
        "--minutes": minutes,
        "--iterations": iterations,
        "settings": _plain(settings),
    }
    if fresh:
        directory.put_aside(work)
    with locked(work):  # until the new model is written: a second conversion here would train in the same files
        earlier = directory.begun(work)
        if directory.is_there(out) and (earlier is None or directory.changes(request, earlier[1])):
            raise directory.exists_already(out)
        if earlier is not None:
            directory.refuse_changes(work, request, earlier[1])
            config = earlier[0]
            say(f"training      goes on in {work}, {config.training.iterations} iterations in all")
        else:
            config = _begin(work, config, plan, request, minutes, say)
        return _finish(out, work, _run(work, config, plan), plan, say)


def _plan(original: Bundle, description: Description, sources: Sequence[str | Path]) -> tuple[Conversion, int]:
    """Which images teach and which compare, and their typical short side; refuses images that cannot be read."""
    images = tuple(image.path.absolute() for image in find_images(sources))
    dataset = unlabelled(images, original.classes.names, original.classes.colours)
    dataset.presence()
    compared = hold_out([str(image) for image in images], [{1}] * len(images), {1}, HELD_OUT)[:MOST_COMPARED]
    away = frozenset(compared)
    plan = Conversion(
        known=original.classes,
        description=description,
        images=images,
        training=tuple(place for place in range(len(images)) if place not in away),
        # Of few images none can be spared.
        compared=compared or tuple(range(len(images))),
    )
    return plan, typical_size(dataset)[0]


def _begin(
    work: Path, config: RunConfig, plan: Conversion, request: Mapping[str, Any], minutes: float | None, say: Say
) -> RunConfig:
    """Measure how fast this machine is, decide how long to train, and write that down."""
    try:
        seconds = seconds_per_iteration(config, plan.parts())
    except Interrupted as stop:
        reason = "stopped before training began: the same command starts it again"
        raise Interrupted(reason, stop.signal_number) from None
    training, usual = config.training, config.training.iterations
    if minutes is not None:
        comparing = 2 * len(plan.compared) * seconds / training.batch_size  # by two models
        fitting = iterations_within(minutes, seconds, comparing)
        training = training.model_copy(update={"iterations": min(usual, fitting)})
        config = config.model_copy(update={"training": training})
    config = with_pace(config, seconds)
    text = (
        f"{training.iterations} iterations of {training.batch_size} images at {config.data.crop} x {config.data.crop} "
        f"pixels, about {readable_time(training.iterations * seconds)} on {build_fabric(training).device}"
    )
    if training.iterations < usual:
        text += f"; these minutes are too few for {usual}, which need --minutes {round(usual * seconds / 60 + 1)}"
    say(f"training      {text}")
    say(f"in            {work}: interrupted, the same command goes on there")
    write_config(config, work / CONFIG)
    write_atomically(work / directory.PLAN, json_bytes({"request": request, "seconds": seconds, "decided": True}))
    return config


def _run(work: Path, config: RunConfig, plan: Conversion) -> StepResult:
    try:
        return run(config, work, parts=plan.parts()).steps[0]
    except Interrupted as stop:
        raise Interrupted(
            f"stopped; what is done is saved in {work}: give the same command to go on", stop.signal_number
        ) from None


def _finish(out: Path, work: Path, result: StepResult, plan: Conversion, say: Say) -> Converted:
    """Write the new model whole and say how alike both are; a kill in between costs nothing, nor does another call."""
    if not directory.is_there(out):
        if not step_bundle(work, 0).exists():
            raise UserError(
                f"this was converted already, but the model is no longer in {out}: move it back there, or start over "
                "with --fresh"
            )
        write_atomically(work / directory.OUTCOME, json_bytes({"per_class": dict(result.per_class)}))
        store.save(store.load(step_bundle(work, 0)), out)
    directory.tidy(work)
    same = store.load(out).classes.lineage[-1].scores.get(SAME_PIXELS)
    count = f"{len(plan.compared)} " + ("held-out images" if plan.apart else "images, on which it was taught")
    seen = sorted((share, name) for name, share in result.per_class.items() if share is not None)
    say("")
    if seen:
        say(f"of the pixels that either model takes for a class, both do (%), on {count}:")
        say(table([(name, f"{share:5.1f}") for share, name in seen]))
    if same is not None:
        say(f"the new model gives {same:.1f} % of the pixels of {count} the label that the original gives them")
    say(f"it is in {out}; teach it a class with `comastre learn {out} --data FOLDER --out NEW_MODEL`")
    say(f"settings and logs of the training are in {work}, which can be deleted")
    return Converted(out, same, result.per_class)


def _understood(plan: Conversion, name: str) -> str:
    held_out = f", {len(plan.compared)} of them held out to compare both models" if plan.apart else ""
    return table(
        [
            ("model", f"{name}: {len(plan.known.names)} classes, backbone {plan.description.backbone.name}"),
            ("knows", shortened(plan.known.names, 30)),
            ("images", f"{len(plan.images)}{held_out}; labels are not needed"),
            ("stays", "backbone, pixel decoder, mask decoder and queries, and with them its masks"),
            ("learns", "objectness and stage 2, from what the model itself says of the images"),
        ],
        indent=0,
    )


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
