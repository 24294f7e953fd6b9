"""A run whose files were lost or damaged after they were written: the checkpoint gives back what it holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from comastre.config.run_files import CHECKPOINTS, CONFIG, METRICS, RESULTS, step_bundle
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.training.checkpoint import saved_results
from comastre.training.directory import has_checkpoint
from comastre.training.metrics import damaged_lines
from comastre.training.parts import LearnedStep, Parts


def finished_results(out: Path, parts: Parts) -> Results | None:
    """The results of a run that has learned every class of its stream and has all its files, or all that can be had.

    None where training has to go on, be it only to give back from the checkpoint what is missing.
    """
    results = _readable_results(out)
    if results is None:
        return None
    learned = sum(len(step.new_classes) for step in results.steps)
    if learned < len(results.class_order):
        return None
    mendable = has_checkpoint(out) and (
        _results_differ(out) or damaged_lines(out / METRICS) > 0 or missing_models(out, results, parts)
    )
    return None if mendable else results


def missing_models(out: Path, results: Results, parts: Parts) -> list[int]:
    """Steps whose model is not there, or not whole."""
    return [step.step for step in results.steps if not _loads(parts, step_bundle(out, step.step))]


def mend(out: Path, results: Results, learned: LearnedStep | None, parts: Parts, say: Callable[[str], None]) -> None:
    """Write again what the checkpoint holds, and say what it does not; `learned` is its model, if of a whole step."""
    if not results.steps:
        return
    written = _readable_results(out)
    # A kill may have come before the checkpoint of a step whose results were written already: these are not lost.
    if written is None or (len(written.steps) <= len(results.steps) and _results_differ(out)):
        results.write(out / RESULTS)
        say(f"{out / RESULTS} was missing or damaged: restored from the checkpoint")
    lost = []
    for step in missing_models(out, results, parts):
        folder = step_bundle(out, step)
        if learned is not None and learned.task.step == step:
            _make_room(folder)
            parts.save(learned, folder, results)
            say(f"{folder} was missing or damaged: restored from the checkpoint")
        else:
            lost.append(str(folder))
    if lost:
        say(
            f"{', '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing or damaged, and the checkpoint holds a "
            f"later model only: copy from elsewhere, or train again with `comastre train {out / CONFIG} --out {out} "
            "--fresh`; the scores are not affected"
        )


def _readable_results(out: Path) -> Results | None:
    """What `results.json` says; None where it is not there, or not whole and the checkpoint can give it back."""
    if not (out / RESULTS).exists():
        return None
    try:
        return Results.load(out / RESULTS)
    except UserError:
        if has_checkpoint(out):
            return None
        raise


def _results_differ(out: Path) -> bool:
    """Whether `results.json` says anything else than the newest checkpoint: one digit would do."""
    try:
        return bool(read_json(out / RESULTS) != saved_results(out / CHECKPOINTS))
    except (OSError, ValueError):
        return True


def _loads(parts: Parts, folder: Path) -> bool:
    try:
        parts.load(folder)
    except Exception:  # what a damaged file raises depends on where the damage is
        return False
    return True


def _make_room(folder: Path) -> None:
    """Put a damaged bundle aside: it may hold what its owner wants back."""
    number = 1
    while (aside := folder.with_name(f".{folder.name}.damaged-{number}")).exists():
        number += 1
    if folder.exists():
        folder.rename(aside)
