"""The numbers of a report as CSV, Markdown and LaTeX files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from comastre.files import write_whole
from comastre.report.groups import Group
from comastre.report.numbers import (
    ERROR_KINDS,
    average,
    ceiling,
    class_rows,
    known,
    looking_ahead,
    not_proposing,
    proposing,
    results_of,
    scores,
)
from comastre.report.paper import reference

Cell = str | float | None

# Letters in the order of Unicode; Greek capitals that look like Latin ones have no command of their own.
_GREEK = {
    "αβγδ": r"\alpha \beta \gamma \delta",
    "εζηθ": r"\varepsilon \zeta \eta \theta",
    "ικλμ": r"\iota \kappa \lambda \mu",
    "νξοπ": r"\nu \xi o \pi",
    "ρςστ": r"\rho \varsigma \sigma \tau",
    "υφχψω": r"\upsilon \varphi \chi \psi \omega",
    "ϑϕϖϵ": r"\vartheta \phi \varpi \epsilon",
    "ΓΔΘΛΞ": r"\Gamma \Delta \Theta \Lambda \Xi",
    "ΠΣΥΦΨΩ": r"\Pi \Sigma \Upsilon \Phi \Psi \Omega",
}
_SIGNS = {
    "←↑→↓": r"\leftarrow \uparrow \rightarrow \downarrow",
    "↔⇐⇒⇔": r"\leftrightarrow \Leftarrow \Rightarrow \Leftrightarrow",
    "±×·−": r"\pm \times \cdot -",
    "≤≥≠≈∞": r"\leq \geq \neq \approx \infty",
}
_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the start of a row these would be options of the line break before it.
    "[": "{[}",
    "*": "{*}",
    "–": "--",
    **{
        character: f"${command}$"
        for characters, commands in (_GREEK | _SIGNS).items()
        for character, command in zip(characters, commands.split(), strict=True)
    },
}


@dataclass(frozen=True)
class Table:
    """A table of words and numbers; None is a number that there is not."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def write_tables(groups: Sequence[Group], convention: str, folder: Path) -> list[Path]:
    """Every table of every group in three formats; several groups are numbered."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, group in enumerate(groups, start=1):
        prefix = f"{number}-" if len(groups) > 1 else ""
        for table in tables_of(group, convention):
            for suffix, text in ((".csv", as_csv(table)), (".md", as_markdown(table)), (".tex", as_latex(table))):
                file = folder / f"{prefix}{table.name}{suffix}"
                write_whole(file, text.encode())
                written.append(file)
    return written


def tables_of(group: Group, convention: str) -> list[Table]:
    """Scores and classes of one group, and of proposals errors and recall; none before a step is finished."""
    if not group.scored:
        return []
    tables = [_score_table(group, convention), _class_table(group)]
    if proposing(group):
        tables += [_error_table(group), _recall_table(group)]
    if looking_ahead(group):
        tables.append(_later_table(group))
    return tables


def _score_table(group: Group, convention: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for entry in group.scored:
        for step, score in enumerate(scores(entry, convention), start=1):
            rows.append((entry.label, step, score.base, score.inc, score.all, None))
        last = scores(entry, convention)[-1]
        rows[-1] = (
            entry.label,
            len(results_of(entry).steps),
            last.base,
            last.inc,
            last.all,
            average(entry, convention),
        )
    for entry in group.ceilings:
        best = ceiling(entry, group, convention)
        rows.append((entry.label, "all at once", best.base, best.inc, best.all, None))
    longest = group.longest
    paper = reference(longest.run) if longest is not None else None
    if paper is not None and (paper := paper.under(convention)) is not None:
        name = "{} (the paper's number)".format
        rows += [(name(row.method), "last", row.base, row.inc, row.all, row.avg) for row in paper.rows]
    title = f"mIoU in percent, {group.title}, convention {convention}"
    return Table("scores", title, ("run", "step", "base", "inc", "all", "avg"), tuple(rows))


def _class_table(group: Group) -> Table:
    columns = ["class", "step"]
    for entry in group.scored:
        steps = [f"{entry.label}, step {step.step + 1}" for step in results_of(entry).steps]
        columns += [*steps, f"{entry.label}, forgetting"]
    rows = []
    for row in class_rows(group):
        cells: list[Cell] = [row.name, "–" if row.step is None else row.step + 1]
        for ious, lost in zip(row.ious, row.forgetting, strict=True):
            cells += [*ious, lost]
        rows.append(tuple(cells))
    return Table("classes", f"IoU and forgetting per class in percent, {group.title}", tuple(columns), tuple(rows))


def _error_table(group: Group) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for entry in group.scored:
        for step in results_of(entry).steps:
            for name, errors in step.errors.items():
                rows.append((entry.label, step.step + 1, name, *(getattr(errors, kind) for kind in ERROR_KINDS)))
    columns = ("run", "step", "class", *(kind.replace("_", " ") for kind in ERROR_KINDS))
    title = f"Where true masks were lost, {group.title}{_without_proposals(group)}"
    return Table("errors", title, columns, tuple(rows))


def _recall_table(group: Group) -> Table:
    rows = [
        (entry.label, step.step + 1, step.recall.all, step.recall.confident)
        for entry in proposing(group)
        for step in results_of(entry).steps
        if step.recall is not None
    ]
    title = f"Average recall of proposals in percent, {group.title}{_without_proposals(group)}"
    return Table("recall", title, ("run", "step", "s > 0", "s > α"), tuple(rows))


def _later_table(group: Group) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for entry in looking_ahead(group):
        for step in results_of(entry).steps:
            if step.later_recall is not None:
                found = {"all not learned yet": step.later_recall, **step.later_recall_per_class}
                rows += [(entry.label, step.step + 1, name, each.all, each.confident) for name, each in found.items()]
    title = f"Average recall of classes that are not learned yet in percent, {group.title}{_without_proposals(group)}"
    return Table("later", title, ("run", "step", "class", "s > 0", "s > α"), tuple(rows))


def _without_proposals(group: Group) -> str:
    """Which runs a table of proposals lacks, as the end of its title."""
    lacking = not_proposing(group)
    return f"; without {', '.join(entry.label for entry in lacking)}: no masks are proposed" if lacking else ""


# --- formats ---------------------------------------------------------------------------------------------------------


def as_csv(table: Table) -> str:
    """All digits, empty where there is no number."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(map(harmless, table.columns))
    for row in table.rows:
        writer.writerow(
            [harmless(cell) if isinstance(cell, str) else "" if known(cell) is None else cell for cell in row]
        )
    return content.getvalue()


