"""The verb `comastre report`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import tyro

from comastre.config.conventions import CONVENTIONS
from comastre.errors import UserError
from comastre.text import say

Runs = Annotated[list[Path], tyro.conf.arg(metavar="RUN")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
_CONVENTION = f"How mIoU is averaged: {', '.join(CONVENTIONS)}; by default as the first run says."
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]


def report(
    runs: tyro.conf.Positional[Runs],
    /,
    out: File = None,
    figures: Folder = None,
    tables: Folder = None,
    convention: Annotated[str | None, tyro.conf.arg(metavar="NAME", help=_CONVENTION)] = None,
) -> int:
    """Show on one page what runs learned and forgot; runs of one setting share their charts.

    Args:
        runs: Run directories, finished or not; a joint run is the ceiling of the others. Or the folder of a study.
        out: The page; by default report.html in the run, or in this folder for several runs.
        figures: Also save every chart here, as SVG, PDF and PNG.
        tables: Also save every table here, as CSV, Markdown and LaTeX.
    """
    from comastre.config.run_files import CONFIG
    from comastre.studies.directory import STUDY

    if len(runs) == 1 and (runs[0] / STUDY).is_file() and not (runs[0] / CONFIG).exists():
        return _of_study(runs[0], {"--out": out, "--figures": figures, "--tables": tables}, convention)
    from comastre.report.terminal import show
    from comastre.report.write import REPORT, convention_of, write_report

    page = out or (runs[0] / REPORT if len(runs) == 1 else Path(REPORT))
    groups = write_report(runs, page, convention=convention, figures=figures, tables=tables)
    show(groups, convention_of(groups, convention))
    also = [f"figures in {figures}"] * (figures is not None) + [f"tables in {tables}"] * (tables is not None)
    say(f"The report is {page}" + "".join(f", {words}" for words in also))
    return 0


def _of_study(folder: Path, given: Mapping[str, Path | None], convention: str | None) -> int:
    """The page and tables of a study, again, from its file."""
    from comastre.report.study_write import write_study
    from comastre.studies.found import read_found

    for name, value in given.items():
        if value is not None:
            raise UserError(f"{folder} is a study, whose page and tables lie in its folder: leave out {name}")
    if convention is not None and convention not in CONVENTIONS:
        raise UserError(f"--convention is {convention} but must be one of {', '.join(CONVENTIONS)}")
    write_study(read_found(folder), folder, convention)
    return 0
