"""The folder of a study: what lies where, what is done, and whose it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comastre.config.first_step import CHANGEABLE
from comastre.config.run_files import CHECKPOINTS, REPORT, RESULTS, step_bundle
from comastre.config.settings import differences, listed, load_config, write_config
from comastre.documents import Unreadable, json_bytes, read_json
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.studies.plan import Plan, PlannedRun
from comastre.training.lock import locked

STUDY = "study.json"
"""Everything that tables and the report need."""
IDENTITY = ".study"
"""Which study the folder is of: written before its first run."""
TABLES = "tables"
_RUNS, _CONFIGS, _LOGS = "runs", "configs", "logs"
_OWN = frozenset({"seed", "continual.class_order"})
"""What every run of a row has for itself."""
__all__ = ["REPORT", "STUDY", "TABLES", "claimed", "config_file", "folder_of", "log_file", "refuse_unfit"]


def folder_of(out: Path, run: PlannedRun) -> Path:
    """The directory of a run, as `comastre train` makes it."""
    return out / _RUNS / run.name


def lies_in(out: Path, run: PlannedRun) -> Path:
    """Where the run is: under the name of an earlier version where it has not been renamed yet."""
    earlier = out / _RUNS / run.earlier_name
    return (
        earlier if run.earlier_name and earlier.is_dir() and not folder_of(out, run).exists() else folder_of(out, run)
    )


def config_file(out: Path, run: PlannedRun) -> Path:
    """What the run is started with, every field written out."""
    return out / _CONFIGS / f"{run.name}.yaml"


def log_file(out: Path, run: PlannedRun) -> Path:
    """What the run printed, over all its starts."""
    return out / _LOGS / f"{run.name}.log"


def refuse_unfit(out: Path, plan: Plan) -> None:
    """Say why `out` cannot be the folder of this study, where that is so; nothing is written."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file: name a folder")
    if not out.exists():
        return
    theirs = _identity(out)
    if theirs is None:
        if any(not path.name.startswith(".") for path in out.iterdir()):
            raise UserError(f"--out {out} holds other files and is not a study: name a new or an empty folder")
        return
    ours = _identity_of(plan)
    if theirs != ours:
        raise UserError(f"--out {out} holds another study ({theirs}, not {ours}): name another folder")
    for run in plan.runs:
        _refuse_changed(out, run, run.name, CHANGEABLE)
    # Runs of other seeds and orders, which stay in the study, must have been trained as these are.
    planned = {run.name for run in plan.runs}
    for run in {(run.row.name, run.setting.label): run for run in plan.runs}.values():
        kind = run.name.partition("--seed-")[0]
        for file in sorted((out / _CONFIGS).glob(f"{kind}--seed-*.yaml")):
            if file.stem not in planned:
                _refuse_changed(out, run, file.stem, CHANGEABLE | _OWN)


def _refuse_changed(out: Path, run: PlannedRun, name: str, may_differ: frozenset[str]) -> None:
    """Say how the run `name` of the folder was trained otherwise than `run`, where that is so."""
    file = out / _CONFIGS / f"{name}.yaml"
    if not file.exists() or not has_begun(out / _RUNS / name):
        return
    changed = [each for each in differences(load_config(file), run.config) if each.field not in may_differ]
    if changed:
        raise UserError(
            f"--out {out} holds another study: its run {name} was started with other settings "
            f"({listed(changed)}): undo the change, give the row another name, or name another folder"
        )


@contextmanager
def claimed(out: Path, plan: Plan) -> Iterator[None]:
    """Hold the folder for this study; the configuration of every run lies in it from then on."""
    refuse_unfit(out, plan)
    with locked(out, clean=False):  # runs on a cluster may be writing below it
        refuse_unfit(out, plan)  # again, as somebody may have begun a study here meanwhile
        write_whole(out / IDENTITY, json_bytes({"study": _identity_of(plan)}))
        for folder in (_RUNS, _CONFIGS, _LOGS):
            (out / folder).mkdir(exist_ok=True)
        _rename_earlier(out, plan)
        for run in plan.runs:
            write_config(run.config, config_file(out, run))
        yield


def _rename_earlier(out: Path, plan: Plan) -> None:
    """Give runs of an earlier version the names that they have now, where they are of this setting."""
    places = [(out / folder, ending) for folder, ending in ((_RUNS, ""), (_LOGS, ".log"), (_CONFIGS, ".yaml"))]
    for run in plan.runs:
        begun_with = out / _CONFIGS / f"{run.earlier_name}.yaml"
        if not run.earlier_name or folder_of(out, run).exists() or not begun_with.exists():
            continue
        if any(each.field not in CHANGEABLE for each in differences(load_config(begun_with), run.config)):
            continue
        for folder, ending in places:
            if (folder / f"{run.earlier_name}{ending}").exists():
                (folder / f"{run.earlier_name}{ending}").rename(folder / f"{run.name}{ending}")


def has_begun(folder: Path) -> bool:
    """Whether a run holds anything to protect."""
    return (folder / RESULTS).exists() or any((folder / CHECKPOINTS).glob("step-*"))


def has_first_step(folder: Path) -> bool:
    """Whether another run can take over its first step."""
    return (folder / RESULTS).exists() and step_bundle(folder, 0).is_dir()


def is_finished(folder: Path) -> bool:
    """Whether a run has learned every class of its stream, as its results say."""
    try:
        results = read_json(folder / RESULTS)
        learned = sum(len(step["new_classes"]) for step in results["steps"])
        return learned == len(results["class_order"])
    except (OSError, ValueError, LookupError, TypeError):
        return False  # the run itself says what is wrong


def _identity_of(plan: Plan) -> str:
    return _named(plan.study.name, plan.study.scale)


def _named(name: str, scale: str) -> str:
    return f"{name} at scale {scale}" if scale else name


def _identity(out: Path) -> str | None:
    """Which study the folder is of; None where it is of none."""
    try:
        content = read_json(out / IDENTITY)
        return str(content["study"])
    except FileNotFoundError:
        return _identity_of_file(out)
    except (OSError, Unreadable, LookupError, TypeError) as error:
        raise UserError(f"{out / IDENTITY} is damaged ({error}): name another --out") from None


def _identity_of_file(out: Path) -> str | None:
    """Of a folder that holds what a study found, such as one kept with a paper: more may be added to it."""
    try:
        content = read_json(out / STUDY)
        return _named(str(content["name"]), str(content["scale"]))
    except (OSError, Unreadable, LookupError, TypeError):
        return None
