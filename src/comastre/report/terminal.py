"""The report in short, for the terminal: a table with sparklines, and where the page is."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from comastre.report.groups import Group
from comastre.report.numbers import average, ceiling, known, mean_forgetting, not_proposing, scores
from comastre.report.paper import reference
from comastre.report.sentences import no_proposals_words, number, state_words
from comastre.text import visible

_BLOCKS = "▁▂▃▄▅▆▇█"
_PLAIN = "_.-=*#%@"


def sparkline(values: Sequence[float | None], unicode: bool = True) -> str:
    """One block per value, on the scale 0 to 100; a space where there is none."""
    blocks = _BLOCKS if unicode else _PLAIN
    line = ""
    for value in values:
        level = None if known(value) is None else min(len(blocks) - 1, max(0, int((value or 0.0) / 100 * len(blocks))))
        line += " " if level is None else blocks[level]
    return line


def summary(group: Group, convention: str, unicode: bool = True) -> Table:
    """Every run in one row: how much of the base is kept, the last scores, and how they went over the steps."""
    dash = "–" if unicode else "-"
    table = Table(
        title=_plain(group.title), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1), collapse_padding=True
    )
    table.add_column("run", overflow="fold")
    for name in ("kept", "base", "inc", "all", "avg", "forgot"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("base", "all"):
        table.add_column(f"{name}\nby step", no_wrap=True)
    for entry in group.entries:
        if entry.run.results is None:
            table.add_row(_plain(entry.label), *[dash] * 6, "", "")
            continue
        found, share = scores(entry, convention), entry.run.results.kept
        last = found[-1]
        lines = [sparkline([getattr(score, name) for score in found], unicode) for name in ("base", "all")]
        cells = [number(value) for value in (last.base, last.inc, last.all, average(entry, convention))]
        cells.append(number(mean_forgetting(entry)))
        shown = [cell.replace("–", dash) for cell in cells]
        percent = dash if share is None else f"{share:.0f} %"
        table.add_row(_plain(entry.label), percent, *shown, *lines)
    for entry in group.ceilings:
        best = ceiling(entry, group, convention)
        cells = [number(value).replace("–", dash) for value in (best.base, best.inc, best.all)]
        table.add_row(_plain(f"{entry.label} (ceiling)"), dash, *cells, dash, dash, "", "")
    paper = reference(group.longest.run) if group.longest is not None and convention == "paper" else None
    if paper is not None and paper.ours is not None:
        row = paper.ours
        cells = [number(value).replace("–", dash) for value in (row.base, row.inc, row.all, row.avg)]
        table.add_row("CoMasTRe (the paper's)", dash, *cells, dash, "", "")
    return table


def _plain(text: str) -> str:
    """A name as it is: folders may be called [red], and a run's files may name anything."""
    return escape(visible(text))


def show(groups: Sequence[Group], convention: str, console: Console | None = None) -> None:
    """Print the summaries of all groups, what they lack, and where unfinished runs stand."""
    console = console or Console()
    unicode = console.encoding.lower().startswith("utf")
    for group in groups:
        console.print(summary(group, convention, unicode))
        for entry in not_proposing(group):
            console.print(visible(no_proposals_words(entry)), highlight=False, markup=False, soft_wrap=True)
        for entry in group.everybody:
            if words := state_words(entry.run):
                console.print(visible(f"{entry.label} {words}"), highlight=False, markup=False, soft_wrap=True)
