"""One continual run, all steps: the same loop for every method, and the same end after any number of restarts."""

from __future__ import annotations

import random
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from comastre.config.run import RunConfig
from comastre.data.dataset import SegmentationDataset
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.losses.points import PointSource
from comastre.nets.shared_batch_norm import share_batch_statistics
from comastre.stream.scenario import Scenario, Task
from comastre.training.base import adopt_first_step, first_results
from comastre.training.checkpoint import (
    Checkpoint,
    Position,
    explained_full_disk,
    load_latest,
    restore_optimiser,
    restore_random_state,
)
from comastre.training.directory import CHECKPOINTS, CONFIG, RESULTS, claimed, fingerprint, has_checkpoint, refuse_unfit
from comastre.training.environment import write_environment
from comastre.training.finiteness import LossWatch
from comastre.training.initial import start_from
from comastre.training.launch import Team, build_fabric, launch, spawns
from comastre.training.metrics import MetricsLog
from comastre.training.optimiser import build_optimiser, iterations_of_step, learning_rate_factor, set_learning_rate
from comastre.training.parts import Parts, Prepared, TrainingMethod, default_parts, prepare
from comastre.training.progress import RunProgress
from comastre.training.session import Session
from comastre.training.stopping import Interrupted, StopRequest


def run(
    config: RunConfig,
    out: Path | str,
    *,
    fresh: bool = False,
    base: Path | str | None = None,
    parts: Parts | None = None,
) -> Results:
    """Train and evaluate every step of `config` in the directory `out`.

    Called again with the same `out` it goes on where it stopped; a finished run gives its results at once. `fresh`
    starts over and keeps what was there under another name. `base` is another run whose first step a new run takes as
    its own, so that methods can be compared from the same model. Raises `Interrupted` on SIGTERM and Ctrl-C.
    """
    out = Path(out)
    parts = parts or default_parts()
    fabric = build_fabric(config.training)
    if fabric.global_rank > 0:  # started by torchrun or SLURM; the first process looks after the directory
        return (None if fresh else finished_results(out)) or launch(fabric, _train, config, out, parts, None)
    # Everything that can be wrong with settings and data is found before anything is written or moved.
    refuse_unfit(out, config, fresh)
    prepared = first = None
    if fresh or not finished_results(out):
        prepared = prepare(config, parts)
        if fresh or not has_checkpoint(out):
            model = parts.method(config).begin(prepared.scenario.tasks[0], None)  # a backbone may be missing
            if base is None:
                start_from(model, config.init)
            else:
                first = first_results(Path(base), out, config, prepared, parts)
    with claimed(out, config, fresh), explained_full_disk(out):
        if base is not None and first is not None:
            adopt_first_step(Path(base), out, config, first)
        # Processes that are still to be started read the data themselves: it may be too large to send.
        given = None if spawns(fabric) else prepared
        return finished_results(out) or launch(fabric, _train, config, out, parts, given)


def finished_results(out: Path) -> Results | None:
    """The results of a run that has learned every class of its stream."""
    if not (out / RESULTS).exists():
        return None
    results = Results.load(out / RESULTS)
    learned = sum(len(step.new_classes) for step in results.steps)
    return results if learned == len(results.class_order) else None


