"""Runs that do not begin with nothing: from a model that has learned the first steps already, or from `init`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from comastre.bundle import store
from comastre.config.first_step import first_step_differences
from comastre.config.run import RunConfig
from comastre.config.run_files import CONFIG, RESULTS, STEPS, step_bundle
from comastre.config.settings import listed, load_config
from comastre.errors import UserError
from comastre.evaluation.examples import adopt_examples
from comastre.evaluation.results import Results
from comastre.files import copy_files
from comastre.paths import user_path
from comastre.stream.scenario import Scenario, Task
from comastre.training.parts import Parts, Prepared


@dataclass(frozen=True)
class Start:
    """A model that has learned the first steps of a stream, with their results; small, as every process gets a copy."""

    bundle: Path
    results: Results
    examples: Path | None = None
    """A run whose pictures of these steps are taken over."""

    def adopt(self, out: Path) -> None:
        """Copy it into the directory `out`, which is then that of a run that has just finished these steps."""
        kept = step_bundle(out, len(self.results.steps) - 1)
        if kept.resolve() != self.bundle.resolve():
            copy_files(self.bundle, kept)
        if self.examples is not None:
            adopt_examples(self.examples, out)
        self.results.write(out / RESULTS)


def adopted_start(out: Path) -> Start | None:
    """What a run without a checkpoint starts from: nothing, or steps that were copied into its directory.

    From there every process reads it, also one that somebody else started.
    """
    if not (out / RESULTS).exists():
        return None
    results = Results.load(out / RESULTS)
    return Start(step_bundle(out, len(results.steps) - 1), results) if results.steps else None


def start_from_base(base: Path, out: Path, config: RunConfig, prepared: Prepared, parts: Parts) -> Start:
    """The first step of the run `base` as the first of the new run `out`, or one sentence why it can't be."""
    if not all((base / name).exists() for name in (CONFIG, RESULTS, step_bundle(Path(), 0) / store.WEIGHTS)):
        raise UserError(f"{base} is not a run with a finished first step: give the folder of one")
    theirs = load_config(base / CONFIG)
    changed = first_step_differences(theirs, config)
    if changed:
        raise UserError(f"{base} cannot be the base of {out}, its settings differ: {listed(changed)}")

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
    first = replace(
        results,
        method=config.method,
        setting=scenario.setting,
        protocol=scenario.protocol,
        tradition=scenario.tradition,
        class_order=tuple(names[label - 1] for label in scenario.class_order),
        convention=config.evaluation.convention,
        steps=(done,),
    )
    return Start(step_bundle(base, 0), first, examples=base)


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


# --- init ------------------------------------------------------------------------------------------------------------


def init_model(source: str | None) -> nn.Module | None:
    """The model that `init` names: a bundle, or the last finished step of a run; None for none."""
    return None if source is None else store.load(_bundle_of(user_path(source, "init"))).model


def _bundle_of(source: Path) -> Path:
    if not (source / CONFIG).exists():
        if not source.exists():
            raise UserError(f"--init: there is no run or model at {source}")
        return source
    # Names of bundles that are being written start with a dot.
    finished = sorted(path for path in (source / STEPS).glob("[0-9]*") if path.is_dir())
    if not finished:
        raise UserError(f"--init: the run {source} has no finished step yet: let it go on first")
    return finished[-1]