def harmless(text: str) -> str:
    """Text that a spreadsheet shows and does not compute: an apostrophe before it is its sign for that."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def as_markdown(table: Table) -> str:
    """Rounded for people; numbers stand right."""
    shown = [[_text(cell).replace("|", r"\|") for cell in row] for row in table.rows]
    marks = ["---" if words else "---:" for words in _word_columns(table)]
    lines = [_line(column.replace("|", r"\|") for column in table.columns), _line(marks), *map(_line, shown)]
    return f"{table.title}\n\n" + "\n".join(lines) + "\n"


def as_latex(table: Table) -> str:
    """A booktabs table, to be used with \\usepackage{booktabs}."""
    layout = "".join("l" if words else "r" for words in _word_columns(table))
    body = [" & ".join(escaped(_text(cell)) for cell in row) + r" \\" for row in table.rows]
    head = " & ".join(map(escaped, table.columns)) + r" \\"
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escaped(table.title)}}}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _word_columns(table: Table) -> list[bool]:
    return [any(isinstance(row[place], str) for row in table.rows) for place in range(len(table.columns))]


def _text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None or known(cell) is None:
        return "–"
    return str(cell) if isinstance(cell, int) else f"{cell:.1f}"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text as LaTeX shows it."""
    return "".join(_LATEX.get(character, character) for character in text)
