"""The tables of a study as CSV, Markdown and LaTeX, ready for a paper: mean ± sd, the best bold, the second underlined.

A CSV file has a line per number, with all digits; the other two are laid out for people.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.files import write_whole
from comastre.report.study_numbers import (
    TITLES,
    Cell,
    by_order,
    cells,
    class_cells,
    differences,
    metrics_of,
    order_title,
    proposal_metrics,
    rivals_of,
)
from comastre.report.study_words import RULE, headline_metric
from comastre.report.tables import escaped, harmless
from comastre.studies.found import SettingFound, StudyFound
from comastre.studies.statistics import Groups, summary


@dataclass(frozen=True)
class Line:
    """One row of a table: a name and its cells, column by column."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Block:
    """Columns that belong together, such as those of a setting."""

    title: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class StudyTable:
    """Lines over blocks of columns."""

    name: str
    title: str
    first: str
    """What the names of the lines are."""
    blocks: tuple[Block, ...]
    lines: tuple[Line, ...]
    beside: bool = False
    """Whether the paper's numbers stand in brackets: at other scales than its own they cannot be compared."""


def write_study_tables(study: StudyFound, convention: str, folder: Path) -> list[Path]:
    """Every table of a study in three formats."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    texts: dict[str, str] = {}
    for table in study_tables(study, convention):
        texts |= {
            f"{table.name}.csv": as_csv(table),
            f"{table.name}.md": as_markdown(table),
            f"{table.name}.tex": as_latex(table),
        }
    texts["differences.csv"] = differences_csv(study, convention)
    texts["differences.md"] = differences_markdown(study, convention)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
        written.append(folder / name)
    return written


def study_tables(study: StudyFound, convention: str) -> list[StudyTable]:
    """Scores; proposals where there are some; class orders where there are several; classes, a table per setting with a
    finished run."""
    scale = f", scale {study.scale}" if study.scale else ""
    what = f"{study.title}{scale}"
    kind = "mIoU" if study.metric == "all" else "average recall (AR) of proposals, and mIoU of all classes,"
    tables = [
        _scores(study, convention, "scores", f"{what}: {kind} in percent, convention {convention}", metrics_of(study))
    ]
    if proposals := proposal_metrics(study):
        title = f"{what}: average recall (AR) of proposals in percent"
        tables.append(_scores(study, convention, "proposals", title, proposals))
    if len(study.orders) > 1:
        tables.append(_orders(study, convention, what))
    for place, setting in enumerate(study.settings, start=1):
        number = f"-{place}" if len(study.settings) > 1 else ""
        rows = [row for row in study.rows if study.of(row.name, setting.label)]
        if not rows:
            continue  # LaTeX knows no block of 0 columns
        lines = [
            Line(name, tuple(found[row.name] for row in rows)) for name, found in class_cells(study, setting).items()
        ]
        title = f"{what}: IoU per class after the last step in percent, {setting.label}"
        block = Block(setting.label, tuple(row.name for row in rows))
        tables.append(StudyTable(f"classes{number}", title, "class", (block,), tuple(lines)))
    return tables


def _scores(study: StudyFound, convention: str, name: str, title: str, metrics: Sequence[str]) -> StudyTable:
    found = [cells(study, setting, metrics, convention) for setting in study.settings]
    lines = []
    for row in study.rows:
        own = tuple(each[row.name][metric] for each in found for metric in metrics)
        lines.append(Line(row.name, own))
    blocks = tuple(Block(setting.label, tuple(TITLES[metric] for metric in metrics)) for setting in study.settings)
    return StudyTable(name, title, "row", blocks, tuple(lines), beside=study.scale == "paper")


def _orders(study: StudyFound, convention: str, what: str) -> StudyTable:
    """A row's mean in every class order, and how far orders differ, and runs of one order."""
    metric = headline_metric(study)
    found = [by_order(study, setting, metric, convention) for setting in study.settings]
    lines = [
        Line(row.name, tuple(cell for each in found for cell in order_cells(each[row.name]))) for row in study.rows
    ]
    blocks = tuple(Block(setting.label, order_columns(study)) for setting in study.settings)
    title = f"{what}: {TITLES[metric]} by class order in percent, and the standard deviation of orders and of seeds"
    return StudyTable("orders", title, "row", blocks, tuple(lines))


def order_columns(study: StudyFound) -> tuple[str, ...]:
    """Heads of `order_cells`."""
    return (*map(order_title, study.orders), "between orders", "within an order")


def order_cells(groups: Groups) -> tuple[Cell, ...]:
    """The mean of every order, the spread between orders, and that within one."""
    spreads = (Cell(summary([spread])) for spread in (groups.between, groups.within))
    return (*map(Cell, groups.groups), *spreads)


# --- formats ---------------------------------------------------------------------------------------------------------


