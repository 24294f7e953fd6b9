"""From a study file, a built-in name or a list of methods to a study; what is wrong in one is said in a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StrictInt, ValidationError, field_validator

from comastre.class_table import name_problem
from comastre.config import methods
from comastre.config.settings import flatten, load_config, preset_names, read_settings
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.paths import user_path
from comastre.section import Section
from comastre.studies.study import Metric, Order, Row, Setting, Study
from comastre.text import brief, shortened

SCALES = ("paper", "voc-small", "shapes")
MOST = 1000
"""Of rows, seeds, orders and settings, each: what is more, nobody can have meant."""
Name = Annotated[str, Field(min_length=1, max_length=100)]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(min_length=1, max_length=MOST)]
Orders = StrictInt | tuple[StrictInt | tuple[int, ...], ...]
"""Strict, as `true` would count as 1."""


class RowSpec(Section):
    """A row as a file has it."""

    name: Name
    method: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    seeds: Seeds | None = None
    paper: tuple[str, ...] = ()
    found: str = ""
    scales: tuple[str, ...] | None = None
    """At which scales the row is there; by default at all."""

    @field_validator("name")
    @classmethod
    def _one_line(cls, name: str) -> str:
        """A line break would end the row of a table, and other control characters steer a terminal."""
        if name_problem(name):
            raise ValueError("must be one line of text without control characters: rename the row")
        return name


class SettingSpec(Section):
    """A setting on a preset that has another."""

    preset: str
    setting: str


Settings = dict[str, str | SettingSpec] | tuple[str, ...]
_KINDS = ("dict[", "tuple[", "SettingSpec", "str", "int")
_SHAPE_OF = {
    "settings": "settings must be a list such as [6-2, 6-1], or names with a preset each, as in {15-1: voc-15-1}",
    "orders": "orders must be how many class orders there are, or a list of their numbers or of class numbers each",
}


class ScaleSpec(Section):
    """What is different at one scale."""

    preset: str | None = None
    settings: Settings | None = None
    seeds: Seeds | None = None
    orders: Orders | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    paper_setting: dict[str, str] = Field(default_factory=dict)


class StudySpec(Section):
    """A study as a file has it."""

    title: str = ""
    about: str = ""
    preset: str | None = None
    settings: Settings | None = None
    rows: Annotated[tuple[RowSpec, ...], Field(min_length=1, max_length=MOST)]
    seeds: Seeds = (0,)
    orders: Orders = 1
    fields: dict[str, Any] = Field(default_factory=dict)
    metric: Metric = "all"
    paper_setting: dict[str, str] = Field(default_factory=dict)
    needs: dict[str, str] = Field(default_factory=dict)
    """Fields that must be given on the command line, each with what for."""
    scales: dict[str, ScaleSpec] = Field(default_factory=dict)

    @field_validator("rows", mode="before")
    @classmethod
    def _plain_methods(cls, given: Any) -> Any:
        """A row may be the name of a method alone."""
        if not isinstance(given, list | tuple):
            return given
        return [{"name": methods.title_of(each), "method": each} if isinstance(each, str) else each for each in given]


@lru_cache(maxsize=1)
def built_in_names() -> tuple[str, ...]:
    """Names of the studies that come with the package: figures first, then tables in their order."""
    files = resources.files("comastre.studies").joinpath("builtin").iterdir()
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")))


def is_study(source: str) -> bool:
    """Whether a source is a study: a built-in one, or a file with rows."""
    if source in built_in_names():
        return True
    if source in preset_names():
        return False
    path = user_path(source)
    try:
        content = parse_yaml(text_of(path)) if path.is_file() else None
    except (OSError, Unreadable, NotYaml):
        return False
    return isinstance(content, dict) and "rows" in content


def read_study(source: str, scale: str | None = None) -> Study:
    """The study that a built-in name or a file describes, at a scale where it has several."""
    built_in = source in built_in_names()
    if built_in:
        text, origin, name = _built_in_text(source), f"the study {source}", source
    else:
        path = user_path(source)
        try:
            text, origin, name = text_of(path), source, path.stem
        except (OSError, Unreadable) as error:
            raise UserError(f"{source} cannot be read as text: {error}") from None
    try:
        content = parse_yaml(text)
    except NotYaml as error:
        raise UserError(f"{origin} is not valid YAML{error}") from None
    try:
        spec = StudySpec.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{origin}: {_explained(error)}") from None
    return _resolved(spec, name, origin, scale, Path() if built_in else user_path(source).parent)


def study_of_methods(source: str, names: Sequence[str], settings: Sequence[str] = ()) -> Study:
    """The plain case: methods on a preset or a YAML file of a run."""
    for name in names:
        methods.find(name)
    read_settings(source)  # says what is wrong with it
    rows = tuple(Row(methods.title_of(name), name) for name in names)
    _refuse_twice([row.name for row in rows], "--methods", "method")
    label = Path(source).stem
    return Study(
        name=label,
        rows=rows,
        settings=_settings(source, tuple(settings), "--settings", Path()),
        title=f"Comparison on {label}",
    )


def chosen(study: Study, rows: Sequence[str], settings: Sequence[str]) -> Study:
    """The study with these rows and settings alone; all where none are named."""
    for what, known, names in (
        ("row", [row.name for row in study.rows], rows),
        ("setting", [setting.label for setting in study.settings], settings),
    ):
        for name in names:
            if name not in known:
                raise UserError(f"the study {study.name} has no {what} {name!r}: there are {'; '.join(known)}")
    return replace(
        study,
        all_rows=tuple(row.name for row in study.rows),
        all_settings=tuple(setting.label for setting in study.settings),
        rows=tuple(row for row in study.rows if not rows or row.name in rows),
        settings=tuple(setting for setting in study.settings if not settings or setting.label in settings),
    )


def no_methods(source: str) -> UserError:
    """What to say of a source that is no study, where no methods are named."""
    if source not in preset_names() and user_path(source).is_file():
        try:
            load_config(source)
        except UserError:  # no run's file either: as a study it may have been meant
            try:
                read_study(source)
            except UserError as error:
                return error
    if source in preset_names() or user_path(source).is_file():
        return UserError(f"{source} is no study: name methods to compare, as in --methods comastre,finetune")
    if user_path(source).is_dir():
        return UserError(f"{source} is a folder without a study.json: give the command that its study was started with")
    near = difflib.get_close_matches(source, [*built_in_names(), *preset_names()], n=1)
    hint = f"did you mean {near[0]}?" if near else f"the studies are {', '.join(built_in_names())}"
    return UserError(f"{source} is neither a study, a preset nor a file: {hint}")


def read_orders(given: Orders, origin: str) -> tuple[Order, ...]:
    """Orders by number, or as a list of class ids each; those that are to be drawn are without classes yet."""
    if isinstance(given, int):
        if not 1 <= given <= MOST:
            raise UserError(f"{origin}: orders is {given} but must be 1 to {MOST}")
        return tuple(Order(number) for number in range(given))
    orders = []
    for place, each in enumerate(given, start=1):
        if isinstance(each, int):
            if not 0 <= each <= MOST:
                raise UserError(f"{origin}: there is no class order {each}: 0 is the settings' own, 1 to {MOST} drawn")
            orders.append(Order(each))
        elif sorted(each) != list(range(1, len(each) + 1)):
            raise UserError(
                f"{origin}: class order {place} is {brief(list(each))}, which is no permutation of 1 to {len(each)}: "
                "name every class once, by its number"
            )
        else:
            # Numbers of drawn orders in the same list stay what they are.
            drawn = {other for other in given if isinstance(other, int)}
            number = place
            while number in drawn or any(order.number == number for order in orders):
                number += 1
            orders.append(Order(number, each))
    _refuse_twice([str(order.number) for order in orders], origin, "class order")
    if not orders:
        raise UserError(f"{origin}: orders is empty: leave it out, or name one")
    return tuple(orders)


def _resolved(spec: StudySpec, name: str, origin: str, scale: str | None, folder: Path) -> Study:
    if scale is not None and not spec.scales:
        raise UserError(f"{origin} has no scales: leave out --scale")
    if spec.scales:
        known = ", ".join(spec.scales)
        if scale is None:
            raise UserError(f"{origin} has several scales: choose one with --scale {' | '.join(spec.scales)}")
        if scale not in spec.scales:
            raise UserError(f"{origin} has no scale {scale!r}: choose {known}")
    for row in spec.rows:
        for its_scale in row.scales or ():
            if its_scale not in spec.scales:
                raise UserError(
                    f"{origin}, row {row.name}: there is no scale {its_scale!r}: "
                    + (f"choose of {', '.join(spec.scales)}" if spec.scales else "leave out `scales`")
                )
    own = spec.scales.get(scale or "", ScaleSpec())
    given = [row for row in spec.rows if row.scales is None or scale is None or scale in row.scales]
    if not given:
        raise UserError(f"{origin} has no row at the scale {scale}: choose another, or add the scale to a row")
    _refuse_twice([row.name for row in given], origin, "row")
    preset, settings = own.preset or spec.preset, own.settings or spec.settings
    if preset is None and not isinstance(settings, dict):
        raise UserError(f"{origin} names no preset: add `preset:` with a preset or a YAML file of a run")
    rows = tuple(
        Row(
            name=row.name,
            method=None if row.method is None else methods.find(row.method).name,
            fields=row.fields,
            seeds=row.seeds,
            paper=row.paper,
            found=row.found,
        )
        for row in given
    )
    return Study(
        name=name,
        rows=rows,
        settings=_settings(preset, settings or (), origin, folder),
        seeds=_unique_seeds(own.seeds or spec.seeds, origin),
        orders=read_orders(own.orders if own.orders is not None else spec.orders, origin),
        fields={**flatten(spec.fields), **flatten(own.fields)},
        title=spec.title or name,
        about=spec.about,
        scale=scale or "",
        metric=spec.metric,
        paper_setting={**spec.paper_setting, **own.paper_setting},
        needs=spec.needs,
    )


def _settings(preset: str | None, given: Settings, origin: str, folder: Path) -> tuple[Setting, ...]:
    """Settings by label: a preset or a file each, or B-I on the study's preset."""
    pairs = given if isinstance(given, dict) else {label: label for label in given}
    if not isinstance(given, dict):
        _refuse_twice(list(given), origin, "setting")
    found = []
    for label, source in pairs.items():
        if isinstance(source, SettingSpec):
            found.append(Setting(label, _beside(source.preset, folder), source.setting))
        elif source in preset_names() or source.endswith((".yaml", ".yml")):
            found.append(Setting(label, _beside(source, folder)))
        elif preset is None:
            raise UserError(f"{origin}: the setting {source!r} is neither a preset nor a file: `comastre presets`")
        else:
            found.append(Setting(label, _beside(preset, folder), source))
    if not found:
        assert preset is not None
        source = _beside(preset, folder)
        found.append(Setting(str(read_settings(source).get("continual", {}).get("setting", Path(source).stem)), source))
    for each in found:
        read_settings(each.source)  # says what is wrong with it
    return tuple(found)


