"""The charts of a study: bars with every run as a dot, and means with their spread over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from comastre.report.charts import PANELS, step_ticks
from comastre.report.sentences import number
from comastre.report.study_numbers import Cell, cells
from comastre.report.svg import Chart, Level, Line, percent_axis
from comastre.studies.found import RowFound, RunFound, SettingFound, StepFound, StudyFound
from comastre.studies.statistics import Summary, summary

_LINE, _TOP, _BOTTOM, _RIGHT, _WIDTH = 30.0, 6.0, 24.0, 46.0, 520.0
_FEWEST_LETTERS, _MOST_LETTERS = 16, 34
"""Of a row's name that have room beside its bar: bars begin where the longest name ends."""
_LETTER = 6.6
"""Width of one, on average, as the page draws names."""


@dataclass(frozen=True)
class Bar:
    """One row: the mean as a bar, every run as a dot, and the paper's number as a hollow mark."""

    label: str
    place: int
    cell: Cell
    at_once: bool = False


def bars(study: StudyFound, setting: SettingFound, metric: str, convention: str) -> list[Bar]:
    """The rows of a setting that have a number."""
    found = cells(study, setting, (metric,), convention)
    return [
        Bar(row.name, place, found[row.name][metric], row.at_once)
        for place, row in enumerate(study.rows)
        if found[row.name][metric].mean is not None
    ]


def draw_bars(title: str, rows: Sequence[Bar], with_paper: bool) -> Markup:
    """Horizontal bars on a scale from 0; the description has every number for those who cannot see it."""
    values = [value for row in rows for value in row.cell.summary.values]
    values += [row.cell.paper for row in rows if with_paper and row.cell.paper is not None]
    (low, high), ticks = percent_axis(values)
    height = _TOP + _LINE * len(rows) + _BOTTOM

    letters = min(max([_FEWEST_LETTERS, *(len(row.label) for row in rows)]), _MOST_LETTERS)
    left = 12.0 + _LETTER * letters

    def at(value: float) -> float:
        return left + (min(max(value, low), high) - low) / (high - low) * (_WIDTH - left - _RIGHT)

    parts = []
    for value, text in ticks:
        x = at(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{height - _BOTTOM:.1f}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8:.1f}" text-anchor="middle">{escape(text)}</text>')
    for line, row in enumerate(rows):
        parts += _bar(row, _TOP + _LINE * line, left, at, with_paper)
    words = f"{title}: " + "; ".join(f"{row.label} {row.cell.text}" for row in rows)
    return Markup(
        f'<svg class="chart wide" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" aria-label="{escape(words)}">'
        f"{''.join(parts)}</svg>"
    )


def _bar(row: Bar, top: float, left: float, at: Callable[[float], float], with_paper: bool) -> list[str]:
    mean = row.cell.mean or 0.0
    middle = top + _LINE / 2
    name = row.label if len(row.label) <= _MOST_LETTERS else f"{row.label[: _MOST_LETTERS - 1]}…"
    runs = ", ".join(f"{value:.1f}" for value in row.cell.summary.values)
    paper = f"; the paper's {row.cell.paper:.1f}" if with_paper and row.cell.paper is not None else ""
    tip = f"{row.label}: {row.cell.text} (runs: {runs}){paper}"
    kind = "level-bar" if row.at_once else "row-bar"
    parts = [
        f'<g class="run-{row.place % 8}">',
        f'<text class="name" x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>',
        f'<rect class="{kind}" x="{left:.1f}" y="{top + 6:.1f}" width="{max(0.5, at(mean) - left):.1f}" '
        f'height="{_LINE - 12:.1f}" rx="2"/>',
    ]
    deviation = row.cell.summary.deviation
    if deviation is not None:
        span = f'x1="{at(mean - deviation):.1f}" x2="{at(mean + deviation):.1f}"'
        parts.append(f'<line class="whisker" {span} y1="{middle:.1f}" y2="{middle:.1f}"/>')
    # Dots of nearly the same value are told apart by their height.
    count = len(row.cell.summary.values)
    for place, value in enumerate(row.cell.summary.values):
        shift = 0.0 if count == 1 else (place / (count - 1) - 0.5) * (_LINE - 18)
        parts.append(f'<circle class="dot" cx="{at(value):.1f}" cy="{middle + shift:.1f}" r="3.4"/>')
    if paper:
        parts.append(
            f'<path class="paper-mark" d="M{at(row.cell.paper or 0.0):.1f} {middle - 6:.1f}l6 6l-6 6l-6 -6z"/>'
        )
    ends = [mean + (deviation or 0.0), *row.cell.summary.values]
    parts.append(f'<text class="value" x="{at(max(ends)) + 8:.1f}" y="{middle + 4:.1f}">{number(mean)}</text>')
    box = f'x="0" y="{top:.1f}" width="{_WIDTH:.0f}" height="{_LINE:.1f}"'
    return [*parts, f'<rect class="hit" {box} data-tip="{escape(tip)}"/></g>']


