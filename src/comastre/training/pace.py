"""How long an iteration takes on this machine: a few of them, which are then forgotten."""

from __future__ import annotations

import statistics
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from lightning_fabric import Fabric

from comastre.config.run import RunConfig
from comastre.training.finiteness import LossWatch
from comastre.training.iteration import begin_step, iterate, one_pass, set_up
from comastre.training.launch import Team, build_fabric, launch, spawns
from comastre.training.parts import Parts, Prepared, prepare
from comastre.training.progress import RunProgress
from comastre.training.resume import where_it_is
from comastre.training.schedule import iterations_of_step
from comastre.training.session import Session
from comastre.training.start import Start
from comastre.training.stopping import Interrupted, StopRequest

_FEWEST, _MOST = 3, 10  # iterations
_LONG_ENOUGH = 5.0  # seconds


def seconds_per_iteration(config: RunConfig, parts: Parts, start: Start | None = None) -> float:
    """Median over some iterations of the run's next step; nothing is written."""
    fabric = build_fabric(config.training)
    prepared = prepare(config, parts)
    return launch(fabric, _measure, config, parts, None if spawns(fabric) else prepared, start)


def _measure(fabric: Fabric, config: RunConfig, parts: Parts, given: Prepared | None, start: Start | None) -> float:
    team = Team(fabric)
    prepared = given or prepare(config, parts)
    method = parts.method(config)
    position, model, _ = where_it_is(method, prepared, config, None, start, parts, fabric.device)
    if start is not None:
        model = method.adopt(model, lambda: iter(())).to(fabric.device)
    task = prepared.scenario.tasks[position.step]
    # Never fewer than are measured: beyond its end the schedule has no rate.
    totals = tuple(
        max(_MOST + 1, iterations_of_step(config.training, each.step, len(each.new_classes)))
        for each in prepared.scenario.tasks
    )
    progress = RunProgress(totals, config.training.batch_size, quiet=team.rank > 0, title="timing")
    times: list[float] = []
    with progress, StopRequest().listening() as stop:
        session = Session(fabric, team, config, Path(), totals, method, progress, stop, None)
        model = begin_step(session, task, model)
        method.before_training(model, one_pass(session, task, parts, prepared))
        module, optimiser, plain_optimiser = set_up(fabric, method, model, config, task)
        progress.begin_step(task.step, 0, f"{len(task.images)} images")
        watch = LossWatch()
        batches = parts.batches(prepared.training_set, task, config, 0, team.rank, team.size)
        with closing(batches):
            # The number of iterations is the same in all processes, which wait for each other in each.
            while team.largest(int(len(times) < _FEWEST or _goes_on(times))):
                times.append(time.perf_counter())
                iterate(session, module, optimiser, plain_optimiser, next(batches), position, watch)
                stopped_by = team.largest(stop.signal_number)
                if stopped_by:
                    raise Interrupted("stopped while the speed of this machine was measured", stopped_by)
    times.append(time.perf_counter())
    # The first iteration is slower: memory, kernels and loader processes come into being.
    return statistics.median(after - before for before, after in pairwise(times[1:]))


def _goes_on(times: list[float]) -> bool:
    return len(times) < _MOST and times[-1] - times[0] < _LONG_ENOUGH