def _beside(source: str, folder: Path) -> str:
    """A preset, or a file that is named from where the study file lies."""
    return source if source in preset_names() else str(folder / user_path(source))


def _unique_seeds(seeds: tuple[int, ...], origin: str) -> tuple[int, ...]:
    _refuse_twice([str(seed) for seed in seeds], origin, "seed")
    return seeds


def _refuse_twice(names: Sequence[str], origin: str, what: str) -> None:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"{origin}: the {what} {twice[0]} is given twice: name it once")


def _explained(error: ValidationError) -> str:
    """The first thing that is wrong with a study file."""
    errors = error.errors()
    # A slip in a field's name comes first: what is missing is missing for it.
    first = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    # Where a field may be of several kinds, pydantic names the kind, too, which is no place in the file.
    several = first["loc"][:1] in (("settings",), ("orders",))
    parts = [part for part in first["loc"] if not (several and str(part).startswith(_KINDS))]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        sections: dict[str, type[Section]] = {"rows": RowSpec, "scales": ScaleSpec, "settings": SettingSpec}
        section = next((sections[str(part)] for part in first["loc"][:-1] if str(part) in sections), StudySpec)
        known = list(section.model_fields)
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        return f"there is no field {place}: " + (
            f"did you mean {near[0]}?" if near else f"there are {shortened(known)}"
        )
    if several:
        return f"{place} is {brief(first['input'])} but {_SHAPE_OF[str(first['loc'][0])]}"
    if kind == "missing":
        return f"{place} is missing"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{place or 'it'} is {brief(first['input'])} but must hold `field: value` lines"
    allowed = message.replace("Input should be", "must be").replace("Value error, ", "")
    return f"{place} is {brief(first['input'])} but {allowed[0].lower()}{allowed[1:]}"


def _built_in_text(name: str) -> str:
    return resources.files("comastre.studies").joinpath("builtin", f"{name}.yaml").read_text(encoding="utf-8")
