"""The inside of a step: how it begins, and one iteration after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from comastre.config.run import RunConfig
from comastre.losses.points import PointSource
from comastre.methods.protocol import Batches, Method
from comastre.nets.recompute import set_recompute
from comastre.nets.shared_batch_norm import share_batch_statistics
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task
from comastre.stream.whole_images import few_of_each_first, some_of_each, whole_images
from comastre.training.checkpoint import Position
from comastre.training.finiteness import LossWatch
from comastre.training.memory import named_when_full
from comastre.training.parts import Parts, Prepared
from comastre.training.resume import seed_everything
from comastre.training.schedule import learning_rate_factor, remember_rates, set_learning_rate
from comastre.training.session import Session
from comastre.training.start import init_model
from comastre.training.step import TrainStep, terms_of


def begin_step(session: Session, task: Task, previous: Any) -> Any:
    """The model of a step that begins, and random numbers that depend on the step and the process alone."""
    config = session.config
    seed_everything(config.seed, task.step)
    init = init_model(config.init) if task.step == 0 else None
    model = session.method.begin(task, previous, init).to(session.fabric.device)
    seed_everything(config.seed, task.step, 1 + session.team.rank)
    return model


def one_pass(session: Session, task: Task, parts: Parts, prepared: Prepared) -> Batches:
    """Every image of a task about once, this process's share, as often as a method asks."""
    config, team = session.config, session.team
    iterations = -(-len(task.images) // config.training.batch_size)

    def batches() -> Iterator[Batch]:
        with closing(parts.batches(prepared.training_set, task, config, 0, team.rank, team.size)) as stream:
            for _ in range(iterations):
                yield from (part.to(session.fabric.device) for part in next(stream))

    return batches


def each_image(session: Session, task: Task, prepared: Prepared, per_class: int | None = None) -> Batches:
    """Every image of a task once, or `per_class` of each class, whole, this process's share, as a method asks.

    Where there is a time limit, fewer of each class must do.
    """
    config, team, progress = session.config, session.team, session.progress
    until = session.times.look_until if per_class is not None else None

    def batches() -> Iterator[Batch]:
        chosen, always = task, len(task.images)
        if per_class is not None and until is None:
            chosen = some_of_each(task, prepared.training_set.presence(), per_class)
        elif per_class is not None:
            chosen, always = few_of_each_first(task, prepared.training_set.presence(), per_class)
        total = len(chosen.images)
        if total:
            progress.begin_look(task.step, -(-total // team.size), all_of_them=until is None or always == total)
        with closing(whole_images(prepared.training_set, chosen, config, team.rank, team.size)) as stream:
            for batch in stream:
                place = batch.rows.start
                if until is not None and place >= always and time.monotonic() > until:
                    progress.say(f"{progress.title(task.step)}: time is up after {place} of {total} images")
                    break
                yield batch.to(session.fabric.device)
                progress.scored(1)

    return batches


def adopt(session: Session, task: Task, model: Any, prepared: Prepared) -> Any:
    """A model that was trained elsewhere, up to and with `task`, as one of the run's method."""
    model = session.method.adopt(model, each_image(session, task, prepared)).to(session.fabric.device)
    for sentence in session.method.remarks():
        session.progress.say(sentence)
    return model


def look_back(
    session: Session, task: Task, model: Any, parts: Parts, prepared: Prepared, trained: float
) -> tuple[Any, float]:
    """The model as it is kept, after its method has looked at the images of `task` once more; and the step's seconds.

    It was `trained` for so long; looking counts where it is all the learning there is.
    """
    method, began = session.method, time.perf_counter()
    method.look_back(model, one_pass(session, task, parts, prepared))
    method.gather(model, each_image(session, task, prepared, method.images_per_class))
    model = method.after_training(task, model)
    seconds = trained if session.totals[task.step] else time.perf_counter() - began
    for sentence in method.remarks(seconds):
        session.progress.say(f"{session.progress.title(task.step)}: {sentence}")
    return model, seconds


def set_up(fabric: Fabric, method: Method, model: Any, config: RunConfig, task: Task) -> tuple[Any, Any, Optimizer]:
    """A step's module and optimiser as the devices wrap them, and the plain optimiser."""
    if fabric.world_size > 1 and config.training.sync_batch_norm:
        share_batch_statistics(model)
    set_recompute(model, config.training.recompute)
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
    clock = session.clock(position.step)
    factor = learning_rate_factor(position.iteration, clock.total, config.warmup, config.power, clock.used(position))
    rate = set_learning_rate(plain_optimiser, factor)
    with named_when_full(session.config):
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
