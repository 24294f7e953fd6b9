"""One continual run, all steps: the same loop for every method, and the same end after any number of restarts."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from comastre.allocator import keeping_freed_memory
from comastre.config.run import RunConfig
from comastre.config.run_files import METRICS, RESULTS, step_bundle
from comastre.evaluation.results import Results
from comastre.stream.scenario import Task
from comastre.training.checkpoint import Checkpoint, Position, explained_full_disk, restore_optimiser
from comastre.training.clock import Clock
from comastre.training.directory import claimed, has_checkpoint, refuse_unfit
from comastre.training.environment import write_environment
from comastre.training.finiteness import LossWatch
from comastre.training.iteration import adopt, begin_step, iterate, look_back, one_pass, set_up
from comastre.training.launch import Team, build_fabric, launch, spawns
from comastre.training.loggers import open_loggers, refuse_missing
from comastre.training.mending import finished_results, mend
from comastre.training.metrics import MetricsLog
from comastre.training.parts import LearnedStep, Parts, Prepared, default_parts, prepare
from comastre.training.progress import RunProgress
from comastre.training.resume import load_checkpoint, restore_randomness, where_it_is
from comastre.training.schedule import iterations_of_task
from comastre.training.session import Session
from comastre.training.start import Start, adopted_start, init_model, start_from_base
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
        return (None if fresh else finished_results(out, parts)) or launch(fabric, _train, config, out, parts, None)
    # Everything that can be wrong with settings and data is found before anything is written or moved.
    refuse_unfit(out, config, fresh)
    refuse_missing(config)
    prepared = None
    finished = None if fresh else finished_results(out, parts)
    if finished:
        start = None  # adopted now, it would lie over what was learned from it
    else:
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
            start.adopt(out)
        # Processes that are still to be started read the data themselves: it may be too large to send.
        given = None if spawns(fabric) else prepared
        # Each look loads every model; another process may have finished the run while this one waited.
        return finished or finished_results(out, parts) or launch(fabric, _train, config, out, parts, given)


def _train(fabric: Fabric, config: RunConfig, out: Path, parts: Parts, given: Prepared | None) -> Results:
    """The whole run in one process of possibly many."""
    team = Team(fabric)
    prepared = given or prepare(config, parts)
    scenario = prepared.scenario
    method = parts.method(config)
    totals = tuple(iterations_of_task(config, task) for task in scenario.tasks)
    progress = RunProgress(totals, config.training.batch_size, None, team.rank > 0, parts.title, parts.times)
    with explained_full_disk(out), keeping_freed_memory(fabric.device.type), progress:
        saved = load_checkpoint(out, config, team, progress)
        start = adopted_start(out) if saved is None else None
        position, model, results = where_it_is(method, prepared, config, saved, start, parts, fabric.device)
        first_iteration = sum(totals[: position.step]) + position.iteration
        with (
            StopRequest().listening() as stop,
            MetricsLog(out, position, first_iteration, open_loggers(config, out))
            if team.rank == 0
            else nullcontext() as log,
        ):
            session = Session(fabric, team, config, out, totals, method, progress, stop, log, parts.times)
            if team.rank == 0:
                write_environment(out, fabric.device, team.size)
            if saved is None and position.step > 0:
                model = adopt(session, scenario.tasks[position.step - 1], model, prepared)
                session.save(position, model, results)  # from here on the run can go on without `start`
            if team.rank == 0:
                if log is not None and log.damaged:
                    progress.say(f"{out / METRICS}: {log.damaged} damaged lines are left out; nothing else reads them")
                mend(out, results, _last_learned(position, model, prepared, config, fabric.device), parts, progress.say)
            for task in scenario.tasks[position.step :]:
                if position.iteration == 0:
                    saved = None  # nothing of this step can be in it
                    model = begin_step(session, task, model)
                position = _learn(session, task, model, parts, prepared, saved, position, results)
                model, seconds = look_back(session, task, model, parts, prepared, position.seconds)
                learned = LearnedStep(model.eval(), task, prepared, config, fabric.device, seconds, progress.scored)
                with stop.at_once(session.how_to_continue(position)):
                    progress.begin_evaluation(task.step, -(-len(prepared.validation_set) // team.size))
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


def _last_learned(
    position: Position, model: Any, prepared: Prepared, config: RunConfig, device: torch.device
) -> LearnedStep | None:
    """The step that has just ended where a run goes on; None in the middle of one, and at the beginning."""
    if position.step == 0 or position.iteration > 0:
        return None
    return LearnedStep(model.eval(), prepared.scenario.tasks[position.step - 1], prepared, config, device)


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
    clock = session.clock(task.step)
    if clock.is_over(position):  # killed during evaluation
        return position
    if position.iteration == 0:
        session.method.before_training(model, one_pass(session, task, parts, prepared))
    module, optimiser, plain_optimiser = set_up(session.fabric, session.method, model, session.config, task)
    if saved is not None:
        restore_optimiser(plain_optimiser, saved.optimiser)
        session.fabric.strategy.precision.load_state_dict(dict(saved.scaler))

    session.progress.begin_step(task.step, position.iteration, f"{len(task.images)} images")
    began = time.perf_counter() - position.seconds
    watch = LossWatch()
    batches = parts.batches(prepared.training_set, task, session.config, position.iteration, team.rank, team.size)
    with closing(batches):  # ends the loader's processes
        for iteration in range(position.iteration, clock.total):
            batch = next(batches)
            if saved is not None:
                # Only now, because starting the loader's processes draws random numbers too.
                restore_randomness(session, saved)
                saved = None
            rate, terms = iterate(session, module, optimiser, plain_optimiser, batch, position, watch)
            position = Position(task.step, iteration + 1, _agreed(team, clock, time.perf_counter() - began))
            over = clock.is_over(position)
            session.progress.advance(position.iteration)
            if position.iteration % config.log_every == 0 or over:
                watch.check()
                session.write_log(position, terms, rate)
            stopped_by = team.largest(session.stop.signal_number)
            if position.iteration % config.checkpoint_every == 0 or over or stopped_by:
                watch.check()
                session.save(position, model, results, plain_optimiser)
            if stopped_by:
                raise Interrupted(session.how_to_continue(position), stopped_by)
            if over:
                break
    return position


def _agreed(team: Team, clock: Clock, seconds: float) -> float:
    """The time of the slowest process, where a time limit makes all of them end together."""
    return seconds if clock.seconds is None else team.largest(round(1000 * seconds)) / 1000


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
