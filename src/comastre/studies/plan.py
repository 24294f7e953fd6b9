"""From a study to its runs: the configuration and folder of each, which of them share a first step, and none unlike."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from comastre.config import methods
from comastre.config.datasets import find_dataset
from comastre.config.first_step import begin_alike
from comastre.config.run import RunConfig
from comastre.config.settings import flatten, load_config
from comastre.data.build import build_dataset
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.section import merge
from comastre.stream.scenario import split_classes
from comastre.studies.fields import differing, fields_of
from comastre.studies.study import Order, Row, Setting, Study
from comastre.text import brief
from comastre.training.loggers import refuse_missing

_OF_A_STUDY = {
    "method": "--methods",
    "seed": "--seeds",
    "continual.setting": "--settings",
    "continual.class_order": "--orders",
}
"""Fields of a run that rows, seeds, settings and orders decide in a study."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    name: str
    """Of its folder: the row, the setting, the seed and the order."""
    row: Row
    setting: Setting
    seed: int
    order: Order
    config: RunConfig
    group: int
    """Runs of the same group have the same first step."""
    earlier_name: str = ""
    """What its folder was called by versions that left out the setting of a study of one."""

    @property
    def label(self) -> str:
        """For people: as short as tells it apart from runs of other seeds."""
        order = f", {self.order.label}" if self.order.number else ""
        return f"{self.row.name}, {self.setting.label}, seed {self.seed}{order}"


@dataclass(frozen=True)
class Plan:
    """All runs of a study, in the order in which they are started."""

    study: Study
    runs: tuple[PlannedRun, ...]

    @property
    def convention(self) -> str:
        """How mIoU is averaged in all runs."""
        return self.runs[0].config.evaluation.convention

    @property
    def shared(self) -> int:
        """How many runs take over the first step of another."""
        return len(self.runs) - len({run.group for run in self.runs})