def _train(fabric: Fabric, config: RunConfig, out: Path, parts: Parts, given: Prepared | None) -> Results:
    """The whole run in one process of possibly many."""
    team = Team(fabric)
    prepared = given or prepare(config, parts)
    training_set, validation_set, scenario = prepared.training_set, prepared.validation_set, prepared.scenario
    method = parts.method(config)
    totals = tuple(iterations_of_step(config.training, task.step, len(task.new_classes)) for task in scenario.tasks)
    progress = RunProgress(totals, config.training.batch_size, quiet=team.rank > 0, title=parts.title)
    with explained_full_disk(out), progress:
        saved = _load_checkpoint(out, config, team, progress)
        position = saved.position if saved else Position()
        model = _rebuild(method, scenario.tasks, saved, fabric.device)
        results = _results_so_far(config, scenario, training_set, saved)
        first_iteration = sum(totals[: position.step]) + position.iteration
        with (
            StopRequest().listening() as stop,
            MetricsLog(out, position, first_iteration) if team.rank == 0 else nullcontext() as log,
        ):
            session = Session(fabric, team, config, out, totals, method, progress, stop, log)
            if team.rank == 0:
                write_environment(out, fabric.device, team.size)
            for task in scenario.tasks[position.step :]:
                if position.iteration == 0:
                    saved = None  # nothing of this step can be in it
                    _seed(config.seed, task.step)
                    model = method.begin(task, model).to(fabric.device)
                    if task.step == 0:
                        start_from(model, config.init)
                        if method.old_model is not None:
                            start_from(method.old_model.to(fabric.device), config.init)
                    _seed(config.seed, task.step, 1 + team.rank)
                position = _learn(session, task, model, parts, training_set, saved, position, results)
                with stop.at_once(session.how_to_continue(position)):
                    progress.say(f"{progress.title(task.step)}: evaluation on {len(validation_set)} images")
                    result = parts.evaluate(
                        model.eval(), validation_set, scenario, task.step, config, fabric.device, position.seconds
                    )
                    _record_examples(session, parts, model, prepared, task.step)
                progress.say(f"{progress.title(task.step)}: {result.summary(results.convention)}")
                results = results.add(result)
                position = Position(task.step + 1)
                if log is not None:
                    log.write_scores(session.overall(position), result.scores(results.convention))
                    bundle = out / "steps" / f"{task.step:02d}"
                    parts.save(model, bundle, training_set, scenario, task.step, config, results)
                    results.write(out / RESULTS)
                session.save(position, model, results)
    return results


def _learn(
    session: Session,
    task: Task,
    model: Any,
    parts: Parts,
    training_set: SegmentationDataset,
    saved: Checkpoint | None,
    position: Position,
    results: Results,
) -> Position:
    """Train one step from `position` to its end."""
    fabric, team, config = session.fabric, session.team, session.config.training
    total = session.totals[task.step]
    if position.iteration == total:  # killed during evaluation
        return position
    if team.size > 1 and config.sync_batch_norm:
        share_batch_statistics(model)
    plain_optimiser = build_optimiser(model, config, task.step)
    module, optimiser = fabric.setup(model, plain_optimiser)
    module.train()
    model.freeze_batch_norm(task.step > 0 and config.freeze_batch_norm_later)
    if saved is not None:
        restore_optimiser(plain_optimiser, saved.optimiser)
        fabric.strategy.precision.load_state_dict(dict(saved.scaler))

    base_rate = config.learning_rate if task.step == 0 else config.later_learning_rate
    session.progress.begin_step(task.step, position.iteration, f"{len(task.images)} images")
    began = time.perf_counter() - position.seconds
    watch = LossWatch()
    batches = parts.batches(training_set, task, session.config, position.iteration, team.rank, team.size)
    with closing(batches):  # ends the loader's processes
        for iteration in range(position.iteration, total):
            batch = next(batches)
            if saved is not None:
                # Only now, because starting the loader's processes draws random numbers too.
                _restore_random_state(session, saved)
                saved = None
            rate = base_rate * learning_rate_factor(iteration, total, config.warmup, config.power)
            set_learning_rate(plain_optimiser, rate)
            terms = _add_gradients(session, module, batch, position, watch)
            if config.clip:
                fabric.clip_gradients(module, optimiser, max_norm=config.clip, error_if_nonfinite=False)
            optimiser.step()
            optimiser.zero_grad()

            position = Position(task.step, iteration + 1, time.perf_counter() - began)
            session.progress.advance(position.iteration)
            if position.iteration % config.log_every == 0 or position.iteration == total:
                watch.check()
                session.write_log(position, terms, rate)
            stopped_by = team.largest(session.stop.signal_number)
            if position.iteration % config.checkpoint_every == 0 or position.iteration == total or stopped_by:
                watch.check()
                session.save(position, model, results, plain_optimiser)
            if stopped_by:
                raise Interrupted(session.how_to_continue(position), stopped_by)
    return position


