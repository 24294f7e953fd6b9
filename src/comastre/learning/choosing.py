"""Which of two models of a lesson is handed over: the one that looked once, or the one that was trained.

The rule: docs/specification.md, The gate of a lesson (Seconds first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from comastre.learning.gate import ClassChange, Decision
from comastre.learning.verdict import ClassVerdict, nothing_learned

FLICKER = 80.0
"""Percent of pixels that kept their name from which on a model counts as one that lost nothing: without any loss by
scores a lesson gives another name to 15 to 20 % of them (docs/experiments.md, The gate)."""


ENOUGH_JUDGED = 0.5
"""Share of the old classes that must be seen often enough to be judged, for what training did to them to be known."""


@dataclass(frozen=True)
class Standing:
    """What counts of a model in the choice."""

    passes: bool
    """Whether the gate lets it pass."""
    failed: bool
    """Whether new classes were scored and none of them was learned."""
    new: float | None
    """Mean IoU of the new classes in percent; None where none could be scored."""
    kept: float | None
    """Percent of the old classes by the gate's measure; None where it could not be measured."""
    judged: tuple[int, int] = (0, 0)
    """Old classes of which it is known what became of them, of all."""

    @classmethod
    def of(cls, verdicts: Sequence[ClassVerdict], decision: Decision, changes: Sequence[ClassChange] = ()) -> Standing:
        scores = [verdict.score for verdict in verdicts if verdict.score is not None]
        kept = decision.kept
        if kept is not None and decision.measure == "pixels":
            kept = min(kept, FLICKER)
        new = sum(scores) / len(scores) if scores else None
        old = [change for change in changes if not change.new]
        judged = sum(change.judged_alone for change in old), len(old)
        return cls(not decision.refused, nothing_learned(verdicts), new, kept, judged)

    @property
    def blind(self) -> bool:
        """Whether training may have lost most of the old classes and nobody could tell."""
        return self.judged[0] < ENOUGH_JUDGED * self.judged[1]

    @property
    def settles(self) -> bool:
        """Whether an instant model that stands so is handed over whatever training gives."""
        return self.passes and not self.failed and self.blind

    @property
    def untold(self) -> str:
        """Of which old classes nobody can tell what training did to them."""
        judged, old = self.judged
        return f"{old - judged} of {old} old classes"

    @property
    def points(self) -> float:
        return (self.new or 0.0) + (self.kept or 0.0)

    @property
    def words(self) -> str:
        parts = [f"new classes {self.new:.1f}"] if self.new is not None else []
        parts += [f"kept {self.kept:.1f}"] if self.kept is not None else []
        return " + ".join(parts) if len(parts) < 2 else f"{' + '.join(parts)} = {self.points:.1f}"


class Choice(NamedTuple):
    """Which of two models is handed over."""

    instant: bool
    """Whether it is the one of one look."""
    why: str
    """In a sentence."""
    untold: bool = False
    """Whether it is so only because nobody could tell what training did."""


def choose_of_two(instant: Standing, trained: Standing) -> Choice:
    """Which of two models is handed over, and why."""
    for good, bad, which in ((instant, trained, True), (trained, instant, False)):
        other = "the trained one" if which else "the instant one"
        if good.passes and not bad.passes:
            return Choice(which, f"{other} forgot too much for the gate")
        if good.passes == bad.passes and bad.failed and not good.failed:
            return Choice(which, f"{other} learned nothing")
    if trained.blind:
        why = f"one look moves nothing old, and what training did to {trained.untold} cannot be told by these images"
        return Choice(True, why, untold=True)
    if instant.new is None or trained.new is None:
        why = "no image was left to score the new classes on; give --val DATA that shows them, to choose by it"
        return Choice(False, why)
    if instant.points > trained.points:
        return Choice(True, f"{instant.words}, against {trained.words} of the trained one")
    return Choice(False, f"{trained.words}, against {instant.words} of the instant one")
