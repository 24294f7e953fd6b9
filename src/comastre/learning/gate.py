"""The gate of a lesson: what became of every class, and whether enough of the old ones is kept to hand the model over.

The rule: docs/specification.md, The gate of a lesson.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from comastre.errors import UserError
from comastre.evaluation.disagreement import ClassAgreement
from comastre.text import brief

# What good lessons and fine-tuning keep by either measure: docs/experiments.md, The gate.
SCORES_KEPT, PIXELS_KEPT = 90.0, 60.0
"""Percent that must be kept where nobody says how much: of the old classes' mean IoU where there is data to score
them on, else of the pixels that the old model gave to them."""
WEAKEST = 0.5
"""Of that, what every single class must keep: a mean hides a class that is gone."""
FEWEST_IMAGES = 5
"""In which a class is seen, for it to be judged alone."""
KNOWN = 10.0
"""IoU in percent from which on a class counts as known, so that it can be lost, and as learned."""


@dataclass(frozen=True)
class ClassChange:
    """One class before and after a lesson, by whatever could be measured."""

    name: str
    new: bool
    before: float | None = None
    """IoU in percent of the old model; None where there is nothing to score it on."""
    after: float | None = None
    where: str = ""
    """What both were scored on."""
    shown: int = 0
    """Images of data of old classes in which the class is; 0 where it was not scored there."""
    agreement: ClassAgreement | None = None
    """Without labels: what became of the pixels that the old model called so."""

    @property
    def kept_score(self) -> float | None:
        """Percent of its IoU; None where it was not known."""
        if self.before is None or self.after is None or self.before < KNOWN:
            return None
        return 100.0 * self.after / self.before

    @property
    def scored_on_old(self) -> bool:
        """Whether data of old classes gave it a score, before and after."""
        return self.shown > 0 and self.before is not None and self.after is not None

    @property
    def judged_alone(self) -> bool:
        """Whether enough images show the class, by labels or by what the old model sees, to tell its fate."""
        seen = self.agreement.images if self.agreement is not None else 0
        return max(seen, self.shown if self.scored_on_old else 0) >= FEWEST_IMAGES

    @property
    def kept_pixels(self) -> float | None:
        return None if self.agreement is None else self.agreement.kept_share


@dataclass(frozen=True)
class Decision:
    """What the gate says."""

    measure: Literal["scores", "pixels", "nothing"]
    kept: float | None
    """Percent, mean over old classes; None where nothing could be measured."""
    asked: float
    """Percent; 0 switches the gate off."""
    lost: tuple[str, ...]
    """Old classes that kept less than half of what is asked."""
    judged: tuple[int, int] = (0, 0)
    """By pixels: classes that the old model sees often enough to be judged alone, of all that it sees."""
    unscored: Decision | None = None
    """By scores: what the pixels say of the old classes that have no score; None where they say nothing."""
    unknown: bool = False
    """Whether there is data of old classes, on which the old model scores 0 throughout."""
    doubt: float = 0.0
    """Points that may be missing by chance, where every class is seen in a few images only and nobody said how much
    must be kept."""

    @property
    def refused(self) -> bool:
        if self.unscored is not None and self.unscored.refused:
            return True
        return self.asked > 0 and (bool(self.lost) or (self.kept is not None and self.kept + self.doubt < self.asked))

    @property
    def doubted(self) -> bool:
        """Whether less than what is asked was found, by too few images to refuse the model for it."""
        return not self.refused and self.kept is not None and self.kept < self.asked


def decide(changes: Sequence[ClassChange], scored_on_old: bool, keep: float | None) -> Decision:
    """Judge the old classes by scores where there is data for them (`scored_on_old`), else by pixels.

    That data may label some of them only, and the old model may know none of what it shows: whatever has no score is
    judged by pixels as if there was no such data. `keep` is the percentage that must be kept; None for the usual one.
    """
    old = [change for change in changes if not change.new]
    scored = [change for change in old if change.scored_on_old] if scored_on_old else []
    before, after = (sum(getattr(change, when) for change in scored) for when in ("before", "after"))
    if not before > 0:
        return replace(_by_pixels(old, keep), unknown=bool(scored))
    asked = SCORES_KEPT if keep is None else keep
    judged = {change.name: change.kept_score for change in scored if change.shown >= FEWEST_IMAGES}
    others = _by_pixels([change for change in old if not change.scored_on_old], keep)
    unscored = others if others.kept is not None else None
    return Decision("scores", 100.0 * after / before, asked, _lost(judged, asked), unscored=unscored)


def _by_pixels(old: Sequence[ClassChange], keep: float | None) -> Decision:
    asked = PIXELS_KEPT if keep is None else keep
    found = [change.agreement for change in old if change.agreement is not None and change.agreement.pixels]
    often = [each for each in found if each.images >= FEWEST_IMAGES]
    kept, doubt = None, 0.0
    if often:
        kept = fmean(each.kept_share or 0.0 for each in often)
    elif sightings := sum(each.images for each in found):
        # Each class is rare, and together they still say something: every image in which one is seen says as much, so
        # that one large object does not decide.
        kept = sum(each.images * (each.kept_share or 0.0) for each in found) / sightings
        doubt = _by_chance(kept, sightings) if keep is None else 0.0
    # Gone is what few images show any more: one large object that was misnamed has most of a rare class's pixels.
    judged = {each.name: max(each.kept_share or 0.0, each.kept or 0.0) for each in often}
    measure: Literal["pixels", "nothing"] = "pixels" if kept is not None else "nothing"
    return Decision(measure, kept, asked, _lost(judged, asked), (len(often), len(found)), doubt=doubt)


def _by_chance(percent: float, images: int) -> float:
    """Points by which a percentage of so few images may be too low.

    Of all shares that could have given it, none likelier than another before: their mean and one standard deviation.
    """
    mean = (images * percent / 100 + 1) / (images + 2)  # of the Beta distribution that is left
    return max(0.0, 100 * (mean + math.sqrt(mean * (1 - mean) / (images + 3))) - percent)


def worst(changes: Sequence[ClassChange], decision: Decision) -> ClassChange | None:
    """The old class that lost most by the measure that it was judged by; None where none lost anything."""
    found: ClassChange | None = None
    least = math.inf
    for change in changes:
        share = None if change.new else change.kept_score if by_score(change, decision) else change.kept_pixels
        if share is None or share >= 99.5:
            continue
        # Pixels flicker where scores stand still: a share counts against what is usually asked of its measure.
        share /= SCORES_KEPT if by_score(change, decision) else PIXELS_KEPT
        if share < least:
            found, least = change, share
    return found


def by_score(change: ClassChange, decision: Decision) -> bool:
    """Whether the decision on an old class goes by its score, not by its pixels."""
    return decision.measure == "scores" and change.scored_on_old


def read_keep(given: Any) -> float | None:
    """The percentage in '95%', '95' or 95; None where it is not given."""
    if given is None:
        return None
    try:
        share = float(str(given).strip().removesuffix("%"))
    except ValueError:
        share = -1.0
    if isinstance(given, bool) or not 0 <= share <= 100:
        raise UserError(f"--keep is {brief(given)} but must be a percentage such as 95%, or 0 to switch the gate off")
    return share


def _lost(kept: Mapping[str, float | None], asked: float) -> tuple[str, ...]:
    return tuple(name for name, share in kept.items() if share is not None and share < WEAKEST * asked)
