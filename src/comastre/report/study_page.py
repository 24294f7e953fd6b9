"""The page of a study: one file for all rows; what the template needs, worked out here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2
from markupsafe import Markup

from comastre import __version__
from comastre.config.conventions import CONVENTIONS
from comastre.report.page import ERROR_NAMES, heat, template_file
from comastre.report.paper import WHERE
from comastre.report.sentences import number
from comastre.report.study_charts import bars, draw_bars, recall_charts, score_charts
from comastre.report.study_numbers import (
    TITLES,
    agreements,
    by_order,
    cells,
    class_cells,
    differences,
    mask_totals,
    metrics_of,
    proposal_metrics,
    rivals_of,
    step_cells,
)
from comastre.report.study_tables import order_cells, order_columns
from comastre.report.study_words import (
    RULE,
    agreement_words,
    difference_words,
    headline_metric,
    missing_words,
    order_words,
)
from comastre.report.svg import draw, legend_key
from comastre.studies.found import ERRORS, SettingFound, StudyFound
from comastre.text import brief, readable_time


def render_study(study: StudyFound, convention: str) -> str:
    """The page of all settings and rows."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(template_file), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.undefined = jinja2.StrictUndefined
    environment.filters |= {"score": number, "heat": heat}
    environment.globals |= {"draw": draw, "key": legend_key}
    return environment.get_template("study.html.jinja").render(
        study=study,
        settings=[_setting(study, setting, convention) for setting in study.settings],
        titles=TITLES,
        convention=convention,
        convention_words=CONVENTIONS[convention].of_a_run,
        rule=RULE,
        error_names=ERROR_NAMES,
        hours=readable_time(sum(run.seconds for run in study.runs)),
        style=Markup(template_file("style.css")),
        script=Markup(template_file("script.js")),
        version=__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        paper_where=WHERE,
        unlike=[
            (name, [brief(values[row.name]) if row.name in values else "not known" for row in study.rows])
            for name, values in study.unlike.items()
        ],
    )


def _setting(study: StudyFound, setting: SettingFound, convention: str) -> dict[str, Any]:
    metrics, metric = metrics_of(study), headline_metric(study)
    found = cells(study, setting, metrics, convention)
    beside = study.scale == "paper"
    shown = [name for name in dict.fromkeys((metric, "base", "inc", "all")) if bars(study, setting, name, convention)]
    return {
        "setting": setting,
        "metrics": metrics,
        "metric": metric,
        "cells": found,
        "counts": {row.name: len(study.of(row.name, setting.label)) for row in study.rows},
        "beside": beside and any(cell.paper is not None for row in found.values() for cell in row.values()),
        "said": [
            *difference_words(study, setting, convention),
            *agreement_words(study, setting, convention),
        ],
        "missing": missing_words(study, setting),
        "bars": [
            (TITLES[name], draw_bars(TITLES[name], bars(study, setting, name, convention), beside)) for name in shown
        ],
        "charts": score_charts(study, setting, convention),
        "steps": _steps(study, setting, convention),
        "classes": class_cells(study, setting),
        "errors": _errors(study, setting),
        "recall_charts": recall_charts(study, setting),
        "proposal_metrics": proposal_metrics(study),
        "proposals": cells(study, setting, proposal_metrics(study), convention),
        "rivals": rivals_of(study),
        "differences": {
            (each.row, each.other): each.difference for each in differences(study, setting, metric, convention)
        },
        "orders": [(row, order_cells(groups)) for row, groups in by_order(study, setting, metric, convention).items()],
        "order_columns": order_columns(study),
        "order_words": order_words(study, setting, convention),
        "agreements": {each.row: each for each in agreements(study, setting, metric, convention)},
        "conventions": [(name, _plain(value)) for name, value in setting.conventions.items()],
    }


def _steps(study: StudyFound, setting: SettingFound, convention: str) -> list[dict[str, Any]]:
    """Mean and spread of base, inc and all after every step, by row."""
    return [
        {"row": row, "cells": step_cells(study.of(row.name, setting.label), convention)}
        for row in study.rows
        if study.of(row.name, setting.label)
    ]


def _errors(study: StudyFound, setting: SettingFound) -> list[dict[str, Any]]:
    """Where true masks were lost after the last step, over all runs of a row; base classes and later ones apart."""
    found = []
    for place, row in enumerate(study.rows):
        parts = []
        for part, label in (("base", "base classes"), ("later", "later classes")):
            totals = mask_totals(study, setting, row, part)
            if sum(totals):
                parts.append({"label": label, "segments": _segments(totals)})
        if parts:
            found.append({"row": row, "place": place, "bars": parts})
    return found


def _segments(totals: Sequence[int]) -> list[dict[str, Any]]:
    whole = sum(totals)
    return [
        {
            "kind": kind,
            "share": 100.0 * count / whole,
            "tip": f"{ERROR_NAMES[kind]}: {count} of {whole} in all runs ({100.0 * count / whole:.0f} %)",
        }
        for kind, count in zip(ERRORS, totals, strict=True)
        if count
    ]


def _plain(value: Any) -> str:
    return "–" if value is None else brief(value, 200)
