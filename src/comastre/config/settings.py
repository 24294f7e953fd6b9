"""Where a run's configuration comes from: presets, YAML files and overrides; how it is written and compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from comastre.config import methods
from comastre.config.older import upgraded
from comastre.config.overrides import config_fields, suggestion
from comastre.config.run import RunConfig
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.paths import user_path
from comastre.section import merge
from comastre.text import brief

# Keys of a YAML file that describe the file itself and are not configuration.
_FILE_KEYS = ("about", "needs", "base")


@dataclass(frozen=True)
class Preset:
    """A named configuration that comes with the package."""

    name: str
    about: str
    needs: str


@dataclass(frozen=True)
class _Layer:
    """What one file says; the layers of a source lie over one another, its base first."""

    preset: str | None
    """Its name, where it is a preset: a method may have a part of its own to lay over it."""
    settings: Mapping[str, Any]


@lru_cache(maxsize=1)
def preset_names() -> list[str]:
    """Names of all presets that come with the package, those without a download first."""
    files = resources.files("comastre.config").joinpath("presets").iterdir()
    names = [file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml")]
    return sorted(names, key=lambda name: (not name.startswith(("demo", "shapes")), name))


def presets() -> list[Preset]:
    """All presets with what they are and what they need."""
    found = []
    for name in preset_names():
        content = _parse(_preset_text(name), f"preset {name}")
        found.append(Preset(name, str(content.get("about", "")), str(content.get("needs", ""))))
    return found


def read_settings(source: str | Path, method: str | None = None) -> dict[str, Any]:
    """The nested settings of a preset or YAML file for a method, with its bases merged in, not yet validated.

    A preset holds what all methods share on a setting; over it lies the method's own part, where it has one. Without
    `method` it is the one that the source names.
    """
    layers = _read(str(source), Path.cwd(), ())
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer.settings)
    named = method or str(merged.get("method", methods.DEFAULT))
    spec = methods.find(named)
    settings: dict[str, Any] = {}
    parts = {layer.preset: _part_of(spec, layer.preset) for layer in layers if layer.preset is not None}
    if spec.needs_values and parts and not any(parts.values()):
        raise UserError(
            f"the preset {list(parts)[-1]} has no values for the method {named}: "
            f"choose one that has, such as {_with_values(spec)}, or give all settings in a YAML file of your own"
        )
    for layer in layers:
        settings = merge(settings, upgraded(layer.settings, spec.section_name))
        if layer.preset is not None:
            settings = merge(settings, parts[layer.preset])
    return settings | {"method": named}


def load_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a preset or YAML file with overrides laid over it."""
    overrides = overrides or {}
    method = overrides.get("method")
    settings = read_settings(source, None if method is None else str(method))
    section = methods.find(settings["method"]).section_name
    return validate(merge(settings, upgraded(overrides, section)), str(source))


def validate(settings: Mapping[str, Any], origin: str) -> RunConfig:
    """The typed configuration, or one sentence that names the field, its value and what is allowed."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error, str(settings.get('method', methods.DEFAULT)))}") from error


def explain(error: ValidationError, method: str = methods.DEFAULT) -> str:
    """The first thing that pydantic found wrong, as one sentence."""
    problems = error.errors()
    first = problems[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        sentence = f"there is no field {field}: {_hint(field, method)}"
    elif kind == "value_error":
        # Our own checks of several fields together: they already say everything.
        sentence = f"{field}: {message.removeprefix('Value error, ')}".removeprefix(": ")
    elif kind == "model_type":
        sentence = f"{field or 'it'} is {brief(first['input'], 80)} but must be a section with fields of its own"
    elif kind == "missing":
        sentence = f"{field} is missing"
    else:
        allowed = message.replace("Input should be", "must be")
        sentence = f"{field} is {brief(first['input'], 80)} but {allowed[0].lower()}{allowed[1:]}"
    more = len(problems) - 1
    return sentence + (f" (and {more} more {'problem' if more == 1 else 'problems'})" if more else "")


def _hint(field: str, method: str) -> str:
    others = [spec.name for spec in methods.methods().values() if spec.section_name == field.partition(".")[0]]
    if others and method not in others:
        return f"it is a field of the method {others[0]}, but the method is {method}"
    return suggestion(field, [known.name for known in config_fields(method)])


def dump_yaml(config: RunConfig) -> str:
    """The whole configuration as YAML, every field written out."""
    # JSON mode turns tuples into lists, which YAML writes plainly.
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def write_config(config: RunConfig, path: Path) -> None:
    """Write `config.yaml`: all or nothing, so that a killed run never leaves half a file."""
    write_whole(path, dump_yaml(config).encode())


@dataclass(frozen=True)
class Difference:
    """A field that two configurations have with different values; None where one of them does not have it."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.old} -> {self.new}"


def differences(old: RunConfig, new: RunConfig) -> list[Difference]:
    """Every field that differs, in the order of the configuration."""
    before, after = flatten(old.model_dump()), flatten(new.model_dump())
    names = dict.fromkeys([*before, *after])
    return [
        Difference(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)
    ]


def listed(found: Iterable[Difference]) -> str:
    """Differences in one line."""
    return "; ".join(map(str, found))


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `section.field: value`."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _preset_text(name: str) -> str:
    return resources.files("comastre.config").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")


def _part_of(spec: methods.MethodSpec, preset: str) -> dict[str, Any]:
    """What a method lays over a preset; nothing where it has no part for it."""
    part: dict[str, Any] = {}
    for package in spec.preset_packages:
        file = resources.files(package).joinpath(f"{preset}.yaml")
        if file.is_file():
            origin = f"the part of {spec.name} in the preset {preset}"
            part = merge(part, _parse(file.read_text(encoding="utf-8"), origin))
    return part


def _with_values(spec: methods.MethodSpec) -> str:
    return ", ".join(name for name in preset_names() if _part_of(spec, name))


def _read(source: str, folder: Path, chain: tuple[str, ...]) -> list[_Layer]:
    """Layers of `source`, a preset's name or a file relative to `folder`; `chain`: sources whose `base` led here."""
    preset = source if source in preset_names() else None
    if preset is not None:
        identity, origin, text = source, f"preset {source}", _preset_text(source)
    else:
        path = folder / user_path(source)
        identity, origin, text, folder = str(path.resolve()), source, _file_text(path, source), path.parent
    if identity in chain:
        raise UserError(f"{origin}: its base leads back to itself; remove one of the `base:` lines")
    content = _parse(text, origin)
    own = _Layer(preset, {name: value for name, value in content.items() if name not in _FILE_KEYS})
    if content.get("base") is None:
        return [own]
    return [*_read(str(content["base"]), folder, (*chain, identity)), own]


def _file_text(path: Path, source: str) -> str:
    if path.is_dir():
        raise UserError(f"{source} is a folder: give a YAML file or one of the presets that `comastre presets` lists")
    try:
        return text_of(path)
    except FileNotFoundError:
        near = suggestion(source, preset_names())
        hint = near if near.startswith("did you mean") else "`comastre presets` lists the presets"
        raise UserError(f"{source} is neither a preset nor a file: {hint}") from None
    except (OSError, Unreadable) as error:
        raise UserError(f"{source} cannot be read as text: {error}") from None


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        content = parse_yaml(text)
    except NotYaml as error:
        raise UserError(f"{origin} is not valid YAML{error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError(f"{origin} must hold `section: {{field: value}}` lines, but holds {type(content).__name__}")
    return content