def _add_gradients(
    session: Session, module: Any, batch: tuple[Any, ...], position: Position, watch: LossWatch
) -> dict[str, Tensor]:
    """Backward passes of all parts of one iteration's batch; gives the mean of each term, unweighted, and the total."""
    fabric, method = session.fabric, session.method
    means: dict[str, Tensor] = {}
    for number, part in enumerate(batch, start=1):
        part = part.to(fabric.device)
        points = PointSource(
            session.config.seed, session.overall(position), part.rows, part.global_batch, fabric.device
        )
        with fabric.no_backward_sync(module, enabled=number < len(batch)):
            terms = method.losses(module, part, points)
            total = method.weigh(terms)
            fabric.backward(total / len(batch))
        # The total last: where it is bad, the term that made it so is named.
        values = {name: value.detach() for name, value in terms.items()} | {"total": total.detach()}
        watch.watch(values, position.step, position.iteration + 1, part.targets.image_ids)
        means = {name: means.get(name, 0.0) + value / len(batch) for name, value in values.items()}
    return means


def _record_examples(session: Session, parts: Parts, model: Any, prepared: Prepared, step: int) -> None:
    """Pictures for the report, by the first process; nothing that is learned depends on them."""
    if parts.examples is None or session.team.rank > 0:
        return
    try:
        parts.examples(model, session.out, prepared.validation_set, prepared.scenario, step, session.fabric.device)
    except Interrupted:
        raise
    except Exception as error:  # a run of days must not end for want of a picture
        session.progress.say(f"the report will lack examples of step {step + 1}: {type(error).__name__}: {error}")


def _load_checkpoint(out: Path, config: RunConfig, team: Team, progress: RunProgress) -> Checkpoint | None:
    # The first process alone puts damaged files aside, then all read the same one.
    saved = load_latest(out / CHECKPOINTS, progress.say) if team.rank == 0 else None
    team.wait()
    if team.rank > 0:
        saved = load_latest(out / CHECKPOINTS, progress.say)
    if saved is not None and saved.config != fingerprint(config):
        raise UserError(f"the checkpoints in {out} belong to other settings than its {CONFIG}: start over with --fresh")
    return saved


def _rebuild(method: TrainingMethod, tasks: tuple[Task, ...], saved: Checkpoint | None, device: torch.device) -> Any:
    """The model as it was: its structure by going through the steps again, its numbers from the checkpoint."""
    if saved is None:
        return None
    model = None
    for task in tasks[: saved.position.step + (saved.position.iteration > 0)]:
        model = method.begin(task, model)
    assert model is not None
    model.load_state_dict(saved.model)
    if saved.old_model:
        method.old_model.load_state_dict(saved.old_model)
        method.old_model.to(device)
    return model.to(device)


def _results_so_far(
    config: RunConfig, scenario: Scenario, training_set: SegmentationDataset, saved: Checkpoint | None
) -> Results:
    if saved is not None and saved.results:
        return Results.from_json(saved.results, source="the checkpoint's results")
    return Results(
        method=config.method,
        dataset=training_set.name,
        setting=scenario.setting,
        protocol=scenario.protocol,
        seed=config.seed,
        background=training_set.has_background,
        class_order=tuple(training_set.class_names[class_id - 1] for class_id in scenario.class_order),
        tradition=scenario.tradition,
        convention=config.evaluation.convention,
    )


def _seed(*numbers: int) -> None:
    """Start all generators from a mix of the numbers: a step's randomness does not depend on the steps before it."""
    mixed = int(np.random.SeedSequence([number & (2**64 - 1) for number in numbers]).generate_state(1)[0])
    random.seed(mixed)
    np.random.seed(mixed)
    torch.manual_seed(mixed)


def _restore_random_state(session: Session, saved: Checkpoint) -> None:
    if session.team.rank < len(saved.random_states):
        restore_random_state(saved.random_states[session.team.rank])
    else:  # more processes than before
        _seed(session.config.seed, saved.position.step, saved.position.iteration, session.team.rank)
