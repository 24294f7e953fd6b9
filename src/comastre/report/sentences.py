"""What the numbers say, in sentences; each is computed, so that it stays true for any run."""

from __future__ import annotations

from comastre.config.run_files import CONFIG
from comastre.evaluation.results import KEPT, Results
from comastre.report.gather import Run
from comastre.report.groups import Entry, Group
from comastre.report.numbers import (
    ceiling,
    errors_of,
    exchange,
    known,
    mean_forgetting,
    results_of,
    scores,
)


def number(value: float | None, digits: int = 1) -> str:
    """A score for people."""
    return "–" if known(value) is None else f"{value:.{digits}f}"


def headline(group: Group, convention: str) -> list[str]:
    """Did it forget: one sentence per run, and one for the ceiling."""
    said = []
    for entry in group.scored:
        found, share = scores(entry, convention), results_of(entry).kept
        first, last = found[0], found[-1]
        if entry.run.proposes_only:
            said.append(_recall_words(entry))
        elif entry.run.is_joint:
            said.append(f"{_start(entry)} learned all classes at once: {number(last.all)} mIoU.")
        elif len(found) == 1:
            said.append(
                f"{_start(entry)} has finished its first step with {number(first.all)} mIoU; "
                "what it forgets shows after the second."
            )
        else:
            later = sum(len(step.new_classes) for step in results_of(entry).steps[1:])
            # Without background, as `Results.kept` is, whatever the convention of the charts.
            was, now = (number(score.base) for score in (scores(entry, KEPT)[0], scores(entry, KEPT)[-1]))
            kept_words = f"kept {share:.0f} % of its base classes" if share is not None else "has no base score to keep"
            said.append(
                f"{_start(entry)} {kept_words} ({was} → {now} mIoU without background) "
                f"and scores {number(last.inc)} on the {later} {_classes(later)} it learned later."
            )
    for joint in group.ceilings:
        best = ceiling(joint, group, convention)
        said.append(
            f"The ceiling, {joint.label} with all classes at once, is {number(best.base)} on the base classes, "
            f"{number(best.inc)} on the later ones and {number(best.all)} on all."
        )
    return said


def _recall_words(entry: Entry) -> str:
    recall = results_of(entry).steps[-1].recall
    if recall is None:
        return f"{_start(entry)} neither recognises classes nor proposes masks: nothing was scored."
    return (
        f"{_start(entry)} learns to propose masks, not classes: its average recall is {number(recall.all)} %, "
        f"and {number(recall.confident)} % with confident proposals alone."
    )


def forgetting_words(entry: Entry) -> str:
    """Which class lost most."""
    lost = {name: value for name, value in results_of(entry).forgetting.items() if value is not None}
    average = mean_forgetting(entry)
    if not lost or average is None:
        return f"{_start(entry)}: no class is old enough to be forgotten yet."
    worst = max(lost, key=lambda name: lost[name])
    return f"{_start(entry)} lost {average:.1f} points of IoU per old class on average" + (
        f", most on {worst} ({lost[worst]:.1f})." if lost[worst] > 0 else "."
    )


def exchange_words(entry: Entry) -> str:
    """How much old and new classes are taken for each other."""
    found = exchange(results_of(entry).steps[-1])
    if found is None:
        return ""
    return (
        f"{_start(entry)}: {number(found.old_as_new)} % of old pixels are taken for the newest classes and "
        f"{number(found.old_as_background)} % for background; {number(found.new_as_old)} % of the newest classes' "
        f"pixels are taken for old ones and {number(found.new_as_background)} % for background."
    )


def no_proposals_words(entry: Entry) -> str:
    """Why there is nothing to say of proposals."""
    return (
        f"{_start(entry)} labels pixels and proposes no masks: "
        "there is no recall and no split into objectness and recognition."
    )


def verdict(entry: Entry) -> str:
    """Was it objectness or recognition that failed on the base classes."""
    results = results_of(entry)
    base = results.steps[0].new_classes
    before, now = errors_of(results.steps[0], base), errors_of(results.steps[-1], base)
    total = sum(now.values())
    if not total:
        return f"{_start(entry)}: no validation image shows a base class, so nothing can be said."
    missed = total - now["right"]
    words = f"{_start(entry)} recognises {now['right']} of the {total} base-class masks"
    if len(results.steps) > 1:
        words += f" ({before['right']} after the first step)"
    if not missed:
        return f"{words}."
    objectness, recognition = now["not_proposed"] + now["below_alpha"], now["wrong_class"]
    alpha = _alpha(entry)
    words += (
        f". Of the {missed} it misses, {now['not_proposed']} are not proposed, {now['below_alpha']} are proposed with "
        f"an objectness of at most {alpha:g}, and {now['wrong_class']} get another class: "
    )
    if objectness >= 2 * recognition:
        return words + "mostly objectness."
    return words + ("mostly recognition." if recognition >= 2 * objectness else "both objectness and recognition.")


def _alpha(entry: Entry) -> float:
    """Objectness above which proposals are recognised; runs of earlier versions have it in their settings alone."""
    recorded = results_of(entry).steps[-1].alpha
    return recorded if recorded is not None else entry.run.setting("model", "inference", {}).get("alpha", 0.8)


def state_words(run: Run) -> str:
    """Where a run stands that has not finished; empty for a finished one."""
    if run.state == "finished":
        return ""
    where = ""
    if run.position is not None:
        step, iteration = run.position
        where = f" in step {step + 1} after {iteration} iterations"
    done = "no step is finished" if run.results is None else _finished(run.results)
    word = "is still training" if run.state == "running" else "was stopped"
    go_on = f"; go on with: comastre train {run.folder / CONFIG} --out {run.folder}"
    return f"{word}{where} ({done})" + ("." if run.state == "running" else go_on)


def _finished(results: Results) -> str:
    done = len(results.steps)
    learned = sum(len(step.new_classes) for step in results.steps)
    steps = "1 step is" if done == 1 else f"{done} steps are"
    return f"{steps} finished, {learned} of {len(results.class_order)} classes"


def _start(entry: Entry) -> str:
    return entry.label[:1].upper() + entry.label[1:]


def _classes(count: int) -> str:
    return "class" if count == 1 else "classes"
