"""What a run scored, step by step, and its file `results.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from comastre.config.conventions import CONVENTIONS, PAPER
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.evaluation.recall import Recall
from comastre.evaluation.scores import Miou, average, forgetting
from comastre.files import write_whole

VERSION = 1
BACKGROUND = "background"
KEPT = "no_background_in_base"
"""The convention by which is said how much of the base classes is kept."""


@dataclass(frozen=True)
class ClassErrors:
    """How many true masks of a class got how far; `ErrorSplit` says what each means."""

    not_proposed: int
    below_alpha: int
    wrong_class: int
    right: int


@dataclass(frozen=True)
class StepResult:
    """Scores after one step, in percent; mappings go by class name, None where a class can't be scored."""

    step: int
    new_classes: tuple[str, ...]
    images: int
    """Training images of the step."""
    conventions: Mapping[str, Miou]
    """Scores under every convention."""
    per_class: Mapping[str, float | None]
    """IoU of background and of every class learned so far, with future classes as background."""
    recall: Recall | None
    """Of true masks by proposals; None of a model that proposes no masks, which has no errors split by them either."""
    recall_per_class: Mapping[str, Recall] = field(default_factory=dict)
    later_recall: Recall | None = None
    """Of true masks of classes that later steps learn; None where there are none, in files of earlier versions too."""
    later_recall_per_class: Mapping[str, Recall] = field(default_factory=dict)
    errors: Mapping[str, ClassErrors] = field(default_factory=dict)
    alpha: float | None = None
    """Objectness above which proposals are recognised; None without proposals, and in files of earlier versions."""
    task_confusion: tuple[tuple[int, ...], ...] = ()
    """Pixels by true (row) and predicted (column) task, background first."""
    seconds: float = 0.0
    """Wall time of the step."""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.task_confusion) for row in self.task_confusion):
            raise ValueError("task_confusion has rows of other lengths than it has rows")

    @property
    def recognises(self) -> bool:
        """Whether the model names classes; stage 1 alone is scored by recall only."""
        return bool(self.per_class)

    def measures(self) -> dict[str, Any]:
        """What was measured apart from mean IoU, as JSON."""
        return {
            "per_class": dict(self.per_class),
            "recall": None if self.recall is None else asdict(self.recall),
            "recall_per_class": {name: asdict(recall) for name, recall in self.recall_per_class.items()},
            "later_recall": None if self.later_recall is None else asdict(self.later_recall),
            "later_recall_per_class": {name: asdict(recall) for name, recall in self.later_recall_per_class.items()},
            "errors": {name: asdict(errors) for name, errors in self.errors.items()},
            "alpha": self.alpha,
            "task_confusion": [list(row) for row in self.task_confusion],
        }

    def scores(self, convention: str) -> dict[str, float | None]:
        """The headline numbers: mIoU under a convention, or recall where nothing is recognised."""
        if self.recognises or self.recall is None:
            return asdict(self.conventions[convention])
        return {"recall": self.recall.all, "confident_recall": self.recall.confident}

    def summary(self, convention: str) -> str:
        """One line for the screen."""
        parts = []
        if self.recognises:
            miou = self.conventions[convention]
            inc = "" if miou.inc is None else f"new {_shown(miou.inc)}, "
            parts.append(f"mIoU base {_shown(miou.base)}, {inc}all {_shown(miou.all)}")
        if self.recall is not None:
            confident = f"by confident proposals {_shown(self.recall.confident)}"
            parts.append(f"recall of masks {_shown(self.recall.all)}, {confident}")
        if self.later_recall is not None and not math.isnan(self.later_recall.all):
            parts.append(f"of classes not learned yet {_shown(self.later_recall.all)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Results:
    """A whole run; `add` gives the results with one more step."""

    method: str
    dataset: str
    setting: str
    protocol: str
    seed: int
    background: bool
    """Whether label 0 of the dataset is a background class (VOC, Shapes), not void (ADE20K)."""
    class_order: tuple[str, ...]
    """Class names in learning order, without background."""
    tradition: str = "protocol"
    """Where each step's images come from: the protocol's rule, or a fixed partition."""
    convention: str = PAPER
    """The convention that `miou` and `avg` follow."""
    steps: tuple[StepResult, ...] = ()

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise ValueError(f"convention '{self.convention}' is not one of {', '.join(CONVENTIONS)}")
        for position, step in enumerate(self.steps):
            if step.step != position:
                raise ValueError(f"steps[{position}] says that it is step {step.step}")
            if self.convention not in step.conventions:
                raise ValueError(f"steps[{position}] has no scores under the convention '{self.convention}'")

    def add(self, result: StepResult) -> Results:
        """With one more step; a step that is already there, and all after it, are replaced (a step run again)."""
        return replace(self, steps=(*self.steps[: result.step], result))

    @property
    def avg(self) -> float:
        return average([step.conventions[self.convention] for step in self.steps])

    @property
    def kept(self) -> float | None:
        """Percent of the base classes' mean IoU after the first step that is left after the last.

        Without background, whatever the convention: it is most of an image and hardly forgotten, so that it would hide
        what became of the classes. None before the second step, and where there was nothing to keep.
        """
        found = [step.conventions[KEPT].base for step in self.steps if KEPT in step.conventions]
        if len(found) < 2 or not found[0] > 0 or math.isnan(found[-1]):
            return None
        return 100.0 * found[-1] / found[0]

    @property
    def forgetting(self) -> dict[str, float | None]:
        """Per class learned at an earlier step; background is never learned, so it isn't forgotten."""
        history = [{name: value for name, value in step.per_class.items() if name != BACKGROUND} for step in self.steps]
        return forgetting(history)

    def as_json(self) -> dict[str, Any]:
        """The document of `results.json`."""
        names = [name for name in CONVENTIONS if all(name in step.conventions for step in self.steps)]
        document = {
            "version": VERSION,
            "method": self.method,
            "dataset": self.dataset,
            "setting": self.setting,
            "protocol": self.protocol,
            "tradition": self.tradition,
            "seed": self.seed,
            "background": self.background,
            "convention": self.convention,
            "class_order": list(self.class_order),
            "steps": [self._step_as_json(step) for step in self.steps],
            "avg": self.avg,
            "forgetting": self.forgetting,
            "conventions": {
                name: {
                    "steps": [asdict(step.conventions[name]) for step in self.steps],
                    "avg": average([step.conventions[name] for step in self.steps]),
                }
                for name in names
            },
        }
        return without_nan(document)

    def _step_as_json(self, step: StepResult) -> dict[str, Any]:
        return {
            "step": step.step,
            "new_classes": list(step.new_classes),
            "images": step.images,
            "miou": asdict(step.conventions[self.convention]),
            **step.measures(),
            "seconds": step.seconds,
        }

    def write(self, path: str | Path) -> None:
        """Write `results.json` so that a kill or a full disk leaves the old file or the new one, never half of one."""
        path = Path(path)
        text = json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n"
        try:
            write_whole(path, text.encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}; free space or choose another --out.") from error

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read what `write` wrote."""
        path = Path(path)
        try:
            document = read_json(path)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; give the folder of a run.") from error
        except ValueError as error:  # JSON and UTF-8 errors
            raise UserError(f"{path} is not valid JSON ({error}); restore it or run the evaluation again.") from error
        return cls.from_json(document, source=str(path))

    @classmethod
    def from_json(cls, document: Any, source: str = "results.json") -> Results:
        """Results from the document of `results.json`; `source` names it in errors."""
        version = document.get("version") if isinstance(document, dict) else None
        if not isinstance(version, int):
            raise UserError(f"{source} is not a results file: it has no version; give one that comastre wrote.")
        if version > VERSION:
            raise UserError(
                f"{source} has version {version} but this comastre reads up to {VERSION}; upgrade comastre."
            )
        try:
            steps = [_step_with_conventions(document, position) for position in range(len(document["steps"]))]
            return _READER.validate_python({**document, "steps": steps})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            problem = f"{where}: {first['msg']}"
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            problem = f"missing or misplaced {error}"
        raise UserError(f"{source} is malformed ({problem}); restore it or run the evaluation again.")


_READER = TypeAdapter(Results)


def _shown(score: float) -> str:
    return "-" if math.isnan(score) else f"{score:.1f}"


def _step_with_conventions(document: dict[str, Any], position: int) -> dict[str, Any]:
    """One step as `StepResult` has it: its conventions gathered, null scores read back as nan."""
    step = document["steps"][position]
    conventions = {
        name: _nan_for_null(scores["steps"][position], ("base", "all"))
        for name, scores in document["conventions"].items()
    }
    read: dict[str, Any] = {"recall": _recall_or_none(step["recall"])}
    read["later_recall"] = _recall_or_none(step.get("later_recall"))
    for name in ("recall_per_class", "later_recall_per_class"):
        read[name] = {each: _nan_for_null(recall) for each, recall in step.get(name, {}).items()}
    return {**step, "conventions": conventions, **read}


def _recall_or_none(found: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if found is None else _nan_for_null(found)


def _nan_for_null(numbers: dict[str, Any], keys: tuple[str, ...] = ("all", "confident")) -> dict[str, Any]:
    return {name: math.nan if value is None and name in keys else value for name, value in numbers.items()}


def without_nan(value: Any) -> Any:
    """The same JSON value with null for every number that JSON can't hold."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
