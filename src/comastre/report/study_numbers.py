"""The numbers behind every table and chart of a study: pure functions of what it found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from comastre.config.conventions import PAPER
from comastre.report.paper import PROTOCOL, WITHOUT_BACKGROUND
from comastre.report.paper import tables as paper_tables
from comastre.studies.found import ERRORS, RowFound, RunFound, SettingFound, StudyFound
from comastre.studies.statistics import Groups, PairedDifference, Summary, paired, summary

MIOU = ("base", "inc", "all", "avg")
OF_PROPOSALS = ("recall", "confident_recall", "base_recall", "later_recall")
TITLES = {
    "base": "base",
    "inc": "inc",
    "all": "all",
    "avg": "avg",
    "kept": "base kept",
    "recall": "AR",
    "confident_recall": "AR, s > α",
    "base_recall": "AR, base",
    "later_recall": "AR, unseen",
}
"""How a metric is called in a table's head; AR is the average recall of proposals."""
_PAPERS_RECALL = {"recall": "s>0", "confident_recall": "s>alpha"}


@dataclass(frozen=True)
class Cell:
    """One metric of a row in a setting."""

    summary: Summary
    rank: int | None = None
    """1 is best; None for a ceiling, and where there is no number."""
    paper: float | None = None
    """What the paper has there."""

    @property
    def mean(self) -> float | None:
        return self.summary.mean

    @property
    def text(self) -> str:
        """'41.2 ± 0.8', or the mean alone of one run."""
        if self.mean is None:
            return "–"
        deviation = self.summary.deviation
        return f"{self.mean:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def value(run: RunFound, metric: str, convention: str) -> float | None:
    """One number of a run: after its last step, but for what classes to come gave after the first."""
    if not run.steps:
        return None
    last = run.steps[-1]
    if metric in ("base", "inc", "all"):
        found: float | None = getattr(last.scores[convention], metric)
        return found
    if metric == "avg":
        # Of a run with one step there is nothing to average.
        return run.average(convention) if len(run.steps) > 1 else None
    if metric == "kept":
        return run.kept
    if metric == "later_recall":
        return run.steps[0].later_recall
    if metric == "base_recall":
        return last.base_recall
    if last.recall is None:
        return None
    return last.recall[0 if metric == "recall" else 1]


def by_pair(runs: Sequence[RunFound], metric: str, convention: str) -> dict[tuple[int, int], float | None]:
    """A metric by seed and order."""
    return {(run.seed, run.order): value(run, metric, convention) for run in runs}


def cells(
    study: StudyFound, setting: SettingFound, metrics: Sequence[str], convention: str
) -> dict[str, dict[str, Cell]]:
    """By row and metric, ranked among the rows that are no ceiling."""
    found: dict[str, dict[str, Cell]] = {row.name: {} for row in study.rows}
    in_order = _in_own_order(study)
    for metric in metrics:
        summaries = {
            row.name: summary([value(run, metric, convention) for run in study.of(row.name, setting.label)])
            for row in study.rows
        }
        means = {row.name: summaries[row.name].mean for row in rivals_of(study)}
        rivals = sorted({mean for mean in means.values() if mean is not None}, reverse=True)
        for row in study.rows:
            mean = means.get(row.name)
            # What is kept is a share of a first step of its own: a weak one is kept easily, so that nobody is best.
            rank = None if mean is None or metric == "kept" else rivals.index(mean) + 1
            paper = papers_number(row, setting, metric, convention) if in_order else None
            found[row.name][metric] = Cell(summaries[row.name], rank, paper)
    return found


def step_cells(runs: Sequence[RunFound], convention: str) -> list[tuple[Cell, Cell, Cell]]:
    """Base, inc and all after every step of a row's runs."""
    found = []
    for step in range(max((len(run.steps) for run in runs), default=0)):
        scores = [run.steps[step].scores[convention] for run in runs if step < len(run.steps)]
        base, inc, everything = (
            Cell(summary([getattr(score, name) for score in scores])) for name in ("base", "inc", "all")
        )
        found.append((base, inc, everything))
    return found


def class_cells(study: StudyFound, setting: SettingFound) -> dict[str, dict[str, Cell]]:
    """IoU after the last step, by class and row, in the order in which the first run learned the classes."""
    runs = [run for run in study.runs if run.setting == setting.label and run.finished]
    names = dict.fromkeys(name for run in runs for name in run.per_class)
    found: dict[str, dict[str, Cell]] = {}
    for name in names:
        summaries = {
            row.name: summary([run.per_class.get(name) for run in study.of(row.name, setting.label)])
            for row in study.rows
        }
        found[name] = {row: Cell(each) for row, each in summaries.items()}
    return found


def mask_totals(study: StudyFound, setting: SettingFound, row: RowFound, part: str) -> list[int]:
    """What became of the true masks of `part` (base or later) after the last step, over all runs; zeros of no masks."""
    found = [run.steps[-1].errors[part] for run in study.of(row.name, setting.label) if part in run.steps[-1].errors]
    return [sum(each[kind] for each in found) for kind in range(len(ERRORS))]


def metrics_of(study: StudyFound) -> tuple[str, ...]:
    """Columns of the main table: those of which there is a number, the study's own metric among them."""
    wanted = (*MIOU, "kept") if study.metric == "all" else (*OF_PROPOSALS, "all")
    return tuple(metric for metric in wanted if _has(study, metric)) or MIOU


