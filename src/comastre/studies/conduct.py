"""A study from start to end: train what is missing, then gather what was found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from comastre.errors import UserError
from comastre.live_line import LiveLine
from comastre.studies.directory import STUDY, claimed
from comastre.studies.found import StudyFound, read_found
from comastre.studies.jobs import Outcome, train_all
from comastre.studies.merging import with_earlier
from comastre.studies.outcome import collect
from comastre.studies.plan import Plan
from comastre.studies.workers import Processes, Workers, available_cores, available_gpus, share_of
from comastre.text import complain, shortened


@dataclass(frozen=True)
class Where:
    """Where runs are trained."""

    jobs: int | None = None
    """At the same time; None for one, and on a cluster for as many as can start."""
    cluster: str | None = None
    options: str = ""
    """Of the cluster, as YAML."""


def conduct(plan: Plan, out: Path, where: Where) -> tuple[StudyFound, Outcome]:
    """Train all runs that are not finished, and write `study.json`, also where some died or all were stopped."""
    if where.jobs is not None and where.jobs < 1:
        raise UserError(f"--jobs is {where.jobs} but must be 1 or more")
    workers, most = _workers(plan, out, where)
    with claimed(out, plan), LiveLine(Console(stderr=True), stays=False) as line:
        try:
            outcome = train_all(plan, out, workers, most, line)
        finally:
            found = _with_the_rest(collect(plan, out), plan, out)
            found.write(out / STUDY)
    return found, outcome


def _with_the_rest(found: StudyFound, plan: Plan, out: Path) -> StudyFound:
    """Beside what this command was about, what the folder has of other rows, settings and seeds."""
    try:
        merged, left_out = with_earlier(found, read_found(out), plan.study)
    except UserError as error:  # none yet, or a damaged one: what was trained now is written all the same
        if (out / STUDY).exists():
            complain(f"{error}; what it had of other rows, settings and seeds is not in the tables")
        return found
    if left_out:
        names = dict.fromkeys(f"{run.row} ({run.setting})" for run in left_out)
        complain(
            f"left out of the tables, as their rows or scores are defined in another way now: {shortened([*names], 6)}"
        )
    return merged


def _workers(plan: Plan, out: Path, where: Where) -> tuple[Workers, int]:
    if where.cluster is not None:
        from comastre.studies.cluster import Cluster

        # On this machine all at once would take each other's cores.
        most = where.jobs or (1 if where.cluster == "local" else len(plan.runs))
        return Cluster(where.cluster, where.options, out, plan.runs[0].config), most
    if where.options:
        raise UserError("--cluster-options is for --cluster slurm: add that, or leave it out")
    most = where.jobs or 1
    gpus = available_gpus() if most > 1 and plan.runs[0].config.training.accelerator in ("auto", "cuda") else ()
    return Processes(share_of(most, plan.runs[0].config, available_cores(), gpus), divide=most > 1), most
