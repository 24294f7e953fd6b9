"""`comastre report`: from run directories to one page, and on demand to figures and tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comastre.config.conventions import CONVENTIONS, PAPER
from comastre.config.run_files import REPORT
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.report.gather import Run, read_run
from comastre.report.groups import Group, grouped, labelled
from comastre.report.page import render
from comastre.text import complain, say


def read_groups(folders: Sequence[Path], titles: Sequence[str] | None = None) -> list[Group]:
    """The runs in `folders`, those that can be compared together."""
    if not folders:
        raise UserError("no run given: name the folders of one or more runs")
    twice = {folder for folder in folders if [each.resolve() for each in folders].count(folder.resolve()) > 1}
    if twice:
        raise UserError(f"the run {sorted(twice)[0]} is given twice: name it once")
    return grouped(labelled([read_run(folder) for folder in folders], titles))


def convention_of(groups: Sequence[Group], wanted: str | None) -> str:
    """The convention of all charts: the one asked for, or that of the first run."""
    if wanted is not None and wanted not in CONVENTIONS:
        raise UserError(f"--convention is {wanted} but must be one of {', '.join(CONVENTIONS)}")
    runs: list[Run] = [entry.run for group in groups for entry in group.everybody]
    return wanted or next((run.results.convention for run in runs if run.results is not None), PAPER)


def write_report(
    folders: Sequence[Path],
    out: Path,
    *,
    titles: Sequence[str] | None = None,
    convention: str | None = None,
    figures: Path | None = None,
    tables: Path | None = None,
) -> list[Group]:
    """Write the page `out`, and figures and tables to their folders; gives the groups of runs for a summary."""
    refuse_foreign(out)
    groups = read_groups(folders, titles)
    convention = convention_of(groups, convention)
    page = render(groups, convention, page_title(groups))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, page.encode(errors="replace"))
        if figures is not None:
            from comastre.report.figures import write_figures

            write_figures(groups, convention, figures)
        if tables is not None:
            from comastre.report.tables import write_tables

            write_tables(groups, convention, tables)
    except OSError as error:
        raise UserError(f"the report cannot be written ({error}): free some space or choose another --out") from error
    return groups


def report_after(folders: Sequence[Path], out: Path, **choices: Any) -> list[Group] | None:
    """The report of runs that have just finished; whatever goes wrong costs a sentence, not the runs."""
    try:
        return write_report(folders, out, **choices)
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        runs = " ".join(map(str, folders))
        complain(f"the training is finished, but not its report ({reason}): try `comastre report {runs}`")
        return None


def report_after_training(run: Path) -> None:
    """The page in the run directory, and its short form on the terminal; by the first of several processes."""
    if any(os.environ.get(name, "0") != "0" for name in ("RANK", "SLURM_PROCID")):
        return
    groups = report_after([run], run / REPORT)
    if groups is not None:
        from comastre.report.terminal import show

        show(groups, convention_of(groups, None))
        say(f"The report is {run / REPORT}")


def refuse_foreign(out: Path, option: str = "--out") -> None:
    """Refuse to write over a file that is not a report of ours; `option` names it on the command line."""
    if out.is_dir():
        raise UserError(f"{option} {out} is a folder: name a file, such as {out / REPORT}")
    if out.exists():
        with out.open("rb") as file:
            start = file.read(2000)
        if start and b'name="generator" content="comastre' not in start:
            raise UserError(f"{option} {out} is there already and is not a report: name another file")


def page_title(groups: Sequence[Group]) -> str:
    """What the page is about."""
    return "What was learned, what was forgotten" if groups else "Report"
