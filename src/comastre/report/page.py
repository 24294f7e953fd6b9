"""One self-contained HTML page: what the template needs, worked out here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from comastre import __version__
from comastre.config.conventions import CONVENTIONS
from comastre.config.settings import flatten
from comastre.report.charts import loss_charts, recall_charts, score_charts
from comastre.report.groups import Entry, Group
from comastre.report.numbers import (
    ERROR_KINDS,
    ClassRow,
    average,
    ceiling,
    class_rows,
    confusion,
    errors_of,
    known,
    later_rows,
    looking_ahead,
    not_proposing,
    proposing,
    results_of,
    scores,
    shares,
)
from comastre.report.paper import WHERE, reference
from comastre.report.pictures import BUDGET, gallery
from comastre.report.sentences import (
    exchange_words,
    forgetting_words,
    headline,
    no_proposals_words,
    number,
    state_words,
    verdict,
)
from comastre.report.svg import draw, legend_key

HEAT_STEPS = 20
ERROR_NAMES = {
    "right": "recognised",
    "wrong_class": "proposed, but given another class",
    "below_alpha": "proposed, but objectness not above α",
    "not_proposed": "not proposed",
}


def render(groups: Sequence[Group], convention: str, title: str) -> str:
    """The page of all groups."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"score": number, "heat": heat}
    environment.globals |= {"draw": draw, "key": legend_key}
    return environment.get_template("page.html.jinja").render(
        title=title,
        groups=[_group(group, convention, BUDGET // len(groups)) for group in groups],
        convention=convention,
        convention_words=CONVENTIONS[convention].of_a_run,
        error_names=ERROR_NAMES,
        style=Markup(template_file("style.css")),
        script=Markup(template_file("script.js")),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        paper_where=WHERE,
    )


def heat(value: float | None) -> str:
    """The class of a heat map's cell."""
    return "none" if known(value) is None else f"h{round(min(100.0, max(0.0, value or 0.0)) / 100 * HEAT_STEPS)}"


def _group(group: Group, convention: str, budget: int) -> dict[str, Any]:
    longest = group.longest
    paper = reference(longest.run) if longest is not None else None
    steps = () if longest is None else results_of(longest).steps
    rows = class_rows(group)
    return {
        "title": group.title,
        "entries": group.entries,
        "ceilings": group.ceilings,
        "everybody": group.everybody,
        "scored": group.scored,
        "steps": steps,
        "origin": {name: step.step for step in steps for name in step.new_classes},
        "headline": headline(group, convention),
        "recognises": any(not entry.run.proposes_only for entry in group.scored),
        "states": [(entry, words) for entry in group.everybody if (words := state_words(entry.run))],
        "tiles": [_tile(entry, convention) for entry in group.scored],
        "score_charts": score_charts(group, convention, paper),
        "scores": [scores(entry, convention) for entry in group.scored],
        "averages": [average(entry, convention) for entry in group.scored],
        "ceiling_scores": [ceiling(entry, group, convention) for entry in group.ceilings],
        "conventions": _conventions(group),
        "paper": paper.under(convention) if paper is not None else None,
        "paper_elsewhere": paper.elsewhere(convention) if paper is not None else {},
        "class_rows": rows,
        "lost_rows": [row for row in rows if any(value is not None for value in row.forgetting)],
        "paper_classes": paper.per_class if paper is not None else {},
        "class_words": [forgetting_words(entry) for entry in group.scored if not entry.run.is_joint],
        "forgetting_top": _largest_forgetting(group),
        "confusions": [
            (entry, found) for entry in group.scored if (found := confusion(results_of(entry).steps[-1])) is not None
        ],
        "exchange_words": [words for entry in group.scored if (words := exchange_words(entry))],
        "proposing": proposing(group),
        "no_proposals": [no_proposals_words(entry) for entry in not_proposing(group)],
        "verdicts": [verdict(entry) for entry in group.scored if results_of(entry).steps[-1].errors],
        "error_steps": [_errors_by_step(entry) for entry in group.scored if results_of(entry).steps[-1].errors],
        "error_classes": _errors_by_class(group, rows),
        "recall_charts": recall_charts(group),
        "later_rows": later_rows(group),
        "looking_ahead": looking_ahead(group),
        "gallery": gallery(group, budget),
        "loss_charts": loss_charts(group),
        "config_rows": _config_rows(group),
        "environments": _environments(group),
        "remarks": [f"{entry.label}: {remark}" for entry in group.everybody for remark in entry.run.remarks],
    }


def _tile(entry: Entry, convention: str) -> dict[str, Any]:
    last = scores(entry, convention)[-1]
    return {"entry": entry, "kept": results_of(entry).kept, "last": last, "avg": average(entry, convention)}


def _conventions(group: Group) -> list[dict[str, Any]]:
    """The last step of every run under every convention."""
    return [
        {"name": name, "entry": entry, "last": found[-1], "avg": average(entry, name)}
        for name in CONVENTIONS
        for entry in group.scored
        if (found := scores(entry, name))
    ]


def _largest_forgetting(group: Group) -> float:
    lost = [value for entry in group.scored for value in results_of(entry).forgetting.values() if value is not None]
    return max([*lost, 1.0])


def _errors_by_step(entry: Entry) -> dict[str, Any]:
    """How the masks of the base classes fare over the steps."""
    steps = results_of(entry).steps
    base = steps[0].new_classes
    bars = []
    for step in steps:
        counts = errors_of(step, base)
        bars.append({"label": f"after step {step.step + 1}", "segments": _segments(counts)})
    return {"entry": entry, "bars": bars}


def _errors_by_class(group: Group, classes: Sequence[ClassRow]) -> list[dict[str, Any]]:
    """Where each class stands after the last step of every run."""
    rows = []
    for row in classes:
        bars = []
        for entry in group.scored:
            found = results_of(entry).steps[-1].errors.get(row.name)
            bars.append([] if found is None else _segments({kind: getattr(found, kind) for kind in ERROR_KINDS}))
        if any(bars):
            rows.append({"name": row.name, "step": row.step, "bars": bars})
    return rows


def _segments(counts: dict[str, int]) -> list[dict[str, Any]]:
    total = sum(counts.values())
    parts = shares(counts)
    return [
        {
            "kind": kind,
            "share": parts[kind],
            "tip": f"{ERROR_NAMES[kind]}: {counts[kind]} of {total} ({parts[kind]:.0f} %)",
        }
        for kind in ERROR_KINDS
        if counts[kind]
    ]


def _config_rows(group: Group) -> list[dict[str, Any]]:
    """Every field of the configuration with its value in each run."""
    flat = [flatten(entry.run.config) for entry in group.everybody]
    names = dict.fromkeys(name for each in flat for name in each)
    rows = []
    for name in names:
        values = [_shown(each[name]) if name in each else "–" for each in flat]
        rows.append({"name": name, "values": values, "differs": len(set(values)) > 1})
    return rows


def _environments(group: Group) -> list[dict[str, Any]]:
    """What each run was made with; runs that share an environment share a column."""
    found: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for entry in group.everybody:
        found.setdefault(tuple(entry.run.environment.items()), []).append(entry.label)
    return [{"labels": labels, "items": items} for items, labels in found.items()]


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def template_file(name: str) -> str:
    """The text of a file beside this one."""
    return resources.files("comastre.report").joinpath(name).read_text(encoding="utf-8")
