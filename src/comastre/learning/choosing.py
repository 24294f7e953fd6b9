"""Which of two models of a lesson is handed over: the one that looked once, or the one that was trained.

The rule: docs/specification.md, The gate of a lesson (Seconds first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    def points(self) -> float:
        return (self.new or 0.0) + (self.kept or 0.0)

    @property
    def words(self) -> str:
        parts = [f"new classes {self.new:.1f}"] if self.new is not None else []
        parts += [f"kept {self.kept:.1f}"] if self.kept is not None else []
        return " + ".join(parts) if len(parts) < 2 else f"{' + '.join(parts)} = {self.points:.1f}"


def instant_is_better(instant: Standing, trained: Standing) -> tuple[bool, str]:
    """Whether the model of one look is handed over, and why, in a sentence."""
    for good, bad, which in ((instant, trained, True), (trained, instant, False)):
        other = "the trained one" if which else "the instant one"
        if good.passes and not bad.passes:
            return which, f"{other} forgot too much for the gate"
        if good.passes == bad.passes and bad.failed and not good.failed:
            return which, f"{other} learned nothing"
    if trained.blind:
        few, old = trained.judged
        return True, (
            f"one look moves nothing old, and what training did to {old - few} of {old} old classes cannot be told by "
            "these images; it can with --fresh and --unlabelled FOLDER, or --old-val DATA, of images that show them"
        )
    if instant.new is None or trained.new is None:
        return False, "no image was left to score the new classes on; give --val DATA that shows them, to choose by it"
    if instant.points > trained.points:
        return True, f"{instant.words}, against {trained.words} of the trained one"
    return False, f"{trained.words}, against {instant.words} of the instant one"