def proposal_metrics(study: StudyFound) -> tuple[str, ...]:
    """Columns of the table of proposals; empty where no row proposes masks."""
    return tuple(metric for metric in OF_PROPOSALS if _has(study, metric))


def _has(study: StudyFound, metric: str) -> bool:
    return any(value(run, metric, study.convention) is not None for run in study.runs)


# --- class orders ----------------------------------------------------------------------------------------------------


def order_title(number: int) -> str:
    """How a class order is called in a table's head."""
    return f"order {number}" if number else "own order"


def by_order(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> dict[str, Groups]:
    """The runs of every row, grouped by class order; empty where the study has one order alone."""
    if len(study.orders) < 2:
        return {}
    found = {}
    for row in study.rows:
        numbers = by_pair(study.of(row.name, setting.label), metric, convention)
        own = [[number for (_, at), number in numbers.items() if at == order] for order in study.orders]
        found[row.name] = Groups(tuple(map(summary, own)))
    return found


# --- differences -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Against:
    """A row against another on one metric."""

    row: str
    other: str
    difference: PairedDifference


def rivals_of(study: StudyFound) -> tuple[RowFound, ...]:
    """Rows that are ranked; where all learn everything at once, all of them."""
    return tuple(row for row in study.rows if not row.at_once) or study.rows


def best(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> str | None:
    """The row with the largest mean."""
    found = {
        row.name: mean
        for row in rivals_of(study)
        if (mean := summary([value(run, metric, convention) for run in study.of(row.name, setting.label)]).mean)
        is not None
    }
    return max(found, key=lambda name: found[name]) if found else None


def differences(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> list[Against]:
    """Every row minus every other, paired over seeds and orders."""
    values = {row.name: by_pair(study.of(row.name, setting.label), metric, convention) for row in rivals_of(study)}
    return [Against(one, two, paired(values[one], values[two])) for one in values for two in values if one != two]


def against_best(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> list[Against]:
    """Every other row minus the best."""
    first = best(study, setting, metric, convention)
    return [
        each
        for each in differences(study, setting, metric, convention)
        if each.other == first and each.difference.pairs
    ]


# --- the paper -------------------------------------------------------------------------------------------------------


def papers_number(row: RowFound, setting: SettingFound, metric: str, convention: str) -> float | None:
    """The paper's number of a row in a setting; None where it has none, and under other conventions than its own."""
    if metric in MIOU and convention != _papers_convention(row, setting):
        return None
    if not _papers_stream(setting):
        return None
    place: Any = paper_tables()
    for key in row.paper:
        place = place.get(key) if isinstance(place, Mapping) else None
    if isinstance(place, Mapping) and setting.paper_setting in place:
        place = place[setting.paper_setting]
    if isinstance(place, Mapping):
        place = place.get(_PAPERS_RECALL.get(metric, metric))
    elif metric != "all":  # Table 3 has one number per row
        return None
    return float(place) if isinstance(place, int | float) and math.isfinite(place) else None


def _papers_stream(setting: SettingFound) -> bool:
    """Whether images and classes come as in the paper: overlapped, and in the data's own order."""
    own = setting.conventions
    return own.get("continual.protocol", PROTOCOL) == PROTOCOL and own.get("continual.class_order") is None


def _in_own_order(study: StudyFound) -> bool:
    """Whether a mean over all runs is one over the data's own order alone, as the paper's numbers are."""
    return set(study.orders) <= {0}


def _papers_convention(row: RowFound, setting: SettingFound) -> str:
    """Its joint rows on ADE20K leave out background (docs/specification.md, Scores)."""
    without = row.paper[1:2] and row.paper[1] in WITHOUT_BACKGROUND.get(row.paper[0], ())
    return "no_background" if without or setting.paper_setting == "ade" else PAPER


@dataclass(frozen=True)
class Turned:
    """A row on the other side of this one than in the paper."""

    other: str
    verdict: str
    """On the difference here."""
    above: bool
    """Whether this row is above the other here."""


@dataclass(frozen=True)
class Agreement:
    """Whether a row stands where the paper has it, among the rows of which both have a number."""

    row: str
    held: tuple[str, ...]
    """Rows on the same side of it as in the paper."""
    turned: tuple[Turned, ...]


def agreements(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> list[Agreement]:
    """For every row: is it above and below the same rows as in the paper."""
    if not _in_own_order(study):
        return []
    means, theirs = {}, {}
    for row in rivals_of(study):
        mean = summary([value(run, metric, convention) for run in study.of(row.name, setting.label)]).mean
        number = papers_number(row, setting, metric, convention)
        if mean is not None and number is not None:
            means[row.name], theirs[row.name] = mean, number
    verdicts = {
        (each.row, each.other): each.difference.verdict for each in differences(study, setting, metric, convention)
    }
    found = []
    for name in means:
        others = [other for other in means if other != name and theirs[other] != theirs[name]]
        held = [other for other in others if (means[name] > means[other]) == (theirs[name] > theirs[other])]
        turned = [
            Turned(other, verdicts[name, other], means[name] > means[other]) for other in others if other not in held
        ]
        if others:
            found.append(Agreement(name, tuple(held), tuple(turned)))
    return found
