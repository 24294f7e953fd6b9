"""What a lesson taught, class by class: learned or not, why not, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from comastre.evaluation.results import ClassErrors
from comastre.learning.gate import KNOWN


@dataclass(frozen=True)
class ClassVerdict:
    """Whether a new class was learned."""

    name: str
    score: float | None
    """IoU in percent; None where no image was left to score it on."""
    reason: str = ""
    """Why it was not learned or not scored; empty where it was, or where no image was left to score it on."""
    advice: str = ""

    @property
    def learned(self) -> bool | None:
        """None where it was not scored."""
        return None if self.score is None else self.score >= KNOWN


@dataclass(frozen=True)
class Place:
    """Names of a command to try next."""

    model: str
    """The new model."""
    data: str
    continues: bool = True
    """Whether the lesson can go on by --continue: a first one and one that practised are followed by practice."""
    parent: str | None = None
    """The model before, where --continue would not find it beside the new one."""
    scoring: str = ""
    """The images that were given for scoring, in words; empty where a part of the data is held out."""

    @property
    def longer(self) -> str:
        goes_on = "--continue " if self.continues else ""
        parent = f" --parent {quote(self.parent)}" if self.continues and self.parent is not None else ""
        out = quote(f"{self.model}-longer")
        return f"`comastre learn {goes_on}{quote(self.model)} --data {quote(self.data)}{parent} --out {out}`"


def judge(
    new: Sequence[str],
    scores: Mapping[str, float | None],
    errors: Mapping[str, ClassErrors],
    alpha: float | None,
    place: Place,
) -> tuple[ClassVerdict, ...]:
    """A verdict on each new class by its IoU and by where its true masks got lost."""
    verdicts = []
    for name in new:
        score = scores.get(name)
        if score is None and place.scoring:
            verdicts.append(ClassVerdict(name, None, f"{place.scoring} do not show it", "give --val DATA that does"))
        elif score is None or score >= KNOWN:
            verdicts.append(ClassVerdict(name, score))
        else:
            verdicts.append(ClassVerdict(name, score, *_why_not(errors.get(name), alpha, place)))
    return tuple(verdicts)


def nothing_learned(verdicts: Sequence[ClassVerdict]) -> bool:
    """Whether classes were scored and none of them was learned."""
    scored = [verdict.learned for verdict in verdicts if verdict.learned is not None]
    return bool(scored) and not any(scored)


def _why_not(errors: ClassErrors | None, alpha: float | None, place: Place) -> tuple[str, str]:
    """The stage at which most of its masks got lost, in words, and what helps there."""
    counts = () if errors is None else (errors.not_proposed, errors.below_alpha, errors.wrong_class, errors.right)
    total = sum(counts)
    if errors is None or not total:
        return "its pixels are called something else", f"train longer ({place.longer}) or label more images of it"
    many = f"{max(counts)} of its {total} {'mask' if total == 1 else 'masks'}"
    if errors.not_proposed == max(counts):
        return (
            f"no proposal covers {many} (objectness: it is not found)",
            f"train longer: {place.longer}; small objects need a larger --data.crop",
        )
    if errors.below_alpha == max(counts):
        usual = f" {alpha:g}" if alpha is not None else ""
        return (
            f"{many} are proposed, but with an objectness below{usual} (objectness: the model is not sure)",
            f"train longer: {place.longer}; `comastre predict {place.model} IMAGES --out DIR --alpha 0.1` shows them",
        )
    if errors.wrong_class == max(counts):
        return (
            f"{many} are found but taken for another class (recognition)",
            "label more images of it, add images that show none of the new classes, or train longer: " + place.longer,
        )
    return (
        f"{many} are recognised, but much else is called so, too (recognition)",
        "add images that show none of the new classes, with empty masks",
    )
