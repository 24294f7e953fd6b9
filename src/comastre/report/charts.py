"""The charts of the page, from the numbers of a group."""

from __future__ import annotations

from collections.abc import Sequence

from comastre.report.gather import LossCurve
from comastre.report.groups import Group
from comastre.report.numbers import ceiling, known, results_of, scores
from comastre.report.paper import Reference
from comastre.report.sentences import number
from comastre.report.svg import Chart, Level, Line, Mark, percent_axis, round_axis

PANELS = (("base", "Base classes"), ("inc", "Classes learned later"), ("all", "All classes so far"))
MOST_POINTS = 240
"""Points of a loss curve; more cannot be told apart on a page."""


def score_charts(group: Group, convention: str, paper: Reference | None) -> list[Chart]:
    """Base, incremented and all over the steps, on one scale, with the joint ceiling dashed."""
    steps = max((len(results_of(entry).steps) for entry in group.scored), default=0)
    found = {entry.place: scores(entry, convention) for entry in group.scored}
    ceilings = {entry.place: ceiling(entry, group, convention) for entry in group.ceilings}
    reference = paper.ours if paper is not None and convention == "paper" else None
    everything = [getattr(score, name) for name, _ in PANELS for each in found.values() for score in each]
    everything += [getattr(score, name) for name, _ in PANELS for score in ceilings.values()]
    everything += [getattr(reference, name) for name, _ in PANELS] if reference else []
    y_range, y_ticks = percent_axis(everything)
    charts = []
    for name, title in PANELS:
        if name == "inc" and steps < 2:
            continue
        lines = tuple(
            Line(
                entry.label,
                entry.place,
                tuple((step + 1.0, known(getattr(score, name))) for step, score in enumerate(found[entry.place])),
                tuple(
                    f"{entry.label}, {title.lower()}, after step {step + 1}: {number(getattr(score, name))} mIoU"
                    for step, score in enumerate(found[entry.place])
                ),
            )
            for entry in group.scored
        )
        levels = tuple(
            Level(f"{entry.label}, {title.lower()}", entry.place, value)
            for entry in group.ceilings
            if (value := known(getattr(ceilings[entry.place], name))) is not None
        )
        value = getattr(reference, name) if reference else None
        planned = max((_planned_steps(group), steps))
        marks = (
            (Mark(f"the paper's CoMasTRe, {title.lower()}, after the last step: {value:.1f} mIoU", planned, value),)
            if value is not None
            else ()
        )
        charts.append(
            Chart(title, lines, step_ticks(planned if marks else steps), y_range, y_ticks, "step", levels, marks)
        )
    return charts


def recall_charts(group: Group) -> list[Chart]:
    """Average recall of proposals at s > 0 and at s > alpha over the steps."""
    steps = max((len(results_of(entry).steps) for entry in group.scored), default=0)
    everything = [value for entry in group.scored for step in results_of(entry).steps for value in (step.recall.all,)]
    y_range, y_ticks = percent_axis([known(value) for value in everything])
    charts = []
    for name, title, words in (
        ("all", "Recall of all proposals (s > 0)", "recall of all proposals"),
        ("confident", "Recall of confident proposals (s > α)", "recall of confident proposals"),
    ):
        lines = tuple(
            Line(
                entry.label,
                entry.place,
                tuple((step.step + 1.0, known(getattr(step.recall, name))) for step in results_of(entry).steps),
                tuple(
                    f"{entry.label}, {words}, after step {step.step + 1}: {number(getattr(step.recall, name))} %"
                    for step in results_of(entry).steps
                ),
            )
            for entry in group.scored
        )
        charts.append(Chart(title, lines, step_ticks(steps), y_range, y_ticks, "step"))
    return charts


def loss_charts(group: Group) -> list[Chart]:
    """One small chart per loss term, all runs in it; the total first, then the terms in the order they appear."""
    names: dict[str, None] = {}
    for entry in group.everybody:
        names |= dict.fromkeys(curve.name for curve in entry.run.losses)
    ordered = sorted(names, key=lambda name: name != "total")
    longest = max((curve.iterations[-1] for entry in group.everybody for curve in entry.run.losses), default=1)
    dividers = max((entry.run.boundaries for entry in group.everybody), key=len, default=())
    charts = []
    for name in ordered:
        lines = []
        for entry in group.everybody:
            for curve in entry.run.losses:
                if curve.name == name:
                    points = _with_gaps(thinned(curve), entry.run.boundaries)
                    lines.append(Line(entry.label, entry.place, points))
        y_range, y_ticks = round_axis([value for line in lines for _, value in line.points if value is not None])
        ticks = ((0.0, "0"), (float(longest), f"{longest:,}"))
        charts.append(
            Chart(
                name.replace("_", " "),
                tuple(lines),
                ticks,
                y_range,
                y_ticks,
                dividers=tuple(map(float, dividers)),
                size=(300, 150),
            )
        )
    return charts


def thinned(curve: LossCurve, most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """Means of neighbouring points, so that there are at most `most`."""
    every = max(1, -(-len(curve.values) // most))
    points = []
    for first in range(0, len(curve.values), every):
        values = curve.values[first : first + every]
        iterations = curve.iterations[first : first + every]
        points.append((float(iterations[-1]), sum(values) / len(values)))
    return points


def step_ticks(steps: int) -> tuple[tuple[float, str], ...]:
    """Numbers of the steps, from 1."""
    return tuple((float(step), str(step)) for step in range(1, steps + 1))


def _with_gaps(
    points: Sequence[tuple[float, float]], boundaries: Sequence[int]
) -> tuple[tuple[float, float | None], ...]:
    """Lines end where a step ends: what joins two steps is not a loss."""
    found: list[tuple[float, float | None]] = []
    previous = None
    for at, value in points:
        step = sum(at > boundary for boundary in boundaries)
        if previous is not None and step != previous:
            found.append((at, None))
        found.append((at, value))
        previous = step
    return tuple(found)


def _planned_steps(group: Group) -> int:
    """How many steps the stream has, whether or not a run has come so far."""
    longest = group.longest
    if longest is None:
        return 0
    results = results_of(longest)
    learned = sum(len(step.new_classes) for step in results.steps)
    increment = len(results.steps[1].new_classes) if len(results.steps) > 1 else _increment(results.setting)
    remaining = len(results.class_order) - learned
    return len(results.steps) + (-(-remaining // increment) if increment else 0)


def _increment(setting: str) -> int:
    _, _, later = setting.partition("-")
    return int(later) if later.isdigit() else 0
