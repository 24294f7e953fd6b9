"""What the numbers of a study say, in sentences; each is computed, so that it stays true for any study."""

from __future__ import annotations

from comastre.report.study_numbers import (
    TITLES,
    Against,
    Agreement,
    against_best,
    agreements,
    best,
    by_order,
    metrics_of,
)
from comastre.studies.found import SettingFound, StudyFound
from comastre.text import shortened

RULE = (
    "Differences are paired over seeds and class orders; one is beyond the spread where the 95 % interval of its mean "
    "(Student's t over the pairs) leaves out 0"
)


def headline_metric(study: StudyFound) -> str:
    """The metric that rows are compared by."""
    return study.metric if study.metric in metrics_of(study) else "all"


def all_words(study: StudyFound, setting: SettingFound, convention: str) -> list[str]:
    """Everything that is said of a setting: differences, the paper's order, and what is missing."""
    return [
        *difference_words(study, setting, convention),
        *agreement_words(study, setting, convention),
        *order_words(study, setting, convention),
        *missing_words(study, setting),
    ]


def difference_words(study: StudyFound, setting: SettingFound, convention: str) -> list[str]:
    """Which row is first, and which of the others are behind it by more than the spread."""
    metric = headline_metric(study)
    first = best(study, setting, metric, convention)
    found = against_best(study, setting, metric, convention)
    if first is None or not found:
        return []
    # A row that lacks some of the seeds can have the lower mean and yet be ahead in every seed that both have.
    ahead = [
        each for each in found if each.difference.verdict == "beyond" and (each.difference.differences.mean or 0) > 0
    ]
    parts = {
        "Ahead of it beyond the spread in the seeds that both have": ahead,
        "Behind it beyond the spread": [
            each for each in found if each.difference.verdict == "beyond" and each not in ahead
        ],
        "Within the spread": [each for each in found if each.difference.verdict == "within"],
        "One pair alone says nothing of the spread": [each for each in found if each.difference.verdict == "unknown"],
    }
    words = [f"{setting.label}: {first} is first on {TITLES[metric]}."]
    words += [f"{what}: {', '.join(map(_behind, rows))}." for what, rows in parts.items() if rows]
    return words


def _behind(each: Against) -> str:
    mean, deviation = each.difference.differences.mean, each.difference.differences.deviation
    spread = "" if deviation is None else f" ± {deviation:.1f} over {each.difference.pairs} pairs"
    return f"{each.row} ({mean or 0.0:+z.1f}{spread})"


def agreement_words(study: StudyFound, setting: SettingFound, convention: str) -> list[str]:
    """Whether rows stand as in the paper."""
    found = agreements(study, setting, headline_metric(study), convention)
    if not found:
        return []
    held = sum(len(each.held) for each in found) // 2
    pairs = held + sum(len(each.turned) for each in found) // 2
    words = [f"The paper's order of rows: {held} of {pairs} pairs stand here as there."]
    for verdict, how in (("beyond", "beyond the spread"), ("within", "within the spread"), ("unknown", "in one pair")):
        turned = [_above(each, verdict) for each in found]
        if any(turned):
            words.append(f"Turned {how}: {'; '.join(filter(None, turned))}.")
    return words


def _above(each: Agreement, verdict: str) -> str:
    """Which rows this one is above here and not in the paper; of a pair only the upper row says so."""
    below = [other.other for other in each.turned if other.above and other.verdict == verdict]
    return f"{each.row} above {', '.join(below)}" if below else ""


ORDER_RULE = "by an analysis of variance at 95 %"


def order_words(study: StudyFound, setting: SettingFound, convention: str) -> list[str]:
    """For which rows it matters in which order classes come."""
    found = by_order(study, setting, headline_metric(study), convention)
    words = []
    for verdict, what in (
        ("beyond", f"Class orders differ by more than seeds do ({ORDER_RULE})"),
        ("within", f"Class orders do not differ visibly more than seeds do ({ORDER_RULE})"),
    ):
        rows = [
            f"{row} ({groups.between:.1f} between orders, {groups.within:.1f} within one)"
            for row, groups in found.items()
            if groups.verdict == verdict
        ]
        if rows:
            words.append(f"{what}: {', '.join(rows)}.")
    unknown = [row for row, groups in found.items() if groups.verdict == "unknown" and groups.between is not None]
    if unknown:
        words.append(f"One seed alone does not say whether class orders matter: {', '.join(unknown)}.")
    return words


def missing_words(study: StudyFound, setting: SettingFound) -> list[str]:
    """Which runs the table lacks."""
    lacking = [
        f"{run.row}, seed {run.seed}" + (f", order {run.order}" if run.order else "")
        for run in study.runs
        if run.setting == setting.label and not run.finished
    ]
    return [f"Not finished in {setting.label}: {shortened(lacking, 6)}."] if lacking else []
