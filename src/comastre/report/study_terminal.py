"""A study in short, for the terminal: its table, what is beyond the spread, and whether the paper's order holds."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from comastre.report.study_numbers import TITLES, Cell, cells, metrics_of
from comastre.report.study_words import all_words
from comastre.studies.found import SettingFound, StudyFound
from comastre.text import visible

_WIDE = 160
"""Columns where there is no terminal."""


def show_study(study: StudyFound, convention: str, console: Console | None = None) -> None:
    """Print the table of every setting and what it says."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=max(_WIDE, console.width))  # a log has room for every column
    unicode = console.encoding.lower().startswith("utf")
    for setting in study.settings:
        console.print(_table(study, setting, convention, unicode))
        for sentence in all_words(study, setting, convention):
            console.print(visible(sentence), highlight=False, markup=False, soft_wrap=True)


def _table(study: StudyFound, setting: SettingFound, convention: str, unicode: bool) -> Table:
    scale = f" ({study.scale})" if study.scale else ""
    table = Table(
        title=escape(visible(f"{study.title}{scale}: {setting.label}, in %, convention {convention}")),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        padding=(0, 1),
    )
    metrics = metrics_of(study)
    found = cells(study, setting, metrics, convention)
    beside = study.scale == "paper" and any(cell.paper is not None for row in found.values() for cell in row.values())
    table.add_column("row", overflow="fold")
    table.add_column("runs", justify="right")
    for metric in metrics:
        table.add_column(TITLES[metric], justify="right", no_wrap=True)
        if beside:
            table.add_column("paper", justify="right", no_wrap=True, style="dim")
    for row in study.rows:
        shown = []
        for metric in metrics:
            cell = found[row.name][metric]
            shown.append(_marked(cell, unicode))
            if beside:
                shown.append("" if cell.paper is None else f"{cell.paper:.1f}")
        name = f"{row.name} (ceiling)" if row.at_once and any(not each.at_once for each in study.rows) else row.name
        table.add_row(escape(visible(name)), str(len(study.of(row.name, setting.label))), *shown)
    return table


def _marked(cell: Cell, unicode: bool) -> str:
    """Mean and spread; the best bold, the second underlined."""
    text = cell.text
    if not unicode:
        text = text.replace("±", "+-").replace("–", "-")
    return f"[bold]{text}[/bold]" if cell.rank == 1 else f"[underline]{text}[/underline]" if cell.rank == 2 else text