def as_csv(table: StudyTable) -> str:
    """A line per number: mean, spread, every run's value, and the paper's number."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([table.first, "setting", "column", "mean", "sd", "runs", "rank", "paper", "values"])
    columns = [(block.title, column) for block in table.blocks for column in block.columns]
    for line in table.lines:
        for (block, column), cell in zip(columns, line.cells, strict=True):
            numbers = [cell.mean, cell.summary.deviation]
            rest = [len(cell.summary.values), cell.rank, cell.paper, " ".join(map(str, cell.summary.values))]
            given = [harmless(line.name), harmless(block), harmless(column), *numbers, *rest]
            writer.writerow(["" if each is None else each for each in given])
    return content.getvalue()


def as_markdown(table: StudyTable) -> str:
    """A table per block; the paper's number in brackets."""
    parts = [f"{table.title}\n"]
    start = 0
    for block in table.blocks:
        head = [table.first, *block.columns]
        lines = [_line(map(_no_bar, head)), _line(["---", *["---:"] * len(block.columns)])]
        for line in table.lines:
            own = line.cells[start : start + len(block.columns)]
            lines.append(
                _line(
                    [
                        _no_bar(line.name),
                        *(_marked(cell, table.beside, "**{}**".format, "<u>{}</u>".format) for cell in own),
                    ]
                )
            )
        parts.append((f"{block.title}\n\n" if len(table.blocks) > 1 else "") + "\n".join(lines) + "\n")
        start += len(block.columns)
    return "\n".join(parts)


def as_latex(table: StudyTable) -> str:
    """A booktabs table with the blocks side by side, to be used with \\usepackage{booktabs}."""
    columns = [column for block in table.blocks for column in block.columns]
    heads, rules, start = [], [], 2
    for block in table.blocks:
        end = start + len(block.columns) - 1
        heads.append(rf"\multicolumn{{{len(block.columns)}}}{{c}}{{{escaped(block.title)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    body = []
    for line in table.lines:
        shown = [
            _marked(cell, table.beside, r"\textbf{{{}}}".format, r"\underline{{{}}}".format, escaped)
            for cell in line.cells
        ]
        body.append(" & ".join([escaped(line.name), *shown]) + r" \\")
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *heads]) + r" \\",
        " ".join(rules),
        " & ".join([escaped(table.first), *map(escaped, columns)]) + r" \\",
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _marked(
    cell: Cell,
    beside: bool,
    bold: Callable[[str], str],
    under: Callable[[str], str],
    escape: Callable[[str], str] = str,
) -> str:
    """Mean and spread, marked by rank, and what the paper has."""
    text = escape(cell.text)
    text = bold(text) if cell.rank == 1 else under(text) if cell.rank == 2 else text
    return f"{text} ({cell.paper:.1f})" if beside and cell.paper is not None else text


# --- differences -----------------------------------------------------------------------------------------------------


def differences_csv(study: StudyFound, convention: str) -> str:
    """Every pair of rows: the mean difference, its spread, its interval, and the verdict."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(["setting", "metric", "row", "minus", "mean", "sd", "pairs", "half width of 95 %", "verdict"])
    metric = headline_metric(study)
    for setting in study.settings:
        for each in differences(study, setting, metric, convention):
            found = each.difference
            numbers = [found.differences.mean, found.differences.deviation, found.pairs, found.half_width]
            shown = ["" if number is None else number for number in numbers]
            names = map(harmless, (setting.label, metric, each.row, each.other))
            writer.writerow([*names, *shown, found.verdict])
    return content.getvalue()


def differences_markdown(study: StudyFound, convention: str) -> str:
    """Row minus column; bold where that is beyond the spread."""
    metric = headline_metric(study)
    names = [row.name for row in rivals_of(study)]
    parts = [f"Row minus column on {TITLES[metric]}, in points. {RULE} (bold).\n"]
    parts += [_differences_of(study, setting, names, metric, convention) for setting in study.settings]
    return "\n".join(parts)


def _differences_of(
    study: StudyFound, setting: SettingFound, names: Sequence[str], metric: str, convention: str
) -> str:
    found = {(each.row, each.other): each.difference for each in differences(study, setting, metric, convention)}
    lines = [_line(map(_no_bar, [setting.label, *names])), _line(["---", *["---:"] * len(names)])]
    for one in names:
        shown = [_no_bar(one)]
        for other in names:
            difference = found.get((one, other))
            mean = None if difference is None else difference.differences.mean
            text = "" if mean is None else f"{mean:+z.1f}"
            shown.append(f"**{text}**" if difference is not None and difference.verdict == "beyond" else text)
        lines.append(_line(shown))
    return "\n".join(lines) + "\n"


def _line(parts: Sequence[str] | map[str]) -> str:
    return f"| {' | '.join(parts)} |"


def _no_bar(text: str) -> str:
    return text.replace("|", r"\|")
