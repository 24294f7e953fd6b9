"""Dotted command-line overrides (`--training.iterations 100`) as a nested dict, before anything is validated.

Overrides are merged into the preset's dict and validated together with it, so that `--size small` fills in
that size's own defaults instead of meeting already filled ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from comastre.config import methods
from comastre.config.older import renamed, renamed_value
from comastre.config.run import METHOD_SETTINGS, RunConfig
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.errors import UserError
from comastre.section import Section
from comastre.text import brief


class UsageError(UserError):
    """The command line itself is wrong."""

    exit_code = 2


@dataclass(frozen=True)
class ConfigField:
    """One leaf of the configuration tree."""

    name: str
    """Full dotted name."""
    annotation: Any
    default: Any
    description: str

    @property
    def section(self) -> str:
        """Dotted name of the section that holds the field; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def choices(self) -> str:
        """The allowed values where they are few, as in '(focal | cross_entropy)'."""
        return f"({' | '.join(map(str, get_args(self.annotation)))})" if get_origin(self.annotation) is Literal else ""


def config_fields(method: str = methods.DEFAULT) -> Iterator[ConfigField]:
    """All fields of a run of `method`: top-level ones first, then section by section, its own among them."""
    spec = methods.find(method)
    below: list[tuple[str, Section]] = []
    for name, field in RunConfig.model_fields.items():
        if name == METHOD_SETTINGS:
            below.append((spec.section_name, spec.config()))
        elif isinstance(field.default, Section):
            below.append((name, field.default))
        else:
            yield _field(name, field, field.get_default(call_default_factory=True))
    for name, section in below:
        yield from _fields_of(section, f"{name}.")


def _fields_of(section: Section, prefix: str) -> Iterator[ConfigField]:
    """Fields of a section whose values are the defaults."""
    below: list[tuple[str, Section]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            below.append((f"{prefix}{name}", value))
        else:
            yield _field(f"{prefix}{name}", field, value)
    for name, inner in below:
        yield from _fields_of(inner, f"{name}.")


def _field(name: str, field: FieldInfo, default: Any) -> ConfigField:
    # pydantic moves constraints out of `Annotated[...]`, so the annotation is the bare type.
    return ConfigField(name, field.annotation, default, field.description or "")


def closest(name: str, known: Sequence[str]) -> list[str]:
    """Up to three known dotted names that look like `name`, compared in full and by their last parts."""
    parts = name.count(".") + 1
    by_tail = {".".join(full.split(".")[-parts:]): full for full in reversed(known)}
    near = [by_tail[tail] for tail in difflib.get_close_matches(name, by_tail, n=3, cutoff=0.6)]
    near += difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return list(dict.fromkeys(near))[:3]


def suggestion(name: str, known: Sequence[str]) -> str:
    """A half sentence with the names a user may have meant."""
    near = closest(name, known)
    return f"did you mean {' or '.join(near)}?" if near else "`comastre train --help` lists all fields"


def find_field(name: str, method: str = methods.DEFAULT, part: str = "") -> ConfigField:
    """The field with this dotted name, of which leading sections may be left out where that is unique.

    Of several, the one in the `part` of a method's section is meant where there is one.
    """
    fields = {field.name: field for field in config_fields(method)}
    wanted = name.replace("-", "_")
    for asked in filter(None, (wanted, renamed(wanted))):
        if asked in fields:
            return fields[asked]
        matches = [full for full in fields if full.endswith(f".{asked}")]
        matches = [full for full in matches if full.endswith(f".{part}.{asked}")] or matches
        if len(matches) == 1:
            return fields[matches[0]]
        if matches:
            raise UsageError(
                f"--{name} could mean {', '.join(f'--{match}' for match in matches)}: write one of them in full"
            )
    others = [spec.name for spec in methods.methods().values() if spec.section_name == wanted.partition(".")[0]]
    if others and method not in others:
        raise UsageError(f"--{name} is a field of the method {others[0]}, but the method is {method}")
    raise UsageError(f"there is no field --{name}: {suggestion(wanted, list(fields))}")


def _kinds(annotation: Any) -> set[Any]:
    """The types and literal values that an annotation such as `tuple[int, ...] | None` is made of."""
    arguments = get_args(annotation)
    for whole in (tuple, dict):
        if annotation is whole or get_origin(annotation) is whole:
            return {whole}
    return set().union(*map(_kinds, arguments)) if arguments else {annotation}


def parse_value(text: str, field: ConfigField) -> Any:
    """The YAML value of `text`; text fields keep the text, tuples may be written as `a,b`."""
    kinds = _kinds(field.annotation)
    if tuple in kinds and "," in text and not text.lstrip().startswith("["):
        text = f"[{text}]"
    try:
        value = parse_yaml(text)
    except NotYaml:
        if str in kinds:
            return text
        raise UsageError(f"--{field.name} got {brief(text)}, which cannot be read as a value") from None
    wants_text = str in kinds or any(isinstance(kind, str) for kind in kinds)
    # A folder called 2024 or a setting 15-5 is text, whatever YAML takes it for.
    return text if wants_text and value is not None and not isinstance(value, str) else value


def named_method(arguments: Sequence[str]) -> str | None:
    """The value of `--method` among the arguments."""
    for place, argument in enumerate(arguments):
        if argument == "--method" and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith("--method="):
            return argument.removeprefix("--method=")
    return None


def split_overrides(
    arguments: Sequence[str], own_options: Sequence[str], method: str | None = None, part: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Overrides among the arguments as a nested dict, and the arguments that are not overrides.

    `own_options` are the verb's own options (without dashes), which are left alone together with their values. The
    fields are those of the method that the arguments name, else of `method`; `part` as in `find_field`.
    """
    method = named_method(arguments) or method or methods.DEFAULT
    overrides: dict[str, Any] = {}
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name.replace("_", "-") in own_options:
            rest.append(argument)
            continue
        field = find_field(name, method, part)
        if not equals:
            has_value = bool(waiting) and not waiting[0].startswith("--")
            if not has_value and field.annotation is not bool:
                raise UsageError(f"--{name} needs a value, as in --{name} {field.default}")
            text = waiting.pop(0) if has_value else "true"
        _put(overrides, field.name, parse_value(renamed_value(name, text), field))
    return overrides, rest


def _put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, leaf = dotted.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[leaf] = value
