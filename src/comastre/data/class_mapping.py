"""What the classes of data are to a model that is scored on them, by name or by the user's map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.class_table import ClassTable
from comastre.config.yaml_text import NotYaml, parse_yaml
from comastre.data.dataset import IGNORE
from comastre.data.names import nearest, twin_of
from comastre.documents import Unreadable, text_of
from comastre.errors import UserError
from comastre.text import shortened

LEFT_OUT = "ignore"
"""What a map says of a class whose pixels are not scored."""
ClassMap = Mapping[str, str | None]


@dataclass(frozen=True)
class ClassMapping:
    """The classes of data as labels of a model."""

    labels: tuple[int, ...]
    """Of data ids 1, 2, ...: 0 background, k + 1 class k, one more than the model has for a class it does not know."""
    same: Mapping[str, str]
    """Data class -> model class."""
    unknown: tuple[str, ...]
    """Classes of the data that the model does not know: background to it, or ignored, as the convention says."""
    left_out: tuple[str, ...]
    """Classes of the data whose pixels are not scored."""
    missing: tuple[str, ...]
    """Classes of the model that the data does not have, so that they cannot be scored."""

    def unscored(self, model_names: Sequence[str]) -> frozenset[int]:
        """Labels of the missing classes."""
        return frozenset(model_names.index(name) + 1 for name in self.missing)


def map_classes(data_names: Sequence[str], classes: ClassTable, given: ClassMap | None = None) -> ClassMapping:
    """Match the data's classes with the model's: as the map says, else by equal names."""
    given = given or {}
    _check_map(given, data_names, classes)
    labels: list[int] = []
    same: dict[str, str] = {}
    unknown: list[str] = []
    left_out: list[str] = []
    for name in data_names:
        target = given.get(name, name)
        if target in classes.names:
            labels.append(classes.names.index(target) + 1)
            same[name] = target
        elif target is None or name not in given:
            if name not in given:
                _refuse_similar(name, classes.names)
            labels.append(len(classes.names) + 1)
            unknown.append(name)
        elif target == classes.background:
            labels.append(0)
        else:
            labels.append(IGNORE)
            left_out.append(name)
    if not same:
        near = [(name, hint) for name in data_names if (hint := nearest(name, classes.names))]
        example = near[0] if near else (data_names[0], classes.names[0])
        raise UserError(
            f"none of the data's classes ({shortened(data_names)}) is a class of the model "
            f"({shortened(classes.names)}): give --map FILE with lines such as `{example[0]}: {example[1]}`"
        )
    missing = tuple(name for name in classes.names if name not in same.values())
    return ClassMapping(tuple(labels), same, tuple(unknown), tuple(left_out), missing)


def read_map(path: Path) -> dict[str, str | None]:
    """The map of a YAML or JSON file: data class -> model class, null (not known to the model) or `ignore`."""
    try:
        content = parse_yaml(text_of(path), as_text=True)  # a class may be called `no` or 7
    except NotYaml as error:
        raise UserError(f"--map {path} is neither YAML nor JSON{error}") from None
    except (OSError, Unreadable) as error:
        raise UserError(f"--map {path} cannot be read: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise UserError(f"--map {path} must hold lines such as `cat: dog`: a class of the data, a class of the model")
    return {name: None if value.lower() in ("null", "~", "") else value for name, value in content.items()}


def _check_map(given: ClassMap, data_names: Sequence[str], classes: ClassTable) -> None:
    for name, target in given.items():
        if name not in data_names:
            raise UserError(f"--map names {name!r}, which is not a class of the data: {_meant(name, data_names)}")
        if target is not None and target not in (*classes.names, classes.background, LEFT_OUT):
            raise UserError(
                f"--map says {name}: {target}, but {target!r} is not a class of the model: "
                f"{_meant(target, classes.names)} (or {classes.background}, null or {LEFT_OUT})"
            )


def _refuse_similar(name: str, known: Sequence[str]) -> None:
    twin = twin_of(name, known)
    if twin is not None:
        raise UserError(
            f"the data's class {name!r} looks like the model's {twin!r}: give --map FILE with the line "
            f"`{name}: {twin}` if they are one class, or `{name}: null` if not"
        )


def _meant(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f"did you mean {near}?" if near else f"it has {shortened(known)}"