def plan(study: Study, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Every run of the study with `overrides`, fields of the command line, laid over all rows they can be meant for."""
    study = replace(study, orders=tuple(_drawn(order, study, overrides or {}) for order in study.orders))
    _refuse_unused(study, overrides or {})
    runs: list[PlannedRun] = []
    slugs = _slugs([row.name for row in study.rows])
    places = _slugs([setting.label for setting in study.settings])
    for order in study.orders:
        for seed in study.seeds:
            for setting in study.settings:
                for row in study.rows:
                    if seed not in _seeds(row, study):
                        continue
                    config = configuration(study, row, setting, seed, order, overrides or {})
                    which = [f"seed-{seed}", *([f"order-{order.number}"] if order.number else [])]
                    # Always with the setting: another may be added to the study later.
                    name = "--".join([slugs[row.name], places[setting.label], *which])
                    earlier = "--".join([slugs[row.name], *which]) if len(study.settings) == 1 else ""
                    runs.append(PlannedRun(name, row, setting, seed, order, config, _group(config, runs), earlier))
    _refuse_unlike(runs)
    return Plan(study, tuple(runs))


def _seeds(row: Row, study: Study) -> tuple[int, ...]:
    """Those of a row; where the study has none of its own, as many of the study's."""
    if row.seeds is None:
        return study.seeds
    return tuple(seed for seed in study.seeds if seed in row.seeds) or study.seeds[: len(row.seeds)]


def configuration(
    study: Study, row: Row, setting: Setting, seed: int, order: Order, overrides: Mapping[str, Any]
) -> RunConfig:
    """What one run is trained with: the preset, the study's fields, the command line's, and the row's own on top."""
    method = _method(row, setting)
    section = methods.find(method).section_name
    others = {spec.section_name for spec in methods.methods().values()} - {section}
    general = {name: value for name, value in overrides.items() if name not in others}
    shared = {name: value for name, value in flatten(study.fields).items() if name.partition(".")[0] not in others}
    fields = merge(fields_of(shared, method, f"the study {study.name}"), general)
    own = fields_of(row.fields, method, f"the study {study.name}, row {row.name}")
    if methods.find(method).all_at_once and "training.iterations" not in flatten(own):
        # Joint training is a ceiling only if it sees as many images as the streams that it stands beside.
        fields = merge({"training": {"joint_length": "stream"}}, fields)
    fields = merge(fields, own)
    fields = merge(fields, {"method": method, "seed": seed})
    continual: dict[str, Any] = {}
    if setting.setting is not None:
        continual["setting"] = setting.setting
    if order.classes is not None:
        continual["class_order"] = list(order.classes)
    return load_config(setting.source, merge(fields, {"continual": continual} if continual else {}))


def conventions(config: RunConfig) -> dict[str, Any]:
    """What scores mean: on which images, which classes at which step, seen how, averaged how.

    Runs that differ here cannot stand side by side. Each is a field of the configuration, but for what joint training
    does not look at.
    """
    data = flatten(config.data.model_dump(mode="json"))
    fields: dict[str, Any] = {"data.dataset": config.data.dataset}
    fields |= {f"data.{name}": data.get(name) for name in find_dataset(config.data.dataset).validation_fields}
    continual = config.continual
    found: dict[str, Any] = {
        **fields,
        "continual.setting": continual.setting,
        "continual.protocol": continual.protocol,
        "continual.partition": continual.partition,
        "continual.class_order": None if continual.class_order is None else list(continual.class_order),
        "view.short_side": config.view.at(config.data.crop).short_side,
        "view.max_side": config.view.max_side,
        "evaluation.convention": config.evaluation.convention,
    }
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def refuse_impossible(plan: Plan, look_at_data: bool) -> None:
    """Say what would stop runs one by one: a logger or a model to start from that is not there, a setting that the data
    cannot have; without `look_at_data` only data is looked at that needs no folder."""
    for run in plan.runs:
        refuse_missing(run.config)
        if run.config.init is not None and not user_path(run.config.init, "init").exists():
            raise UserError(f"--init {run.config.init} does not exist: give the folder of a run or of a model")
    for setting in plan.study.settings:
        config = next(run.config for run in plan.runs if run.setting == setting)
        if look_at_data or not find_dataset(config.data.dataset).needs_root:
            split_classes(len(build_dataset(config.data, "train").class_names), config.continual.setting)


def _refuse_unlike(runs: Sequence[PlannedRun]) -> None:
    """Rows of one setting and order must be scored alike, and all settings averaged alike."""
    first: dict[tuple[str, int], PlannedRun] = {}
    for run in runs:
        other = first.setdefault((run.setting.label, run.order.number), run)
        # The folder is not among the conventions, which are kept, so that data may move between two parts of a study.
        ours = conventions(run.config) | {"data.root": run.config.data.root}
        theirs = conventions(other.config) | {"data.root": other.config.data.root}
        for name in differing(ours, theirs):
            raise UserError(
                f"the rows {other.row.name} and {run.row.name} cannot stand side by side, {name} differs "
                f"({brief(theirs.get(name))} and {brief(ours.get(name))}): their scores would not mean the same; "
                "give them the same value, or make two studies"
            )
    averaged = {run.config.evaluation.convention: run for run in runs}
    if len(averaged) > 1:
        one, two = list(averaged.values())[:2]
        raise UserError(
            f"the settings {one.setting.label} and {two.setting.label} average mIoU in different ways "
            f"({' and '.join(averaged)}): give --evaluation.convention"
        )


def _refuse_unused(study: Study, overrides: Mapping[str, Any]) -> None:
    """A field of a method that no row has would silently do nothing, and one that is needed be missed late."""
    for name, reason in study.needs.items():
        if name not in flatten(overrides):
            raise UserError(f"the study {study.name} needs --{name}, {reason}")
    sections = {spec.section_name: spec.name for spec in methods.methods().values()}
    used = {methods.find(_method(row, setting)).section_name for row in study.rows for setting in study.settings}
    for name in flatten(overrides):
        if name in _OF_A_STUDY:
            raise UserError(f"--{name} is for one run: give {_OF_A_STUDY[name]}, which a study may have several of")
    for where, fields in (("", study.fields), *((f", row {row.name}", row.fields) for row in study.rows)):
        for name in flatten(fields):
            if name in _OF_A_STUDY:
                raise UserError(
                    f"the study {study.name}{where}: the field {name} is for one run: name it in "
                    f"`{_OF_A_STUDY[name].removeprefix('--')}`"
                )
    for name in overrides:
        if name in sections and name not in used:
            raise UserError(f"--{name}... is for the method {sections[name]}, which no row of this study has")


def _method(row: Row, setting: Setting) -> str:
    if row.method is not None:
        return row.method
    return load_config(setting.source).method


def _group(config: RunConfig, earlier: Sequence[PlannedRun]) -> int:
    """The number of the first run that begins alike; a new one where none does."""
    groups: dict[int, RunConfig] = {}
    for run in earlier:
        groups.setdefault(run.group, run.config)
    for number, first in groups.items():
        if first.seed == config.seed and begin_alike(first, config):
            return number
    return len(groups)


def _drawn(order: Order, study: Study, overrides: Mapping[str, Any]) -> Order:
    """An order with its classes: drawn by its number, so that it is the same in every study of as many classes."""
    if order.number == 0:
        return order
    counts = {setting.label: _num_classes(study, setting, overrides) for setting in study.settings}
    number = next(iter(counts.values()))
    if len(set(counts.values())) > 1:
        raise UserError("class orders need settings with the same number of classes: make two studies")
    if order.classes is None:
        classes = list(range(1, number + 1))
        random.Random(order.number).shuffle(classes)
        return replace(order, classes=tuple(classes))
    if len(order.classes) != number:
        raise UserError(
            f"class order {order.number} names {len(order.classes)} classes, but the data has {number}: "
            "name every class once, by its number"
        )
    return order


def _num_classes(study: Study, setting: Setting, overrides: Mapping[str, Any]) -> int:
    config = configuration(study, study.rows[0], setting, study.seeds[0], Order(), overrides)
    return len(build_dataset(config.data, "train").class_names)


def _slugs(names: Sequence[str]) -> dict[str, str]:
    """Names as parts of names of folders, which every system takes."""
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")[:60] or "row"
        slug, number = plain, 2
        while slug in found.values():
            slug, number = f"{plain}-{number}", number + 1
        found[name] = slug
    return found
