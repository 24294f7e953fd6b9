"""What a lesson is asked for: amounts and settings that are checked, and what must be the same for it to go on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from comastre.arguments import positive_number, whole_number
from comastre.bundle.history import digest
from comastre.config import methods
from comastre.config.older import upgraded
from comastre.config.run import MOST_ITERATIONS
from comastre.data.sources import DataSource
from comastre.errors import UserError
from comastre.learning.comparing import Sight
from comastre.learning.images import HELD_OUT, image_names, scoring_part
from comastre.learning.plan import Plan
from comastre.learning.starting_model import StartingModel
from comastre.text import brief

# Fields that a lesson decides itself, and what to give instead.
_DECIDED = {
    "training.iterations": "--iterations",
    "training.iterations_per_class": "--iterations",
    "data.dataset": "--data",
    "data.root": "--data",
    "data.train_json": "--data",
    "data.val_json": "--val",
    "continual": "--data",
    "size": "another model",
    "backbone": "another model",
}


def backbone_weights(settings: Mapping[str, Any]) -> tuple[str | None, Mapping[str, Any]]:
    """Where the backbone of a new model starts, and the other settings: it decides more than the field alone."""
    backbone = settings.get("backbone")
    if not isinstance(backbone, Mapping) or "weights" not in backbone:
        return None, settings
    others = {name: value for name, value in backbone.items() if name != "weights"}
    rest = {name: value for name, value in settings.items() if name != "backbone"}
    return backbone["weights"], {**rest, "backbone": others} if others else rest


def check_amounts(minutes: float | None, iterations: int | None) -> None:
    """Refuse lengths of a training that cannot be."""
    if minutes is not None and iterations is not None:
        raise UserError("--minutes and --iterations both say how long to train: give one of them")
    if minutes is not None:
        positive_number("--minutes", minutes)
    if iterations is not None:
        whole_number("--iterations", iterations, most=MOST_ITERATIONS)


def refuse_contradictions(settings: Mapping[str, Any], instant: bool | None, guarantee: str | None) -> None:
    """Refuse to be asked for one look and for something else at once."""
    if guarantee not in (None, "exact"):
        raise UserError(f"--guarantee is {brief(guarantee)} but there is one only: exact")
    if guarantee is not None and instant is False:
        raise UserError("--guarantee exact is kept by one look at the images: leave --no-instant away")
    if (guarantee or instant) and "method" in settings:
        given = "--guarantee exact" if guarantee else "--instant"
        raise UserError(f"{given} chooses the method itself: leave --method away")


def held_out_share(settings: Mapping[str, Any]) -> float:
    """The share of images that is kept for scoring; whatever else is wrong with the settings, `choose` says."""
    section = settings.get("data")
    share = section.get("held_out", HELD_OUT) if isinstance(section, Mapping) else HELD_OUT
    if not isinstance(share, int | float) or not 0 < share < 1:
        raise UserError(f"--data.held_out is {share!r} but must be a share between 0 and 1")
    return float(share)


def check_settings(settings: Mapping[str, Any], starting: StartingModel) -> None:
    spec = methods.find(starting.description.method)
    settings = upgraded(settings, spec.section_name)
    decided = dict(_DECIDED)
    if starting.known is None:  # a new model may be of any shape
        del decided["size"], decided["backbone"]
    else:
        # How it predicts may change, what it is may not; what a method adds that takes it over is up to the lesson.
        added = spec.config.added_sections if starting.taken_over else ()
        shape = (name for name in spec.config.model_sections if name not in ("inference", *added))
        decided |= {f"{spec.section_name}.{name}": "another model" for name in shape}
    refuse_decided(settings, {field: f"give {instead} instead" for field, instead in decided.items()}, "a lesson")


def refuse_decided(settings: Mapping[str, Any], decided: Mapping[str, str], work: str) -> None:
    """Refuse fields that a work decides itself; `decided` says why, of fields and of whole sections."""
    for section, values in settings.items():
        for name in values if isinstance(values, Mapping) else ("",):
            field = f"{section}.{name}".rstrip(".")
            reason = decided.get(field) or decided.get(section)
            if reason is not None:
                raise UserError(f"--{field} cannot be set for {work}: {reason}")


def request_of(
    starting: StartingModel, plan: Plan, minutes: float | None, iterations: int | None, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What must be the same for a lesson to go on, by the name that a user knows it by."""
    lesson = plan.lesson
    images = hashlib.sha256(repr((plan.names, lesson.held_out, dict(plan.shown))).encode()).hexdigest()[:16]
    return {
        "the model": starting.digest(),
        "the new classes": list(lesson.roles.new),
        "the old classes": sorted(lesson.roles.labelled_old),
        "the images": images,
        "--continue": lesson.continued and digest(lesson.continued.folder),
        "--minutes": minutes,
        "--iterations": iterations,
        "settings": {section: _plain(values) for section, values in settings.items()},
    }


def scored_on(plan: Plan, sights: Sequence[Sight]) -> dict[str, str | None]:
    """Which images a lesson's model is scored on and compared on, by the option that names them.

    Training does not depend on them, so that they may change when it is over; what was measured on others does not
    hold then. A part of the data itself is named by the request.
    """
    old = plan.old_data.source if plan.old_data is not None else None
    files = [sight.file for sight in sights if sight.index < 0]
    return {
        "--val": _mark_of(plan.lesson.scoring),
        "--old-val": _mark_of(old),
        "--unlabelled": _mark(sorted(files)) if files else None,
    }


def _mark_of(source: DataSource | None) -> str | None:
    """Changes with the place of data, its images, and the classes that each shows."""
    if source is None:
        return None
    place, images = source.file or source.root, scoring_part(source)
    shown = [sorted(classes) for classes in images.presence()]
    return _mark((source.dataset, place and str(place.resolve()), images.class_names, image_names(images), shown))


def _mark(what: Any) -> str:
    return hashlib.sha256(repr(what).encode(errors="surrogatepass")).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
