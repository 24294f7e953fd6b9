"""What a study found, and its file `study.json`: small, and everything that tables and the report need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comastre import __version__
from comastre.config import methods
from comastre.config.conventions import CONVENTIONS
from comastre.config.first_step import base_classes
from comastre.config.run_files import ENVIRONMENT, RESULTS
from comastre.config.settings import flatten
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import BACKGROUND, Results, StepResult
from comastre.files import write_whole
from comastre.studies.directory import STUDY, folder_of, is_finished
from comastre.studies.plan import Plan, PlannedRun, conventions
from comastre.text import brief

VERSION = 1
DIGITS = 3
"""Of percents: more would be noise, and the file larger."""
ERRORS = ("right", "wrong_class", "below_alpha", "not_proposed")


@dataclass(frozen=True)
class Scores:
    """mIoU in percent; None where nothing can be scored."""

    base: float | None
    inc: float | None
    all: float | None


@dataclass(frozen=True)
class StepFound:
    """One step of a run."""

    new_classes: int
    scores: Mapping[str, Scores]
    """By convention."""
    recall: tuple[float | None, float | None] | None = None
    """Of all proposals, and of confident ones; None without proposals."""
    base_recall: float | None = None
    """Mean over the base classes, of all proposals."""
    later_recall: float | None = None
    """Of classes not learned yet, of all proposals."""
    errors: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    """True masks of the base classes and of later ones that were right, named wrongly, below alpha, not proposed."""


@dataclass(frozen=True)
class RunFound:
    """One run."""

    row: str
    setting: str
    seed: int
    order: int
    finished: bool
    steps: tuple[StepFound, ...] = ()
    per_class: Mapping[str, float | None] = field(default_factory=dict)
    """IoU after the last step, in learning order."""
    kept: float | None = None
    seconds: float = 0.0
    """Training time of the steps that it learned itself, or that another did for it."""

    def average(self, convention: str) -> float | None:
        """`avg`: the mean of `all` over the steps."""
        known = [step.scores[convention].all for step in self.steps if convention in step.scores]
        numbers = [value for value in known if value is not None]
        return math.fsum(numbers) / len(numbers) if numbers else None


@dataclass(frozen=True)
class RowFound:
    """A row of the study."""

    name: str
    method: str
    title: str
    at_once: bool = False
    """Whether it learns all classes in one step: a ceiling, not a rival."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    paper: tuple[str, ...] = ()
    found: str = ""


@dataclass(frozen=True)
class SettingFound:
    """A setting with what its scores mean."""

    label: str
    source: str
    conventions: Mapping[str, Any]
    paper_setting: str = ""


