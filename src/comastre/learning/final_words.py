"""What a lesson says at its end: every class before and after, what was learned and lost, and what to do now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from comastre.learning.gate import FEWEST_IMAGES, ClassChange, Decision, by_score, worst
from comastre.learning.lesson import mean_score
from comastre.learning.verdict import ClassVerdict, nothing_learned
from comastre.text import shortened, table

_MOST = 30  # names in a line


def changes_table(changes: Sequence[ClassChange]) -> str:
    """Every class before and after, by whatever could be measured."""
    compared = any(change.agreement is not None for change in changes)
    rows = [["class", "IoU before", "IoU after", "change", *(["seen in", "kept", "now called"] if compared else [""])]]
    for change in changes:
        row = [f"{change.name} (new)" if change.new else change.name, *_scores(change.before, change.after)]
        rows.append([*row, *(_agreement(change) if compared else [""])])
    old = [change for change in changes if not change.new and change.after is not None]
    if len(old) > 1:
        before, after = ({each.name: getattr(each, when) for each in old} for when in ("before", "after"))
        names = [each.name for each in old]
        means = _scores(mean_score(before, names), mean_score(after, names))
        rows.append(["mean of old classes", *means, *(["", "", ""] if compared else [""])])
    return table(_to_the_right(rows, range(1, 6 if compared else 4)))


def legend(changes: Sequence[ClassChange], compared: int) -> list[str]:
    """What the columns are, and what is missing in them."""
    places = dict.fromkeys(change.where for change in changes if change.where)
    lines = []
    for place in places:
        names = [change.name for change in changes if change.where == place]
        lines.append(f"IoU in % of {shortened(names, _MOST)}: on {place}")
    if compared:
        images = "image" if compared == 1 else "images"
        lines.append(
            f"seen in, kept: without labels, on {compared} {images} outside new objects: in how many the old model "
            "sees the class, and the share of its pixels that the new model calls the same"
        )
    return lines


def verdict_lines(
    verdicts: Sequence[ClassVerdict], changes: Sequence[ClassChange], decision: Decision, advise: bool = True
) -> list[tuple[str, str]]:
    """Class by class what was learned, and what was lost, as (heading, text); with `advise` what to try, too."""
    lines = []
    for verdict in verdicts:
        score = "" if verdict.score is None else f"IoU {verdict.score:.1f}"
        if verdict.learned:
            lines.append(("learned", f"{verdict.name}: {score}"))
        elif verdict.learned is None:
            text = "no image of it was left to score it on; give --val DATA"
            if verdict.reason:
                text = f"{verdict.reason}; {verdict.advice}"
            lines.append(("not scored", f"{verdict.name}: {text}"))
        else:
            advice = f"; {verdict.advice}" if advise else ""
            lines.append(("NOT LEARNED", f"{verdict.name}: {score}: {verdict.reason}{advice}"))
    if any(not change.new for change in changes):
        lines.append(("lost most", _lost_most(changes, decision)))
        lines.append(("kept", kept_sentence(decision)))
    return lines


def choice_lines(chosen: str, why: str) -> list[tuple[str, str]]:
    """Which of two models is handed over, and why; nothing where there was one."""
    names = {"instant": "the instant model, which looked once at each image", "trained": "the trained model"}
    return [("handed over", f"{names[chosen]}: {why}")] if chosen in names else []


def kept_lines(work: Path, aside: Path | None) -> list[tuple[str, str]]:
    """What else is there: the folder of the training, and a trained model that was kept `aside`."""
    if aside is None:
        return [("logs", f"settings and logs of the training are in {work}, which can be deleted")]
    text = (
        f"kept in {aside}; the same command with --unlabelled FOLDER or --old-val DATA, of images that show old "
        "classes, compares the two without training again"
    )
    logs = f"settings and logs of the training, and the trained model, are in {work}, which can be deleted"
    return [("trained model", text), ("logs", logs)]


def guarantee_line(largest_change: float, compared: int) -> tuple[str, str]:
    """What was measured of an exact guarantee."""
    images = f"{compared} {'image' if compared == 1 else 'images'}"
    text = f"the largest change of any old score on {images} is {largest_change:g}"
    return "guarantee", f"{text}: masks, objectness and classes of every proposal, the old model against the new one"


def kept_sentence(decision: Decision) -> str:
    """How much is kept, and what the gate says of it."""
    if decision.unknown:
        rest = "recognises none of its classes on the others"
        if decision.kept is not None:
            rest = f"of what it recognises on the others, {kept_sentence(replace(decision, unknown=False))}"
            return f"the old model scores 0 on the images of --old-val; {rest}"
        return f"not measured: the old model scores 0 on the images of --old-val and {rest}"
    if decision.kept is None:
        return "not measured: the old model recognises none of its classes on these images; give --old-val DATA"
    if decision.unscored is not None:
        scored = kept_sentence(replace(decision, unscored=None))
        return f"{scored}; of old classes without a score {kept_sentence(decision.unscored)}"
    what = "of the old classes' mean IoU"
    if decision.measure == "pixels":
        what = f"of the pixels that the old model gave to its classes, {_over_which(*decision.judged)}"
    kept = f"{decision.kept:.0f} % {what}"
    if decision.asked == 0:
        return f"{kept}; the gate is off (--keep 0)"
    if decision.doubted:
        most = f"{decision.kept + decision.doubt:.0f} %"
        return f"{kept}; by so few it may be {most}, and {decision.asked:g} % are asked (--keep): not refused for that"
    if not decision.refused:
        return f"{kept}, at least the {decision.asked:g} % that are asked (--keep)"
    gone = f"; less than half of that is left of {shortened(decision.lost)}" if decision.lost else ""
    return f"{kept}, but {decision.asked:g} % are asked (--keep){gone}"


def _over_which(often: int, seen: int) -> str:
    """Which classes a mean is over: one that is seen in few images says little alone."""
    if often == 0:
        return f"all together, each in fewer than {FEWEST_IMAGES} images"
    return (
        "mean over classes" if often == seen else f"mean over {often} of {seen}, seen in {FEWEST_IMAGES} or more images"
    )


def last_lines(
    place: Path,
    out: Path,
    classes: int,
    verdicts: Sequence[ClassVerdict],
    decision: Decision,
    scored_on_old: bool,
    practised: bool = False,
    trained: bool = True,
) -> list[tuple[str, str]]:
    """Where the model is, and what to do with it; it may have `practised` only, and one look has not `trained` it."""
    if decision.refused:
        check = "" if scored_on_old else "; --old-val DATA, images labelled for old classes, measures it by scores"
        if decision.unscored is not None and decision.unscored.refused:
            check = "; --old-val DATA that shows all old classes measures all of them by scores"
        rate = ", or a lower learning rate (--later_learning_rate)" if trained else ""
        return [
            ("REFUSED", f"the new model forgot too much and was written aside, to {place}; {out} was not made"),
            (
                "try",
                f"more images that show old classes or none of the new ones (empty masks will do){rate}{check}; the "
                "same command with --keep 0 takes it as it is",
            ),
        ]
    if nothing_learned(verdicts):
        if practised:
            names = shortened([verdict.name for verdict in verdicts], _MOST)
            text = f"the model in {place} does not know what it practised ({names}): do not use it"
            return [("nothing learned", text)]
        return [("nothing learned", f"the model in {place} has the new names but does not know them: do not use it")]
    more = f"{classes} classes; try `comastre predict {place} IMAGES --out DIR`"
    return [("done", f"the new model is in {place}, {more}")]


def _lost_most(changes: Sequence[ClassChange], decision: Decision) -> str:
    change = worst(changes, decision)
    if change is None:
        return "no old class lost anything" if decision.kept is not None else "not measured"
    if by_score(change, decision):
        text = f"{change.name}: IoU {change.before:.1f} before, {change.after:.1f} now"
    else:
        text = f"{change.name}: {change.kept_pixels:.0f} % of its pixels kept their name"
    agreement = change.agreement
    if agreement is not None and agreement.became and agreement.kept_pixels < agreement.pixels:
        name, pixels = agreement.became[0]
        text += f"; {100 * pixels / agreement.pixels:.0f} % are now called {name}"
    return text


def _scores(before: float | None, after: float | None) -> list[str]:
    known = before is not None and after is not None and before == before and after == after
    return [_score(before), _score(after), f"{after - before:+.1f}" if known else ""]  # type: ignore[operator]


def _score(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.1f}"


def _agreement(change: ClassChange) -> list[str]:
    found = change.agreement
    if found is None:
        return ["", "", ""]
    if found.kept_share is None:
        return ["0 images", "-", ""]
    images = f"{found.images} {'image' if found.images == 1 else 'images'}"
    others = [f"{name} {100 * pixels / found.pixels:.0f} %" for name, pixels in found.became[:2]]
    return [images, f"{found.kept_share:.0f} %", ", ".join(others)]


def _to_the_right(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        [f"{cell:>{widths[place]}}" if place in columns else cell for place, cell in enumerate(row)] for row in rows
    ]
