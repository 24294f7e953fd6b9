"""The charts as files for a paper, SVG, PDF and PNG; drawn by matplotlib: fonts and sizes can be a journal's."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.patches
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from comastre.data.images import open_picture
from comastre.evaluation.results import StepResult
from comastre.files import write_whole
from comastre.report.charts import loss_charts, recall_charts, score_charts
from comastre.report.gather import Examples
from comastre.report.groups import Entry, Group
from comastre.report.numbers import ERROR_KINDS, class_rows, errors_of, proposing, results_of, shares
from comastre.report.paper import reference
from comastre.report.svg import Chart

# Okabe and Ito's colours, which all readers can tell apart; the page's style has the same in the same order.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b35a8c", "#b07c00", "#3f9bd1", "#5b4db1", "#4a4f57")
ERROR_COLOURS = {"right": "#2f9e8f", "wrong_class": "#d9a441", "below_alpha": "#9a5ea8", "not_proposed": "#9aa3ad"}
MOST_CLASSES = 24
"""In the legend of the examples: more would be larger than the pictures."""
MARKERS = ("o", "s", "^", "D")
# Without dates: the same numbers give the same file.
_FORMATS: dict[str, dict[str, Any]] = {
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
    ".png": {"dpi": 200},
}
_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "text.parse_math": False,  # a class may be called $x$
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # and in a PDF, too: publishers refuse outlines (Type 3)
    "svg.hashsalt": "comastre",  # the same numbers give the same file
}


def write_figures(groups: Sequence[Group], convention: str, folder: Path) -> list[Path]:
    """Every figure of every group as SVG, PDF and PNG; several groups are numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        for number, group in enumerate(groups, start=1):
            prefix = f"{number}-" if len(groups) > 1 else ""
            for name, figure in figures_of(group, convention).items():
                FigureCanvasAgg(figure)
                for suffix, options in _FORMATS.items():
                    file = folder / f"{prefix}{name}{suffix}"
                    content = io.BytesIO()
                    figure.savefig(content, format=suffix[1:], bbox_inches="tight", **options)
                    write_whole(file, content.getvalue())
                    written.append(file)
    return written


def figures_of(group: Group, convention: str) -> dict[str, Figure]:
    """The figures by name; what a run does not have, or not yet, is left out."""
    found: dict[str, Figure] = {}
    longest = group.longest
    if longest is not None:
        paper = reference(longest.run)
        found["scores"] = _panels(score_charts(group, convention, paper), "mIoU in %", 2.4)
        found["classes"] = _heat_maps(group)
        if any(value is not None for row in class_rows(group) for value in row.forgetting):
            found["forgetting"] = _forgetting(group)
        if any(results_of(entry).steps[-1].errors for entry in group.scored):
            found["errors"] = _errors(group)
        recall = recall_charts(group)
        if recall:
            found["recall"] = _panels(recall, "average recall in %", 2.8)
    losses = loss_charts(group)
    if losses:
        found["losses"] = _panels(losses, "", 2.0, columns=4)
    if any(entry.run.examples.images for entry in group.everybody):
        found["examples"] = _examples(group)
    return found


def _panels(charts: Sequence[Chart], y_title: str, width: float, columns: int = 3) -> Figure:
    columns = min(columns, len(charts))
    rows = math.ceil(len(charts) / columns)
    figure = Figure(figsize=(width * columns, 0.8 * width * rows + 0.3), layout="constrained")
    handles: dict[str, Artist] = {}
    for place, chart in enumerate(charts):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_title(chart.title)
        for line in chart.lines:
            colour = COLOURS[line.place % len(COLOURS)]
            marker = MARKERS[line.place % len(MARKERS)] if line.markers else None
            xs = [x for x, _ in line.points]
            ys = [math.nan if y is None else y for _, y in line.points]
            handles[line.label] = axes.plot(xs, ys, color=colour, marker=marker, markersize=4, linewidth=1.3)[0]
        for level in chart.levels:
            label = level.label
            handles[label] = axes.axhline(level.value, color=COLOURS[level.place % 8], linestyle="--", linewidth=1.2)
        for mark in chart.marks:
            handles["the paper's CoMasTRe"] = axes.plot(mark.x, mark.value, "D", color="black", fillstyle="none")[0]
        for x in chart.dividers:
            axes.axvline(x, color="0.7", linewidth=0.6, linestyle=":")
        axes.set_xticks([x for x, _ in chart.x_ticks], [text for _, text in chart.x_ticks])
        axes.set_ylim(*chart.y_range)
        axes.set_xlabel(chart.x_title)
        if place % columns == 0 and y_title:
            axes.set_ylabel(y_title)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
    return figure


