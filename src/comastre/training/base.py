"""Runs compared from the same base model: a run that takes another run's first step as its own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file

from comastre.config.run import RunConfig
from comastre.config.settings import differences, load_config
from comastre.errors import UserError
from comastre.evaluation.examples import adopt_examples
from comastre.evaluation.results import Results
from comastre.stream.scenario import Scenario, Task
from comastre.training.checkpoint import Checkpoint, Position, save
from comastre.training.directory import CHANGEABLE, CHECKPOINTS, CONFIG, RESULTS, fingerprint
from comastre.training.parts import Parts, Prepared

# What both runs must share for the first step's model and scores to mean the same in both. The stream itself is not
# compared by its fields but by what they make the first step: 15-5 and 15-1 begin alike.
_SHARED = ("seed", "init", "model.", "data.")
_LATER = "data.later_"  # how later steps are augmented
_WEIGHTS = Path("steps") / "00" / "model.safetensors"


def first_results(base: Path, out: Path, config: RunConfig, prepared: Prepared, parts: Parts) -> Results:
    """The results of the new run `out` after the first step of `base`, or one sentence why it can't be its own."""
    if not all((base / name).exists() for name in (CONFIG, RESULTS, _WEIGHTS)):
        raise UserError(f"{base} is not a run with a finished first step: give the folder of one")
    theirs = load_config(base / CONFIG)
    changed = [line for line in differences(theirs, config) if line.startswith(_SHARED)]
    changed = [line for line in changed if line.split(":")[0] not in CHANGEABLE and not line.startswith(_LATER)]
    if changed:
        raise UserError(f"{base} cannot be the base of {out}, its settings differ: {'; '.join(changed)}")

    names, scenario, results = prepared.training_set.class_names, prepared.scenario, Results.load(base / RESULTS)
    other = parts.scenario(theirs, prepared.training_set)
    task = scenario.tasks[0]
    reason = _difference(other, scenario, names)
    done = results.steps[0] if results.steps else None
    if not reason and done is not None:
        learned = tuple(names[label - 1] for label in task.new_classes)
        if (done.images, done.new_classes) != (len(task.images), learned):  # data.root holds something else by now
            reason = f"it was trained on {done.images:,} images of other data"
    if reason or done is None:
        raise UserError(f"{base} cannot be the base of {out}: {reason or 'its first step is not finished'}")
    return replace(
        results,
        method=config.method,
        setting=scenario.setting,
        protocol=scenario.protocol,
        tradition=scenario.tradition,
        class_order=tuple(names[label - 1] for label in scenario.class_order),
        convention=config.evaluation.convention,
        steps=(done,),
    )


def adopt_first_step(base: Path, out: Path, config: RunConfig, first: Results) -> None:
    """Make the new run `out` one that has just finished its first step: the model of `base`, the results `first`."""
    bundle = out / "steps" / "00"
    shutil.copytree(base / "steps" / "00", bundle, dirs_exist_ok=True)
    adopt_examples(base, out)
    first.write(out / RESULTS)
    tensors = load_file(out / _WEIGHTS)
    # Last, because from this moment on the run counts as begun.
    save(out / CHECKPOINTS, Checkpoint(Position(1), tensors, results=first.as_json(), config=fingerprint(config)))


def _difference(theirs: Scenario, ours: Scenario, names: tuple[str, ...]) -> str:
    """Why two streams do not begin with the same step, in words; empty where they do.

    With the same new classes the future ones are the same set, too, so labels and evaluation are alike.
    """
    their_task, our_task = theirs.tasks[0], ours.tasks[0]
    if len(their_task.new_classes) != len(our_task.new_classes):
        return (
            f"it learns {len(their_task.new_classes)} classes first (setting {theirs.setting}), "
            f"but setting {ours.setting} begins with {len(our_task.new_classes)}"
        )
    for place, pair in enumerate(zip(their_task.new_classes, our_task.new_classes, strict=True), start=1):
        if pair[0] != pair[1]:
            return f"its class {place} is {names[pair[0] - 1]}, not {names[pair[1] - 1]}: the class orders differ"
    if their_task.images != our_task.images:
        return f"its first step sees {_images(theirs, their_task)}, not {_images(ours, our_task)}"
    return ""


def _images(scenario: Scenario, task: Task) -> str:
    rule = f"a fixed partition, {scenario.setting}" if scenario.tradition == "partition" else scenario.protocol
    return f"{len(task.images):,} images ({rule})"
