"""What a lesson brought: the value that `learn` gives, and the file that survives a kill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from comastre.bundle import store
from comastre.class_table import ClassTable
from comastre.documents import json_bytes, read_json
from comastre.evaluation.disagreement import ClassAgreement
from comastre.evaluation.results import ClassErrors
from comastre.learning import directory
from comastre.learning.comparing import Sight
from comastre.learning.gate import ClassChange, Decision
from comastre.learning.verdict import ClassVerdict, nothing_learned
from comastre.prediction.model import Model
from comastre.text import shortened
from comastre.training.checkpoint import write_atomically

DONE, NOTHING_LEARNED, REFUSED = 0, 1, 3


@dataclass(frozen=True)
class Learned:
    """What a lesson brought; scores are IoU in percent by class name, None where a class can't be scored."""

    path: Path
    """The new bundle."""
    classes: ClassTable
    new_classes: tuple[str, ...]
    scores: Mapping[str, float | None]
    """Of the classes that the data labels, on its held-out part or on `val`."""
    old_before: Mapping[str, float | None]
    """On `old_val`: the old model; empty without `old_val`."""
    old_after: Mapping[str, float | None]
    """On `old_val`: the new model."""
    verdicts: tuple[ClassVerdict, ...]
    """On every new class."""
    changes: tuple[ClassChange, ...]
    """Every class before and after."""
    decision: Decision
    """Of the gate."""
    work: Path
    """The folder of the training, with its logs and pictures."""
    compared: int
    """Images on which the models were compared without labels."""
    chosen: str = ""
    """`instant` or `trained`: which of the two models was handed over; empty where there was one."""
    why: str = ""
    """That one, in a sentence."""
    largest_change: float | None = None
    """Of any old score on these images, where an exact guarantee was asked for."""
    trained: bool = True
    """Whether anything was trained; False after one look alone."""
    aside: Path | None = None
    """The trained model, where the instant one was handed over because nobody could tell what training had done."""

    @property
    def model(self) -> Model:
        """The new model, loaded from its bundle."""
        return Model(store.load(self.path))

    @property
    def refused(self) -> bool:
        """Whether the gate refused the model, which then lies aside."""
        return self.decision.refused

    @property
    def exit_code(self) -> int:
        """Of the command: 0 done, 1 nothing was learned, 3 the gate refused the model."""
        if self.refused:
            return REFUSED
        return NOTHING_LEARNED if nothing_learned(self.verdicts) else DONE

    def __repr__(self) -> str:
        what = f"Learned {shortened(self.new_classes)}" if self.new_classes else "Practised"
        lines = [f"{what}: {len(self.classes.names)} classes in {self.path}"]
        scored = [f"{name} {score:.1f}" for name, score in self.scores.items() if score is not None]
        lines += [f"IoU in %: {shortened(scored)}"] if scored else []
        if self.decision.kept is not None:
            what = "old classes' mean IoU" if self.decision.measure == "scores" else "old classes' pixels"
            refused = ": refused" if self.refused else ""
            lines.append(f"kept {self.decision.kept:.0f} % of the {what}{refused}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Outcome:
    """What a lesson measured, kept beside its settings: a kill after the model was written must not cost it."""

    scores: Mapping[str, float | None]
    """Of the new model, on the held-out part or on the data for scoring."""
    before: Mapping[str, float | None]
    """Of the old model, there."""
    old_before: Mapping[str, float | None]
    """On data of old classes: the old model."""
    old_after: Mapping[str, float | None]
    """The same: the new model."""
    delivered: bool = False
    """Whether the new model was written where the user wanted it, or aside."""
    errors: Mapping[str, ClassErrors] = field(default_factory=dict)
    """Where the true masks of new classes got lost."""
    alpha: float | None = None
    """Objectness above which proposals are recognised."""
    shown: Mapping[str, int] = field(default_factory=dict)
    """Images of the data of old classes that show each."""
    agreement: tuple[ClassAgreement, ...] = ()
    """Of every old class, without labels."""
    compared: int = 0
    """Images on which that was measured."""
    sights: tuple[Sight, ...] = ()
    """These images."""
    chosen: Literal["", "instant", "trained"] = ""
    """Which of two models it is of; empty where there was one."""
    why: str = ""
    """That one, in a sentence."""
    largest_change: float | None = None
    """Of any old score, where an exact guarantee was asked for."""
    scored_on: Mapping[str, str | None] = field(default_factory=dict)
    """Which images all this was measured on, by the option that names them; empty in files of earlier versions."""

    def write(self, work: Path) -> None:
        write_atomically(work / directory.OUTCOME, json_bytes(asdict(self)))


def outcome_of(work: Path) -> Outcome | None:
    """What a finished lesson measured; None where it is not finished, or its file is no longer whole."""
    try:
        content = read_json(work / directory.OUTCOME)
        return TypeAdapter(Outcome).validate_python(content)
    except (OSError, ValueError):
        return None
