"""The charts of the page, from the numbers of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comastre.report.gather import LossCurve
from comastre.report.groups import Group
from comastre.report.numbers import ceiling, known, proposing, results_of, scores
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
            )
            for entry in group.scored
        )
        levels = tuple(
            Level(entry.label, entry.place, value)
            for entry in group.ceilings
            if (value := known(getattr(ceilings[entry.place], name))) is not None
        )
        value = getattr(reference, name) if reference else None
        planned = max(_planned_steps(group), steps)
        marks = (Mark(planned, value),) if value is not None else ()
        ticks = step_ticks(planned if marks else steps)
        levels_too = [(f"{level.label} (ceiling)", level.value) for level in levels]
        at_the_end = {planned: ("the paper's CoMasTRe", value)} if value is not None else {}
        tips = step_tips(title, lines, levels_too, at_the_end, ticks)
        charts.append(Chart(title, lines, ticks, y_range, y_ticks, "step", levels, marks, tips))
    return charts


def recall_charts(group: Group) -> list[Chart]:
    """Average recall of proposals at s > 0 and at s > alpha over the steps; none where no run proposes masks."""
    entries = proposing(group)
    if not entries:
        return []
    steps = max(len(results_of(entry).steps) for entry in entries)
    # Of all proposals it is never less than of the confident ones.
    y_range, y_ticks = percent_axis(
        [step.recall.all for entry in entries for step in results_of(entry).steps if step.recall is not None]
    )
    charts = []
    for name, title in (
        ("all", "Recall of all proposals (s > 0)"),
        ("confident", "Recall of confident proposals (s > α)"),
    ):
        lines = tuple(
            Line(
                entry.label,
                entry.place,
                tuple((step.step + 1.0, known(getattr(step.recall, name, None))) for step in results_of(entry).steps),
            )
            for entry in entries
        )
        ticks = step_ticks(steps)
        charts.append(Chart(title, lines, ticks, y_range, y_ticks, "step", tips=step_tips(title, lines, [], {}, ticks)))
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
                    lines.append(Line(entry.label, entry.place, points, markers=False))
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


def step_tips(
    title: str,
    lines: Sequence[Line],
    everywhere: Sequence[tuple[str, float]],
    somewhere: Mapping[int, tuple[str, float]],
    ticks: Sequence[tuple[float, str]],
) -> tuple[tuple[float, str], ...]:
    """What the pointer shows at each step: the values of all lines there, and of what else is drawn."""
    tips = []
    for x, name in ticks:
        values = [(line.label, value) for line in lines for at, value in line.points if at == x and value is not None]
        values += [*everywhere, *([somewhere[int(x)]] if int(x) in somewhere else [])]
        words = [f"{label}: {number(value)}" for label, value in values]
        tips.append((x, "\n".join([f"{title}, after step {name}", *words])))
    return tuple(tips)


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
