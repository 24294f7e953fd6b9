"""One continual run, all steps: the same loop for every method, and the same end after any number of restarts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from comastre.config.run import RunConfig
from comastre.config.run_files import CHECKPOINTS, CONFIG, RESULTS, step_bundle
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.losses.points import PointSource
from comastre.methods.protocol import Batches, Method
from comastre.nets.shared_batch_norm import share_batch_statistics
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task
from comastre.training.checkpoint import (
    Checkpoint,
    Position,
    explained_full_disk,
    load_latest,
    restore_optimiser,
    restore_random_state,
)
from comastre.training.directory import claimed, fingerprint, has_checkpoint, refuse_unfit
from comastre.training.environment import write_environment
from comastre.training.finiteness import LossWatch
from comastre.training.launch import Team, build_fabric, launch, spawns
from comastre.training.metrics import MetricsLog
from comastre.training.parts import LearnedStep, Parts, Prepared, default_parts, prepare
from comastre.training.progress import RunProgress
from comastre.training.schedule import iterations_of_step, learning_rate_factor, remember_rates, set_learning_rate
from comastre.training.session import Session
from comastre.training.start import Start, init_model, start_from_base
from comastre.training.step import TrainStep, terms_of
from comastre.training.stopping import Interrupted, StopRequest


def run(
    config: RunConfig,
    out: Path | str,
    *,
    fresh: bool = False,
    base: Path | str | None = None,
    start: Start | None = None,
    parts: Parts | None = None,
) -> Results:
    """Train and evaluate every step of `config` in the directory `out`.

    Called again with the same `out` it goes on where it stopped; a finished run gives its results at once. `fresh`
    starts over and keeps what was there under another name. A new run may begin after steps that a model has learned
    already: `start` is that model, `base` another run whose first step this one takes as its own, so that methods can
    be compared from the same model. Raises `Interrupted` on SIGTERM and Ctrl-C.
    """
    out = Path(out)
    parts = parts or default_parts()
    fabric = build_fabric(config.training)
    if fabric.global_rank > 0:  # started by torchrun or SLURM; the first process looks after the directory
        return (None if fresh else finished_results(out)) or launch(fabric, _train, config, out, parts, None, start)
    # Everything that can be wrong with settings and data is found before anything is written or moved.
    refuse_unfit(out, config, fresh)
    prepared = None
    if fresh or not finished_results(out):
        prepared = prepare(config, parts)
        if not fresh and has_checkpoint(out):
            start = None
        elif base is not None:
            start = start_from_base(Path(base), out, config, prepared, parts)
        elif start is None:
            # A backbone may be missing, or `init` not fit.
            parts.method(config).begin(prepared.scenario.tasks[0], None, init_model(config.init))
    with claimed(out, config, fresh), explained_full_disk(out):
        if start is not None:
            start = start.adopted(out)
        # Processes that are still to be started read the data themselves: it may be too large to send.
        given = None if spawns(fabric) else prepared
        return finished_results(out) or launch(fabric, _train, config, out, parts, given, start)


def finished_results(out: Path) -> Results | None:
    """The results of a run that has learned every class of its stream."""
    if not (out / RESULTS).exists():
        return None
    results = Results.load(out / RESULTS)
    learned = sum(len(step.new_classes) for step in results.steps)
    return results if learned == len(results.class_order) else None


def _train(
    fabric: Fabric, config: RunConfig, out: Path, parts: Parts, given: Prepared | None, start: Start | None
) -> Results:
    """The whole run in one process of possibly many."""
    team = Team(fabric)
    prepared = given or prepare(config, parts)
    scenario = prepared.scenario
    method = parts.method(config)
    totals = tuple(iterations_of_step(config.training, task.step, len(task.new_classes)) for task in scenario.tasks)
    progress = RunProgress(totals, config.training.batch_size, quiet=team.rank > 0, title=parts.title)
    with explained_full_disk(out), progress:
        saved = _load_checkpoint(out, config, team, progress)
        position, model, results = where_it_is(method, prepared, config, saved, start, parts, fabric.device)
        first_iteration = sum(totals[: position.step]) + position.iteration
        with (
            StopRequest().listening() as stop,
            MetricsLog(out, position, first_iteration) if team.rank == 0 else nullcontext() as log,
        ):
            session = Session(fabric, team, config, out, totals, method, progress, stop, log)
            if team.rank == 0:
                write_environment(out, fabric.device, team.size)
            if saved is None and position.step > 0:
                session.save(position, model, results)  # from here on the run can go on without `start`
            for task in scenario.tasks[position.step :]:
                if position.iteration == 0:
                    saved = None  # nothing of this step can be in it
                    model = begin_step(session, task, model)
                position = _learn(session, task, model, parts, prepared, saved, position, results)
                model = method.after_training(task, model)
                learned = LearnedStep(model.eval(), task, prepared, config, fabric.device, position.seconds)
                with stop.at_once(session.how_to_continue(position)):
                    progress.say(f"{progress.title(task.step)}: evaluation on {len(prepared.validation_set)} images")
                    result = parts.evaluate(learned)
                    _record_examples(session, parts, learned)
                progress.say(f"{progress.title(task.step)}: {result.summary(results.convention)}")
                results = results.add(result)
                position = Position(task.step + 1)
                if log is not None:
                    log.write_scores(session.overall(position), result.scores(results.convention))
                    parts.save(learned, step_bundle(out, task.step), results)
                    results.write(out / RESULTS)
                session.save(position, model, results)
    return results


def begin_step(session: Session, task: Task, previous: Any) -> Any:
    """The model of a step that begins, and random numbers that depend on the step and the process alone."""
    config = session.config
    _seed(config.seed, task.step)
    init = init_model(config.init) if task.step == 0 else None
    model = session.method.begin(task, previous, init).to(session.fabric.device)
    _seed(config.seed, task.step, 1 + session.team.rank)
    return model


def _learn(
    session: Session,
    task: Task,
    model: Any,
    parts: Parts,
    prepared: Prepared,
    saved: Checkpoint | None,
    position: Position,
    results: Results,
) -> Position:
    """Train one step from `position` to its end."""
    team, config = session.team, session.config.training
    total = session.totals[task.step]
    if position.iteration == total:  # killed during evaluation
        return position
    if position.iteration == 0:
        session.method.before_training(model, _one_pass(session, task, parts, prepared))
    module, optimiser, plain_optimiser = set_up(session.fabric, session.method, model, session.config, task)
    if saved is not None:
        restore_optimiser(plain_optimiser, saved.optimiser)
        session.fabric.strategy.precision.load_state_dict(dict(saved.scaler))

    session.progress.begin_step(task.step, position.iteration, f"{len(task.images)} images")
    began = time.perf_counter() - position.seconds
    watch = LossWatch()
    batches = parts.batches(prepared.training_set, task, session.config, position.iteration, team.rank, team.size)
    with closing(batches):  # ends the loader's processes
        for iteration in range(position.iteration, total):
            batch = next(batches)
            if saved is not None:
                # Only now, because starting the loader's processes draws random numbers too.
                _restore_random_state(session, saved)
                saved = None
            rate, terms = iterate(session, module, optimiser, plain_optimiser, batch, position, watch)
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


def set_up(fabric: Fabric, method: Method, model: Any, config: RunConfig, task: Task) -> tuple[Any, Any, Optimizer]:
    """A step's module and optimiser as the devices wrap them, and the plain optimiser."""
    if fabric.world_size > 1 and config.training.sync_batch_norm:
        share_batch_statistics(model)
    optimiser = method.optimiser(model, task.step)
    remember_rates(optimiser)
    module, wrapped = fabric.setup(TrainStep(method, model).to(fabric.device), optimiser)
    module.train()
    return module, wrapped, optimiser


