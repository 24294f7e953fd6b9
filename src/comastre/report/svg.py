"""Line charts as inline SVG: colours come from the page's style, so that one drawing serves light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

# Shapes tell runs apart where colours cannot: round, square, triangle, diamond.
_MARKERS = ("circle", "square", "triangle", "diamond")


@dataclass(frozen=True)
class Line:
    """One line; None leaves a gap."""

    label: str
    place: int
    """Which run it is: decides colour and marker."""
    points: tuple[tuple[float, float | None], ...]
    markers: bool = True
    spread: tuple[tuple[float, float, float], ...] = ()
    """(x, low, high) of thin vertical lines, such as a standard deviation on either side."""


@dataclass(frozen=True)
class Level:
    """A dashed level across the chart, such as a ceiling."""

    label: str
    place: int
    value: float


@dataclass(frozen=True)
class Mark:
    """A hollow mark at one place, such as a number of the paper."""

    x: float
    value: float


@dataclass(frozen=True)
class Chart:
    """A chart whose x values are numbers; `ticks` names some of them."""

    title: str
    lines: tuple[Line, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_range: tuple[float, float]
    y_ticks: tuple[tuple[float, str], ...]
    x_title: str = ""
    levels: tuple[Level, ...] = ()
    marks: tuple[Mark, ...] = ()
    tips: tuple[tuple[float, str], ...] = ()
    """What the pointer shows around each x."""
    dividers: tuple[float, ...] = ()
    """Thin vertical lines, such as where a step begins."""
    size: tuple[int, int] = (360, 230)


def percent_axis(values: Sequence[float | None]) -> tuple[tuple[float, float], tuple[tuple[float, str], ...]]:
    """Range and ticks from 0 to just above the largest value, in round steps of percent."""
    largest = max([value for value in values if value is not None and math.isfinite(value)], default=100.0)
    spacing = next(step for step in (2, 5, 10, 20, 25) if step == 25 or largest <= step * 5)
    top = min(100, max(spacing, math.ceil(largest * 1.04 / spacing) * spacing))
    return (0.0, float(top)), tuple((float(at), str(at)) for at in range(0, top + 1, spacing))


def round_axis(values: Sequence[float]) -> tuple[tuple[float, float], tuple[tuple[float, str], ...]]:
    """Range and about four ticks from 0 to above the largest value, at round numbers."""
    largest = max([value for value in values if math.isfinite(value)], default=1.0)
    if largest <= 0:
        return (0.0, 1.0), ((0.0, "0"), (1.0, "1"))
    rough = largest / 3
    scale = 10.0 ** math.floor(math.log10(rough))
    spacing = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * 0.999)
    count = math.ceil(largest / spacing - 1e-9)
    return (0.0, count * spacing), tuple((index * spacing, f"{index * spacing:.4g}") for index in range(count + 1))


def draw(chart: Chart) -> Markup:
    """The SVG; its description lists the last value of every line for those who cannot see it."""
    width, height = chart.size
    left, right, top, bottom = 34.0, 12.0, 10.0, 36.0 if chart.x_title else 22.0
    xs = [x for line in chart.lines for x, _ in line.points] + [x for x, _ in chart.x_ticks] + list(chart.dividers)
    x_low, x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    y_low, y_high = chart.y_range
    # Markers of the first and last point stay inside.
    margin = 10.0 if any(line.markers for line in chart.lines) else 0.0

    def at(x: float, y: float) -> tuple[float, float]:
        across = left + margin + (x - x_low) / (x_high - x_low) * (width - left - right - 2 * margin)
        share = (min(max(y, y_low), y_high) - y_low) / (y_high - y_low)
        return across, height - bottom - share * (height - top - bottom)

    parts: list[str] = []
    for y, text in chart.y_ticks:
        _, down = at(x_low, y)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{down:.1f}" y2="{down:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{down + 3.5:.1f}" text-anchor="end">{escape(text)}</text>')
    for x in chart.dividers:
        across, _ = at(x, y_low)
        parts.append(
            f'<line class="divider" x1="{across:.1f}" x2="{across:.1f}" y1="{top}" y2="{height - bottom:.1f}"/>'
        )
    for x, text in chart.x_ticks:
        across, _ = at(x, y_low)
        anchor = "end" if across + 3.5 * len(text) > width else "middle"
        parts.append(
            f'<text class="tick" x="{across:.1f}" y="{height - bottom + 15:.1f}" text-anchor="{anchor}">'
            f"{escape(text)}</text>"
        )
    if chart.x_title:
        middle = (left + width - right) / 2
        parts.append(
            f'<text class="tick" x="{middle:.1f}" y="{height - 4}" text-anchor="middle">{escape(chart.x_title)}</text>'
        )
    for level in chart.levels:
        _, down = at(x_low, level.value)
        span = f'x1="{left}" x2="{width - right}" y1="{down:.1f}" y2="{down:.1f}"'
        parts.append(f'<line class="level run-{level.place % 8}" {span}/>')
    for line in chart.lines:
        parts += _line(line, at)
    for mark in chart.marks:
        across, down = at(mark.x, mark.value)
        parts.append(f'<path class="paper-mark" d="M{across:.1f} {down - 6:.1f}l6 6l-6 6l-6 -6z"/>')
    # One band per step, because points of several runs may lie on one another.
    places = [at(x, y_low)[0] for x, _ in chart.tips]
    edges = [left, *((one + next_one) / 2 for one, next_one in pairwise(places)), width - right]
    for (_, tip), start, end in zip(chart.tips, edges, edges[1:], strict=False):
        box = f'x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="{height - top - bottom:.1f}"'
        parts.append(f'<rect class="hit" {box} data-tip="{escape(tip)}"/>')
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(_described(chart))}">'
        f"{''.join(parts)}</svg>"
    )


def _line(line: Line, at: Callable[[float, float], tuple[float, float]]) -> list[str]:
    commands, pen_down = [], False
    places: list[tuple[float, float]] = []
    for x, y in line.points:
        if y is None or not math.isfinite(y):
            pen_down = False
            continue
        across, down = at(x, y)
        commands.append(f"{'L' if pen_down else 'M'}{across:.1f} {down:.1f}")
        places.append((across, down))
        pen_down = True
    parts = []
    for x, low, high in line.spread:
        (across, bottom), (_, top) = at(x, low), at(x, high)
        span = f'x1="{across:.1f}" x2="{across:.1f}" y1="{bottom:.1f}" y2="{top:.1f}"'
        parts.append(f'<line class="whisker run-{line.place % 8}" {span}/>')
    if commands:
        parts.append(f'<path class="line run-{line.place % 8}" d="{"".join(commands)}"/>')
    if line.markers:
        parts += [marker(line.place, *place) for place in places]
    return parts


def marker(place: int, x: float, y: float) -> str:
    """The marker of a run, centred at x, y."""
    shape = _MARKERS[place % len(_MARKERS)]
    style = f'class="marker run-{place % 8}"'
    if shape == "circle":
        return f'<circle {style} cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    outline = {
        "square": f"M{x - 3.6:.1f} {y - 3.6:.1f}h7.2v7.2h-7.2z",
        "triangle": f"M{x:.1f} {y - 5:.1f}l4.8 8.6h-9.6z",
        "diamond": f"M{x:.1f} {y - 5.4:.1f}l5.4 5.4l-5.4 5.4l-5.4 -5.4z",
    }[shape]
    return f'<path {style} d="{outline}"/>'


def legend_key(place: int, dashed: bool = False) -> Markup:
    """A small line with the run's marker, for legends and table headings."""
    style = f"line run-{place % 8}{' dashed' if dashed else ''}"
    symbol = "" if dashed else marker(place, 13, 7)
    return Markup(
        f'<svg class="key" viewBox="0 0 26 14" aria-hidden="true"><path class="{style}" d="M1 7H25"/>{symbol}</svg>'
    )


def _described(chart: Chart) -> str:
    lines = []
    for line in chart.lines:
        values = [y for _, y in line.points if y is not None and math.isfinite(y)]
        if values:
            lines.append(f"{line.label} from {values[0]:.3g} to {values[-1]:.3g}")
    lines += [f"{level.label} {level.value:.3g}" for level in chart.levels]
    return f"{chart.title}: {'; '.join(lines) or 'no values yet'}"
