"""Writes the tables of benchmark.md again from the studies in docs/studies: `python docs/benchmark_tables.py`.

A table stands between `<!-- STUDY: PART -->` and `<!-- end -->`, where STUDY is a folder of docs/studies and PART one
of the names in `PARTS`. The folder holds the `study.json` that `comastre compare` wrote, or, of lessons of one class,
the `cells.json` of benchmarks/add_a_class.py, whose parts are in benchmarks/lesson_tables.py. What a page says is
computed from these, so that no number in it was typed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from comastre.files import write_whole
from comastre.report.study_numbers import mask_totals
from comastre.report.study_tables import as_markdown, differences_markdown, study_tables
from comastre.report.study_words import all_words
from comastre.studies.found import StudyFound, read_found

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent / "benchmarks"))
import lesson_tables  # noqa: E402 (a script's neighbour, found by the line above)

CELLS = "cells.json"
MACHINE = ("device", "cores", "torch", "comastre")
BLOCK = re.compile(r"<!-- (?P<study>[\w-]+): (?P<part>\w+) -->\n(?P<body>.*?)<!-- end -->", flags=re.DOTALL)


def table(name: str) -> Callable[[StudyFound], str]:
    """A part that is one of the study's tables."""

    def part(study: StudyFound) -> str:
        found = {each.name: each for each in study_tables(study, study.convention)}
        return as_markdown(found[name])

    return part


def words(study: StudyFound) -> str:
    """Who is first and by how much, and which of the paper's orders hold."""
    return "".join(f"- {' '.join(all_words(study, setting, study.convention))}\n" for setting in study.settings)


def where_the_masks_went(study: StudyFound) -> str:
    """Of the true masks, summed over a row's runs: how many were right, and what became of the others."""
    parts = []
    for setting in study.settings:
        lines = [
            f"| {setting.label} | base: right | wrong class | below alpha | not proposed "
            "| later: right | wrong class | below alpha | not proposed |",
            "|---|" + "---:|" * 8,
        ]
        for row in study.rows:
            totals = [mask_totals(study, setting, row, part) for part in ("base", "later")]
            if not any(map(sum, totals)):
                continue  # no proposals to ask
            cells = [f"{100 * count / max(sum(counts), 1):.0f} %" for counts in totals for count in counts]
            lines.append(f"| {row.name} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def cost(study: StudyFound) -> str:
    """The machine, and how long the runs trained by their own clocks."""
    done = [run for run in study.runs if run.finished]
    hours = sum(run.seconds for run in done) / 3600
    machine = "; ".join(f"{name} {value}" for name, value in study.environment.items() if name in MACHINE)
    return (
        f"{len(done)} runs, {hours:.1f} hours by their own clocks (a first step counts in every run that begins with "
        f"it). {machine}.\n"
    )


PARTS: Mapping[str, Callable[[StudyFound], str]] = {
    "scores": table("scores"),
    "proposals": table("proposals"),
    "orders": table("orders"),
    "differences": lambda study: differences_markdown(study, study.convention),
    "words": words,
    "masks": where_the_masks_went,
    "cost": cost,
}


def filled(page: str, studies: Path) -> str:
    """The page with every table as its study has it."""

    def block(found: re.Match[str]) -> str:
        folder, part = studies / found["study"], found["part"]
        if (folder / CELLS).exists():
            text = lesson_tables.PARTS[part](lesson_tables.read_cells([folder / CELLS]))
        else:
            text = PARTS[part](read_found(folder))
        return f"<!-- {found['study']}: {part} -->\n\n{text}\n<!-- end -->"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    path = DOCS / "benchmark.md"
    write_whole(path, filled(path.read_text(encoding="utf-8"), DOCS / "studies").encode())