def _heat_maps(group: Group) -> Figure:
    rows = class_rows(group)
    height = 0.8 + 0.2 * len(rows)
    widths = [len(results_of(entry).steps) for entry in group.scored]
    figure = Figure(figsize=(1.2 + 0.42 * sum(widths) + 0.3 * len(widths), height), layout="constrained")
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths)
    for place, entry in enumerate(group.scored):
        axes = figure.add_subplot(grid[0, place])
        values = [[math.nan if value is None else value for value in row.ious[place]] for row in rows]
        axes.imshow(values, cmap="Blues", vmin=0, vmax=100, aspect="auto")
        for down, line in enumerate(values):
            for across, value in enumerate(line):
                if not math.isnan(value):
                    colour = "white" if value > 60 else "black"
                    axes.text(across, down, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=6.5)
        axes.set_title(entry.label)
        axes.set_xticks(range(widths[place]), [str(step + 1) for step in range(widths[place])])
        axes.set_yticks(range(len(rows)), [row.name for row in rows] if place == 0 else [])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure


def _forgetting(group: Group) -> Figure:
    rows = [row for row in class_rows(group) if any(value is not None for value in row.forgetting)]
    count = len(group.scored)
    figure = Figure(figsize=(4.2, 0.7 + len(rows) * 0.14 * (count + 0.6)), layout="constrained")
    axes = figure.add_subplot()
    for place, entry in enumerate(group.scored):
        heights = [down + (place + 0.5) / (count + 0.6) for down in range(len(rows))]
        values = [row.forgetting[place] or 0.0 for row in rows]
        axes.barh(heights, values, 1 / (count + 0.6), color=COLOURS[entry.place % 8], label=entry.label)
    axes.set_yticks([down + 0.4 for down in range(len(rows))], [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("forgetting in points of IoU")
    axes.legend(loc="lower right")
    return figure


def _errors(group: Group) -> Figure:
    names = [row.name for row in class_rows(group) if row.step is not None]
    entries = proposing(group)
    return _side_by_side(
        entries,
        0.6 + 0.17 * len(names),
        lambda axes, place: _error_bars(axes, results_of(entries[place]).steps[-1], place, names),
    )


def _error_bars(axes: Axes, step: StepResult, place: int, names: Sequence[str]) -> None:
    for down, name in enumerate(names):
        left = 0.0
        for kind, share in shares(errors_of(step, [name])).items():
            label = kind.replace("_", " ") if down == 0 else None
            axes.barh(down, share, left=left, color=ERROR_COLOURS[kind], label=label)
            left += share
    axes.set_yticks(range(len(names)), names if place == 0 else [])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xlabel("% of true masks")


def _side_by_side(entries: Sequence[Entry], height: float, draw: Callable[[Axes, int], None]) -> Figure:
    count = len(entries)
    figure = Figure(figsize=(0.8 + 2.4 * count, height + 0.5), layout="constrained")
    for place, entry in enumerate(entries):
        axes = figure.add_subplot(1, count, place + 1)
        draw(axes, place)
        axes.set_title(entry.label)
    handles = [
        matplotlib.patches.Patch(color=ERROR_COLOURS[kind], label=kind.replace("_", " ")) for kind in ERROR_KINDS
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _examples(group: Group) -> Figure:
    """Image, truth and the last prediction of every run, as the paper's qualitative figures show them."""
    entries = [entry for entry in group.everybody if entry.run.examples.images]
    first = entries[0].run.examples.images
    names = [example.name for example in first]
    entries = [entry for entry in entries if [each.name for each in entry.run.examples.images] == names]
    titles = ["image", "truth", *(entry.label for entry in entries)]
    figure = Figure(figsize=(1.1 * len(titles), 1.15 * len(first)), layout="constrained")
    present: set[int] = set()
    for down, example in enumerate(first):
        last = [entry.run.examples.images[down].predictions for entry in entries]
        files = [example.image, example.truth, *(each[max(each)] if each else None for each in last)]
        for across, file in enumerate(files):
            axes = figure.add_subplot(len(first), len(titles), down * len(titles) + across + 1)
            axes.set_axis_off()
            if file is not None:
                with open_picture(file) as picture:
                    if across > 0:  # values of label maps are labels
                        present |= {label for label, pixels in enumerate(picture.histogram()) if pixels}
                    axes.imshow(picture.convert("RGB"), interpolation="nearest")
            if down == 0:
                axes.set_title(titles[across])
    _class_legend(figure, entries[0].run.examples, present)
    return figure


def _class_legend(figure: Figure, examples: Examples, present: Collection[int]) -> None:
    """The colour of every class that is seen, in the truth or in a prediction."""
    shown = [each for label, each in enumerate(examples.labels) if label in present and label > 0][:MOST_CLASSES]
    patches = [matplotlib.patches.Patch(color=f"#{bytes(colour).hex()}") for _, colour in shown]
    if patches:
        names = [name for name, _ in shown]
        figure.legend(patches, names, loc="outside lower center", ncols=4, handlelength=1.0, columnspacing=1.0)
