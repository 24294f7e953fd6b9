"""The verb `comastre compare`: many runs as one study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from comastre.config.conventions import CONVENTIONS
from comastre.errors import UserError
from comastre.text import say

if TYPE_CHECKING:
    from comastre.studies.study import Study

Source = Annotated[str, tyro.conf.arg(metavar="STUDY_OR_PRESET")]
Out = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
Names = Annotated[str, tyro.conf.arg(metavar="NAME,NAME,...")]
Numbers = Annotated[str | None, tyro.conf.arg(metavar="N,N,...")]
Orders = Annotated[str | None, tyro.conf.arg(metavar="N")]
Scale = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Jobs = Annotated[int | None, tyro.conf.arg(metavar="K")]
Options = Annotated[str, tyro.conf.arg(metavar="YAML")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
_CONVENTION = f"How mIoU is averaged in the tables: {', '.join(CONVENTIONS)}; by default as the runs say."


def compare(
    source: tyro.conf.Positional[Source],
    /,
    out: Out = None,
    methods: Names = "",
    rows: Names = "",
    settings: Names = "",
    seeds: Numbers = None,
    orders: Orders = None,
    scale: Scale = None,
    jobs: Jobs = None,
    cluster: Scale = None,
    cluster_options: Options = "",
    dry_run: Flag = False,
    convention: Annotated[str | None, tyro.conf.arg(metavar="NAME", help=_CONVENTION)] = None,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Train many runs as one study, which share first steps and resume, and show them in one table and report.

    Any field of the configuration can be given as --section.field value, for all rows. The exit code is 1 when a run
    died; the same command goes on with it.

    Args:
        source: A study (a YAML file, or table-1 to table-7, table-a2, table-a3, figure-1), or a preset or YAML file
            of a run with --methods, or the folder of a study, whose tables and report are written again.
        out: Folder of the study: its runs, logs, study.json, tables and report; the same command goes on.
        methods: Methods to compare on a preset, as in comastre,plop (see `comastre methods`).
        rows: Of a study, only these rows, by name.
        settings: Settings of the preset, as in 6-2,6-1, by default its own; of a study, only these.
        seeds: Seeds, as in 0,1,2; by default those of the study, or 0.
        orders: How many class orders: the data's own, then drawn ones; or their numbers, as in 0,3.
        scale: Of a built-in study: paper (GPUs), voc-small (photographs on a CPU) or shapes (built-in data).
        jobs: Runs at the same time; cores are divided among them. By default 1, on SLURM as many as can start.
        cluster: Train on a cluster by submitit (pip install 'comastre[cluster]'): slurm, or local to try it here.
        cluster_options: For submitit, as in '{slurm_partition: gpu, timeout_min: 600}'.
        dry_run: Say what would be done, and do nothing.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import flatten
    from comastre.studies.directory import STUDY, log_file, refuse_unfit
    from comastre.studies.plan import plan, refuse_impossible

    if convention is not None and convention not in CONVENTIONS:
        raise UserError(f"--convention is {convention} but must be one of {', '.join(CONVENTIONS)}")
    if (Path(source) / STUDY).is_file() and out is None:
        from comastre.studies.found import read_found

        given = {
            "--methods": methods,
            "--rows": rows,
            "--settings": settings,
            "--seeds": seeds,
            "--orders": orders,
            "--scale": scale,
            "--jobs": jobs,
            "--cluster": cluster,
            "--cluster-options": cluster_options,
            "--dry-run": dry_run,
            **{f"--{name}": "given" for name in flatten(overrides or {})},
        }
        for name, value in given.items():
            if value:
                raise UserError(f"{source} is a finished study, which is shown again: leave out {name}, or add --out")
        return _shown(read_found(Path(source)), Path(source), convention)
    planned = plan(_study(source, methods, rows, settings, seeds, orders, scale), overrides)
    if out is None:
        raise UserError("--out is missing: name the folder of the study")
    refuse_unfit(out, planned)
    refuse_impossible(planned, look_at_data=not dry_run)
    from comastre.studies.jobs import announcement

    for line in announcement(planned, out):
        say(line)
    if dry_run:
        for run in planned.runs:
            say(f"  {run.name}")
        return 0
    from comastre.studies.conduct import Where, conduct

    found, outcome = conduct(planned, out, Where(jobs, cluster, cluster_options))
    _shown(found, out, convention)
    for death in outcome.died:
        log = log_file(out, death.run)
        say(f"died: {death.run.label} (exit code {death.code}): {death.reason}; its log is {log}")
    for run in outcome.untried:
        say(f"not tried: {run.label}, as its first step died in other runs")
    if outcome.died or outcome.untried:
        say("The same command goes on with what is missing.")
    return 1 if outcome.died or outcome.untried else 0


def _study(
    source: str, names: str, rows: str, settings: str, seeds: str | None, orders: str | None, scale: str | None
) -> Study:
    """What the arguments describe."""
    from comastre.studies.spec import chosen, is_study, no_methods, read_orders, read_study, study_of_methods

    if is_study(source):
        if names:
            raise UserError(
                f"{source} is a study, which has rows of its own: leave out --methods, or choose with --rows"
            )
        study = chosen(read_study(source, scale), _listed(rows), _listed(settings))
    else:
        if scale is not None:
            raise UserError(f"--scale is for studies, and {source} is none: leave it out")
        if not names:
            raise no_methods(source)
        if rows:
            raise UserError(f"--rows is for studies, and {source} is none: name --methods")
        study = study_of_methods(source, _listed(names), _listed(settings))
    if seeds is not None:
        study = replace(study, seeds=_whole(seeds, "--seeds"))
    if orders is not None:
        numbers = _whole(orders, "--orders")
        study = replace(study, orders=read_orders(numbers[0] if "," not in orders else numbers, "--orders"))
    return study


def _shown(found: Any, out: Path, convention: str | None) -> int:
    """Tables, page and summary of a study."""
    from comastre.report.study_write import write_study

    write_study(found, out, convention)
    return 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    parts = _listed(text)
    if not parts or not all(part.isdecimal() and len(part) < 10 for part in parts):
        raise UserError(f"{option} is {text!r} but must be whole numbers, as in {option} 0,1,2")
    numbers = tuple(map(int, parts))
    if len(set(numbers)) < len(numbers):
        raise UserError(f"{option} is {text}, with a number twice: name each once")
    return numbers
