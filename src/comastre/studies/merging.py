"""A study that is trained part by part: what its file has of other rows, settings, seeds and orders stays in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from comastre.studies.fields import as_written, differing
from comastre.studies.found import RowFound, RunFound, SettingFound, StudyFound
from comastre.studies.study import Study

_ORDER = "continual.class_order"
"""Every order of a study has its own."""
_AND = " and "
Named = TypeVar("Named", RowFound, SettingFound)


def with_earlier(found: StudyFound, earlier: StudyFound, study: Study) -> tuple[StudyFound, list[RunFound]]:
    """What was found now, beside the finished runs that `earlier` has of the rest; and those that do not fit it.

    Runs of a row that is another now, or of a setting whose scores mean something else now, cannot stand beside it.
    """
    rows, settings = _by(found.rows, _row_name), _by(found.settings, _label)
    their_rows, their_settings = _by(earlier.rows, _row_name), _by(earlier.settings, _label)
    here = {_place(run) for run in found.runs}
    kept: list[RunFound] = []
    left_out: list[RunFound] = []
    for run in earlier.runs:
        if run.finished and _place(run) not in here:
            known = run.row in their_rows and run.setting in their_settings  # else somebody has edited the file
            row, setting = rows.get(run.row), settings.get(run.setting)
            fits = known and (row is None or _meant_alike(row, their_rows[run.row]))
            fits = fits and (setting is None or _scored_alike(setting, their_settings[run.setting]))
            (kept if fits else left_out).append(run)
    rows = {name: row for name, row in their_rows.items() if any(run.row == name for run in kept)} | rows
    settings = {
        label: setting for label, setting in their_settings.items() if any(run.setting == label for run in kept)
    } | settings
    alike, unlike = shared_fields(_fields_of(earlier, rows) | _fields_of(found, rows), list(rows))
    all_rows, all_settings = _in_order(rows, study.all_rows), _in_order(settings, study.all_settings)
    names, labels = list(map(_row_name, all_rows)), list(map(_label, all_settings))
    merged = replace(
        found,
        rows=tuple(all_rows),
        settings=tuple(all_settings),
        seeds=tuple(sorted({*found.seeds, *(run.seed for run in kept)})),
        orders=tuple(sorted({*found.orders, *(run.order for run in kept)})),
        # Sorted, so that a file that grows part by part changes only where it has grown.
        runs=tuple(
            sorted(
                (*found.runs, *kept),
                key=lambda run: (run.order, run.seed, labels.index(run.setting), names.index(run.row)),
            )
        ),
        alike=alike,
        unlike=unlike,
        environment=_machines(found.environment, earlier.environment),
    )
    return (merged if kept else found), left_out


def shared_fields(
    values: Mapping[str, Mapping[str, Any]], rows: Sequence[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Of every row's fields: those that all rows share, and those that they do not, with the value of each row."""
    alike, unlike = {}, {}
    for name in dict.fromkeys(name for row in rows for name in values.get(row, {})):
        known = {row: values[row][name] for row in rows if name in values.get(row, {})}
        if len(set(map(as_written, known.values()))) > 1:
            unlike[name] = known
        elif len(known) == len(rows):
            alike[name] = next(iter(known.values()))
    return alike, unlike


def _fields_of(study: StudyFound, rows: Mapping[str, RowFound]) -> dict[str, dict[str, Any]]:
    """By row, the fields that every method has, as far as the file knows them."""
    return {
        row.name: {
            **study.alike,
            **{name: values[row.name] for name, values in study.unlike.items() if row.name in values},
        }
        for row in study.rows
        if row.name in rows
    }


def _place(run: RunFound) -> tuple[str, str, int, int]:
    return run.row, run.setting, run.seed, run.order


def _row_name(row: RowFound) -> str:
    return row.name


def _label(setting: SettingFound) -> str:
    return setting.label


def _by(values: Sequence[Named], name: Callable[[Named], str]) -> dict[str, Named]:
    return {name(value): value for value in values}


def _meant_alike(one: RowFound, other: RowFound) -> bool:
    return one.method == other.method and dict(one.fields) == dict(other.fields)


def _scored_alike(one: SettingFound, other: SettingFound) -> bool:
    return set(differing(one.conventions, other.conventions)) <= {_ORDER}


def _in_order(values: Mapping[str, Named], names: Sequence[str]) -> list[Named]:
    """As the whole study has them; what it does not name comes last."""
    places = {name: place for place, name in enumerate(names)}
    return [values[name] for name in sorted(values, key=lambda name: places.get(name, len(places)))]


def _machines(one: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """What runs were trained with; where two parts of a study differ, both."""
    return {
        # A part that was merged before names several already.
        name: _AND.join(dict.fromkeys(part for each in (other, one) if name in each for part in each[name].split(_AND)))
        for name in dict.fromkeys((*other, *one))
    }
