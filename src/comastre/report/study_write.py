"""From what a study found to its tables, its page and its summary; everything comes from `study.json`."""

from __future__ import annotations

from pathlib import Path

from comastre.config.run_files import REPORT
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.report.study_page import render_study
from comastre.report.study_tables import write_study_tables
from comastre.report.study_terminal import show_study
from comastre.studies.directory import TABLES
from comastre.studies.found import StudyFound
from comastre.text import say


def write_study(study: StudyFound, out: Path, convention: str | None = None) -> None:
    """Write tables and page into the study's folder, and show the table."""
    chosen = convention or study.convention
    try:
        write_study_tables(study, chosen, out / TABLES)
        write_whole(out / REPORT, render_study(study, chosen).encode(errors="replace"))
    except OSError as error:
        raise UserError(f"the report cannot be written ({error}): free some space and give {out} again") from error
    show_study(study, chosen)
    say(f"The report is {out / REPORT}, tables are in {out / TABLES}")
