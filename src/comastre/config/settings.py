"""Where a run's configuration comes from: presets, YAML files and overrides; how it is written and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from comastre.config.overrides import config_fields, suggestion
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.section import merge

# Keys of a YAML file that describe the file itself and are not configuration.
_FILE_KEYS = ("about", "needs", "base")


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a name given twice, of which YAML would silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class Preset:
    """A named configuration that comes with the package."""

    name: str
    about: str
    needs: str


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


def read_settings(source: str | Path) -> dict[str, Any]:
    """The nested settings of a preset or YAML file with its bases merged in, not yet validated."""
    return _read(str(source), Path.cwd(), ())


def load_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """The configuration of a preset or YAML file with overrides laid over it."""
    return validate(merge(read_settings(source), overrides or {}), str(source))


def validate(settings: Mapping[str, Any], origin: str) -> RunConfig:
    """The typed configuration, or one sentence that names the field, its value and what is allowed."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{origin}: {explain(error)}") from error


def explain(error: ValidationError) -> str:
    """The first thing that pydantic found wrong, as one sentence."""
    problems = error.errors()
    first = problems[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        sentence = f"there is no field {field}: {suggestion(field, [known.name for known in config_fields()])}"
    elif kind == "value_error":
        # Our own checks of several fields together: they already say everything.
        sentence = f"{field}: {message.removeprefix('Value error, ')}".removeprefix(": ")
    elif kind == "model_type":
        sentence = f"{field or 'it'} is {_short(first['input'])} but must be a section with fields of its own"
    elif kind == "missing":
        sentence = f"{field} is missing"
    else:
        allowed = message.replace("Input should be", "must be")
        sentence = f"{field} is {_short(first['input'])} but {allowed[0].lower()}{allowed[1:]}"
    more = len(problems) - 1
    return sentence + (f" (and {more} more {'problem' if more == 1 else 'problems'})" if more else "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def dump_yaml(config: RunConfig) -> str:
    """The whole configuration as YAML, every field written out."""
    # JSON mode turns tuples into lists, which YAML writes plainly.
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def write_config(config: RunConfig, path: Path) -> None:
    """Write `config.yaml`: all or nothing, so that a killed run never leaves half a file."""
    write_whole(path, dump_yaml(config).encode())


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Readable lines `field: old -> new` for every field that differs."""
    before, after = _flatten(old.model_dump()), _flatten(new.model_dump())
    return [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _preset_text(name: str) -> str:
    return resources.files("comastre.config").joinpath("presets", f"{name}.yaml").read_text(encoding="utf-8")


def _read(source: str, folder: Path, chain: tuple[str, ...]) -> dict[str, Any]:
    """Settings of `source`, a preset's name or a file relative to `folder`; `chain` is who led here through `base`."""
    if source in preset_names():
        identity, origin, text = source, f"preset {source}", _preset_text(source)
    else:
        path = folder / Path(source).expanduser()
        identity, origin, text, folder = str(path.resolve()), source, _file_text(path, source), path.parent
    if identity in chain:
        raise UserError(f"{origin}: its base leads back to itself; remove one of the `base:` lines")
    content = _parse(text, origin)
    settings = {name: value for name, value in content.items() if name not in _FILE_KEYS}
    if content.get("base") is None:
        return settings
    return merge(_read(str(content["base"]), folder, (*chain, identity)), settings)


def _file_text(path: Path, source: str) -> str:
    if path.is_dir():
        raise UserError(f"{source} is a folder: give a YAML file or one of the presets that `comastre presets` lists")
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = suggestion(source, preset_names())
        hint = near if near.startswith("did you mean") else "`comastre presets` lists the presets"
        raise UserError(f"{source} is neither a preset nor a file: {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{source} cannot be read as text: {error}") from None


def _parse(text: str, origin: str) -> dict[str, Any]:
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise UserError(f"{origin} is not valid YAML{line}: {getattr(error, 'problem', None) or error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UserError(f"{origin} must hold `section: {{field: value}}` lines, but holds {type(content).__name__}")
    return content
