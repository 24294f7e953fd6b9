"""What a study found, and its file `study.json`: small, and everything that tables and the report need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comastre.config.conventions import CONVENTIONS
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.studies.directory import STUDY

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
    alike: Mapping[str, Any] = field(default_factory=dict)
    """Those that all rows share: a row that is added later is compared with them."""
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


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
