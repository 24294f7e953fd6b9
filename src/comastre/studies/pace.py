"""How long the runs of a study will take, from what those that run have logged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comastre.config.first_step import base_classes
from comastre.config.run import RunConfig
from comastre.config.run_files import METRICS, RESULTS
from comastre.data.build import build_dataset
from comastre.documents import parse_json, read_json
from comastre.errors import UserError
from comastre.studies.directory import folder_of, has_first_step
from comastre.studies.plan import PlannedRun

_TAIL = 8192
"""Bytes from the end of a log in which its last line is."""


def time_left(left: Sequence[PlannedRun], runs: Sequence[PlannedRun], out: Path, at_once: int) -> float | None:
    """Seconds until the runs in `left` are done, `at_once` of them at a time; None before anything is known.

    A run of which nothing is known goes at the pace of its row, else at the mean of all.
    """
    paces: dict[str, list[float]] = {}
    for run in runs:
        last = last_logged(folder_of(out, run))
        if last is not None and last.get("images_per_second", 0) > 0:
            paces.setdefault(run.row.name, []).append(last["images_per_second"])
    known = [pace for each in paces.values() for pace in each]
    if not known:
        return None
    seconds = 0.0
    learned = {run.group for run in runs if has_first_step(folder_of(out, run))}
    for run in left:
        own = paces.get(run.row.name, known)
        images = _iterations_left(run, out, run.group in learned) * run.config.training.batch_size
        learned.add(run.group)
        seconds += images * len(own) / sum(own)
    return seconds / max(1, at_once)


def last_logged(folder: Path) -> dict[str, Any] | None:
    """The last whole line of a run's log; None where there is none yet."""
    try:
        with (folder / METRICS).open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
        for line in reversed(lines):
            try:
                entry = parse_json(line)
            except ValueError:
                continue  # half a line, or none of ours
            if isinstance(entry, dict) and isinstance(entry.get("iteration"), int):
                return entry
    except OSError:
        pass
    return None


def _iterations_left(run: PlannedRun, out: Path, shared: bool) -> int:
    """Of all steps; a run that has logged nothing takes its first step from another where that is `shared`."""
    folder, training = folder_of(out, run), run.config.training
    last = last_logged(folder)
    done = _done(last, run.config, folder) if last is not None else training.iterations if shared else 0
    return max(0, training.iterations + training.iterations_per_class * _later_classes(run) - done)


def _done(last: dict[str, Any], config: RunConfig, folder: Path) -> int:
    """Iterations that are behind a run, of the whole of it."""
    step = last.get("step", 0)
    if not step:
        return int(last["iteration"])
    learned = sum(len(each["new_classes"]) for each in _steps(folder)[1:])
    return config.training.iterations + config.training.iterations_per_class * learned + int(last["iteration"])


def _later_classes(run: PlannedRun) -> int:
    """Classes that come after the first step and are learned by iterations, or take as many in joint training."""
    base = base_classes(run.config.continual)
    at_once = run.config.spec.all_at_once and not run.config.trains_as_a_stream
    if base is None or at_once or run.config.method_settings.learns_at_once(step=1):
        return 0
    if run.order.classes is not None:
        return max(0, len(run.order.classes) - base)
    return max(0, _num_classes(run.config) - base)


_KNOWN: dict[str, int] = {}


def _num_classes(config: RunConfig) -> int:
    """Of the data, which is opened once."""
    key = f"{config.data.dataset} {config.data.root} {config.data.options}"
    if key not in _KNOWN:
        try:
            _KNOWN[key] = len(build_dataset(config.data, "train").class_names)
        except UserError:
            _KNOWN[key] = 0  # the run says what is wrong with its data
    return _KNOWN[key]


def _steps(folder: Path) -> list[dict[str, Any]]:
    try:
        steps = read_json(folder / RESULTS)["steps"]
        return [step for step in steps if isinstance(step, dict) and isinstance(step.get("new_classes"), list)]
    except (OSError, ValueError, LookupError, TypeError):
        return []