# --- over the steps --------------------------------------------------------------------------------------------------


def score_charts(study: StudyFound, setting: SettingFound, convention: str) -> list[Chart]:
    """Base, incremented and all over the steps: means with one standard deviation on either side, ceilings dashed."""
    charts = []
    for name, title in PANELS:

        def read(step: StepFound, name: str = name) -> float | None:
            found: float | None = getattr(step.scores[convention], name)
            return found

        charts.append((title, read))
    return _charts(study, setting, charts)


def recall_charts(study: StudyFound, setting: SettingFound) -> list[Chart]:
    """Average recall of proposals over the steps: of all, of confident ones, of base classes and of classes to come."""
    return _charts(
        study,
        setting,
        [
            ("All proposals (s > 0)", lambda step: None if step.recall is None else step.recall[0]),
            ("Confident proposals (s > α)", lambda step: None if step.recall is None else step.recall[1]),
            ("Base classes (s > 0)", lambda step: step.base_recall),
            ("Classes not learned yet (s > 0)", lambda step: step.later_recall),
        ],
    )


def _charts(
    study: StudyFound, setting: SettingFound, panels: Sequence[tuple[str, Callable[[StepFound], float | None]]]
) -> list[Chart]:
    """One chart per panel on a common scale; panels without a number are left out."""
    found = []
    for title, read in panels:
        by_row = [
            (place, row, _by_step(study.of(row.name, setting.label), read)) for place, row in enumerate(study.rows)
        ]
        if any(each.mean is not None for _, _, steps in by_row for each in steps):
            found.append((title, by_row))
    ends = [
        (each.mean or 0.0) + (each.deviation or 0.0) for _, by_row in found for _, _, steps in by_row for each in steps
    ]
    y_range, y_ticks = percent_axis(ends)
    return [_chart(title, by_row, y_range, y_ticks) for title, by_row in found]


def _chart(
    title: str,
    by_row: Sequence[tuple[int, RowFound, Sequence[Summary]]],
    y_range: tuple[float, float],
    y_ticks: tuple[tuple[float, str], ...],
) -> Chart:
    lines, levels = [], []
    for place, row, steps in by_row:
        means = [each.mean for each in steps]
        if row.at_once and means and means[-1] is not None:
            levels.append(Level(row.name, place, means[-1]))
        elif any(mean is not None for mean in means):
            points = tuple((step + 1.0, mean) for step, mean in enumerate(means))
            spread = tuple(
                (step + 1.0, each.mean - each.deviation, each.mean + each.deviation)
                for step, each in enumerate(steps)
                if each.mean is not None and each.deviation is not None
            )
            lines.append(Line(row.name, place, points, spread=spread))
    count = max((len(steps) for _, row, steps in by_row if not row.at_once), default=1)
    tips = []
    for x, name in step_ticks(count):
        words = [
            f"{row.name}: {Cell(steps[int(x) - 1]).text}"
            for _, row, steps in by_row
            if not row.at_once and int(x) <= len(steps) and steps[int(x) - 1].mean is not None
        ]
        words += [f"{level.label} (ceiling): {number(level.value)}" for level in levels]
        tips.append((x, "\n".join([f"{title}, after step {name}", *words])))
    return Chart(title, tuple(lines), step_ticks(count), y_range, y_ticks, "step", tuple(levels), tips=tuple(tips))


def _by_step(runs: Sequence[RunFound], read: Callable[[StepFound], float | None]) -> list[Summary]:
    count = max((len(run.steps) for run in runs), default=0)
    return [summary([read(run.steps[step]) for run in runs if step < len(run.steps)]) for step in range(count)]