def iterate(
    session: Session,
    module: Any,
    optimiser: Any,
    plain_optimiser: Optimizer,
    batch: tuple[Any, ...],
    position: Position,
    watch: LossWatch,
) -> tuple[float, dict[str, Tensor]]:
    """One iteration after `position`: gives the learning rate and the mean of each term."""
    config = session.config.method_settings.optimiser
    total = session.totals[position.step]
    rate = set_learning_rate(
        plain_optimiser, learning_rate_factor(position.iteration, total, config.warmup, config.power)
    )
    terms = _add_gradients(session, module, batch, position, watch)
    if config.clip:
        session.fabric.clip_gradients(module, optimiser, max_norm=config.clip, error_if_nonfinite=False)
    optimiser.step()
    optimiser.zero_grad()
    return rate, terms


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
            terms = terms_of(module, part, points)
            total = method.total(terms)
            fabric.backward(total / len(batch))
        # The total last: where it is bad, the term that made it so is named.
        values = {name: value.detach() for name, value in terms.items()} | {"total": total.detach()}
        watch.watch(values, position.step, position.iteration + 1, part.targets.image_ids)
        means = {name: means.get(name, 0.0) + value / len(batch) for name, value in values.items()}
    return means


def _one_pass(session: Session, task: Task, parts: Parts, prepared: Prepared) -> Batches:
    """Every image of a task about once, this process's share, as often as a method asks."""
    config, team = session.config, session.team
    iterations = -(-len(task.images) // config.training.batch_size)

    def batches() -> Iterator[Batch]:
        with closing(parts.batches(prepared.training_set, task, config, 0, team.rank, team.size)) as stream:
            for _ in range(iterations):
                yield from (part.to(session.fabric.device) for part in next(stream))

    return batches


def _record_examples(session: Session, parts: Parts, learned: LearnedStep) -> None:
    """Pictures for the report, by the first process; nothing that is learned depends on them."""
    if parts.examples is None or session.team.rank > 0:
        return
    try:
        parts.examples(learned, session.out)
    except Interrupted:
        raise
    except Exception as error:  # a run of days must not end for want of a picture
        step = learned.task.step + 1
        session.progress.say(f"the report will lack examples of step {step}: {type(error).__name__}: {error}")


def _load_checkpoint(out: Path, config: RunConfig, team: Team, progress: RunProgress) -> Checkpoint | None:
    # The first process alone puts damaged files aside, then all read the same one.
    saved = load_latest(out / CHECKPOINTS, progress.say) if team.rank == 0 else None
    team.wait()
    if team.rank > 0:
        saved = load_latest(out / CHECKPOINTS, progress.say)
    if saved is not None and saved.config != fingerprint(config):
        raise UserError(f"the checkpoints in {out} belong to other settings than its {CONFIG}: start over with --fresh")
    return saved


def where_it_is(
    method: Method,
    prepared: Prepared,
    config: RunConfig,
    saved: Checkpoint | None,
    start: Start | None,
    parts: Parts,
    device: torch.device,
) -> tuple[Position, Any, Results]:
    """Position, model and results of a run: as the checkpoint has them, else as it starts, else at the beginning."""
    if saved is None and start is not None:
        model = parts.load(start.bundle).to(device)
        return Position(len(start.results.steps)), model, start.results
    results = _no_results(prepared, config)
    if saved is None:
        return Position(), None, results
    if saved.results:
        results = Results.from_json(saved.results, source="the checkpoint's results")
    model = method.build(saved.tasks).to(device)
    model.load_state_dict(dict(saved.model))
    position = saved.position
    task = prepared.scenario.tasks[position.step] if position.iteration > 0 else None
    method.restore(task, model, {name: tensor.to(device) for name, tensor in saved.method.items()})
    return position, model, results


def _no_results(prepared: Prepared, config: RunConfig) -> Results:
    training_set, scenario = prepared.training_set, prepared.scenario
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
