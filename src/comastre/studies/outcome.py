"""From the folders of a study's runs to what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comastre import __version__
from comastre.config import methods
from comastre.config.conventions import CONVENTIONS
from comastre.config.first_step import base_classes
from comastre.config.run_files import ENVIRONMENT, RESULTS
from comastre.config.settings import flatten
from comastre.documents import read_json
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import BACKGROUND, Results, StepResult
from comastre.studies.directory import folder_of, is_finished
from comastre.studies.found import ERRORS, RowFound, RunFound, Scores, SettingFound, StepFound, StudyFound
from comastre.studies.merging import shared_fields
from comastre.studies.plan import Plan, PlannedRun, conventions

_FILES = ("data.root", "backbone.weights", "init", "continual.partition")


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
    alike, unlike = _fields(plan)
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
        unlike=unlike,
        alike=alike,
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


def _fields(plan: Plan) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Of the settings that every method has, what rows share in the first setting and what not: is it fair?"""
    sections = {spec.section_name for spec in methods.methods().values()}
    first: dict[str, dict[str, Any]] = {}
    for run in plan.runs:
        if run.setting == plan.study.settings[0] and run.row.name not in first:
            values = flatten(run.config.model_dump(mode="json"))
            first[run.row.name] = {
                name: _without_folder(name, value)
                for name, value in values.items()
                if name.partition(".")[0] not in (*sections, "seed", "method")
            }
    return shared_fields(first, list(first))


def _without_folder(name: str, value: Any) -> Any:
    """A study may be given away: where files lie on this machine is nobody's business."""
    return Path(value).name if name in _FILES and isinstance(value, str) else value


def _environment(plan: Plan, out: Path) -> dict[str, str]:
    """What the first finished run was trained with, and the hours of all."""
    for run in plan.runs:
        try:
            content = read_json(folder_of(out, run) / ENVIRONMENT)
            return {str(name): str(value) for name, value in content.items()}
        except (OSError, ValueError, AttributeError):
            continue
    return {"comastre": __version__}