@dataclass(frozen=True)
class StudyFound:
    """A whole study."""

    name: str
    title: str
    about: str
    scale: str
    metric: str
    convention: str
    rows: tuple[RowFound, ...]
    settings: tuple[SettingFound, ...]
    seeds: tuple[int, ...]
    orders: tuple[int, ...]
    runs: tuple[RunFound, ...]
    unlike: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields that all methods have and rows do not share, with the value of each row."""
    environment: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    def of(self, row: str, setting: str) -> list[RunFound]:
        """The finished runs of a row in a setting."""
        return [run for run in self.runs if run.row == row and run.setting == setting and run.finished]

    def write(self, path: Path) -> None:
        """Write `study.json` whole."""
        write_whole(path, json_bytes(_rounded(asdict(self))))


_READER = TypeAdapter(StudyFound)


def read_found(path: Path) -> StudyFound:
    """Read what `write` wrote."""
    file = path / STUDY if path.is_dir() else path
    try:
        document = read_json(file)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}; give the folder of a study") from None
    except ValueError as error:
        raise UserError(
            f"{file} is not valid JSON ({error}): restore it, or give the same `comastre compare` again"
        ) from None
    version = document.get("version") if isinstance(document, dict) else None
    if not isinstance(version, int):
        raise UserError(f"{file} is not a study file: it has no version; give one that comastre wrote")
    if version > VERSION:
        raise UserError(f"{file} has version {version} but this comastre reads up to {VERSION}: upgrade comastre")
    try:
        found = _READER.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise UserError(f"{file} is malformed ({where}: {first['msg']}): restore it") from None
    if found.convention not in CONVENTIONS or any(
        set(step.scores) != set(CONVENTIONS) for run in found.runs for step in run.steps
    ):
        raise UserError(f"{file} is malformed (scores under unknown conventions): restore it")
    return found


def collect(plan: Plan, out: Path) -> StudyFound:
    """What the runs of a study have found so far."""
    study = plan.study
    runs = [_run(run, out) for run in plan.runs]
    first = {row.name: next(run for run in plan.runs if run.row == row) for row in study.rows}
    rows = tuple(
        RowFound(
            name=row.name,
            method=first[row.name].config.method,
            title=methods.title_of(first[row.name].config.method),
            at_once=_at_once(first[row.name]),
            fields=flatten(row.fields),
            paper=row.paper,
            found=row.found,
        )
        for row in study.rows
    )
    settings = []
    for setting in study.settings:
        any_run = next(run for run in plan.runs if run.setting == setting)
        paper = study.paper_setting.get(setting.label, "")
        settings.append(SettingFound(setting.label, setting.source, conventions(any_run.config), paper))
    return StudyFound(
        name=study.name,
        title=study.title or study.name,
        about=study.about,
        scale=study.scale,
        metric=study.metric,
        convention=plan.convention,
        rows=rows,
        settings=tuple(settings),
        seeds=study.seeds,
        orders=tuple(order.number for order in study.orders),
        runs=tuple(runs),
        unlike=_unlike(plan),
        environment=_environment(plan, out),
    )


def _run(run: PlannedRun, out: Path) -> RunFound:
    folder = folder_of(out, run)
    place = RunFound(run.row.name, run.setting.label, run.seed, run.order.number, finished=False)
    if not is_finished(folder):
        return place
    results = Results.load(folder / RESULTS)
    base = base_classes(run.config.continual)
    at_once = _at_once(run) and len(results.steps) == 1
    number = base if at_once and base is not None else len(results.steps[0].new_classes)
    first = results.class_order[:number]
    return RunFound(
        row=place.row,
        setting=place.setting,
        seed=place.seed,
        order=place.order,
        finished=True,
        steps=tuple(_step(step, first, at_once and number < len(results.class_order)) for step in results.steps),
        per_class=dict(results.steps[-1].per_class),
        kept=results.kept,
        seconds=math.fsum(step.seconds for step in results.steps),
    )


def _step(step: StepResult, base: tuple[str, ...], split: bool) -> StepFound:
    """`split`: all classes were learned at once, and are scored as those of a stream in two parts."""
    own = {
        name: Scores(_known(each.base), _known(each.inc), _known(each.all)) for name, each in step.conventions.items()
    }
    errors: dict[str, tuple[int, int, int, int]] = {}
    if step.errors:
        for part, names in (
            ("base", [name for name in step.errors if name in base]),
            ("later", [name for name in step.errors if name not in base]),
        ):
            right, wrong, below, missing = (sum(getattr(step.errors[name], kind) for name in names) for kind in ERRORS)
            errors[part] = right, wrong, below, missing
    return StepFound(
        new_classes=len(step.new_classes),
        scores={name: _split(step, base, name) for name in own} if split else own,
        recall=None if step.recall is None else (_known(step.recall.all), _known(step.recall.confident)),
        base_recall=_mean_recall(step.recall_per_class, base),
        later_recall=None if step.later_recall is None else _known(step.later_recall.all),
        errors=errors,
    )


def _split(step: StepResult, base: tuple[str, ...], convention: str) -> Scores:
    """Scores of a joint run as if the base classes had come first."""
    rule = CONVENTIONS[convention]
    background = step.per_class.get(BACKGROUND)
    old = [value for name, value in step.per_class.items() if name in base]
    new = [value for name, value in step.per_class.items() if name not in base and name != BACKGROUND]
    return Scores(
        base=_mean([background, *old] if rule.background_in_base else old),
        inc=_mean(new),
        all=_mean([background, *old, *new] if rule.background_in_all else [*old, *new]),
    )


def _mean_recall(per_class: Mapping[str, Recall], base: tuple[str, ...]) -> float | None:
    return _mean([per_class[name].all for name in base if name in per_class])


def _mean(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _at_once(run: PlannedRun) -> bool:
    return run.config.spec.all_at_once or run.config.continual.setting == "joint"


def _unlike(plan: Plan) -> dict[str, dict[str, Any]]:
    """What rows do not share of the settings that every method has, in the first setting: is it fair?"""
    sections = {spec.section_name for spec in methods.methods().values()}
    first: dict[str, dict[str, Any]] = {}
    for run in plan.runs:
        if run.setting == plan.study.settings[0] and run.row.name not in first:
            values = flatten(run.config.model_dump(mode="json"))
            first[run.row.name] = {
                name: value for name, value in values.items() if name.partition(".")[0] not in (*sections, "seed")
            }
    names = dict.fromkeys(name for values in first.values() for name in values if name != "method")
    found = {name: {row: values.get(name) for row, values in first.items()} for name in names}
    return {name: values for name, values in found.items() if len({brief(value, 500) for value in values.values()}) > 1}


def _environment(plan: Plan, out: Path) -> dict[str, str]:
    """What the first finished run was trained with, and the hours of all."""
    for run in plan.runs:
        try:
            content = read_json(folder_of(out, run) / ENVIRONMENT)
            return {str(name): str(value) for name, value in content.items()}
        except (OSError, ValueError, AttributeError):
            continue
    return {"comastre": __version__}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
