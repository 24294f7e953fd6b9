"""From one process to many: lightning-fabric with processes that run one function, not the whole command again.

Spawned processes (not a second start of the script) let `run` be called from the command line, from a notebook and
from other code alike, and return its results there. Under torchrun or SLURM the processes exist already and are used.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning_fabric.strategies import DDPStrategy, Strategy
from torch import distributed
from torch.multiprocessing import ProcessRaisedException

from comastre.config.run import TrainingConfig
from comastre.errors import UserError
from comastre.text import say
from comastre.training.stopping import Diverged, Interrupted, StopRequest

Given = ParamSpec("Given")
Result = TypeVar("Result")

# Other ways of starting the processes of ddp, of which there is one here: they learn the same.
_OTHER_STARTS = ("ddp_spawn", "ddp_fork", "ddp_notebook")
_ERRORS: dict[str, type[UserError]] = {kind.__name__: kind for kind in (UserError, Interrupted, Diverged)}


def build_fabric(config: TrainingConfig) -> Fabric:
    """Devices, nodes, strategy and precision as configured, or one sentence on what this machine lacks."""
    _refuse_lonely_node(config)
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=_strategy(config),
            precision=config.precision,
        )
    except (ValueError, RuntimeError, TypeError) as error:
        raise UserError(
            f"training on {config.devices} x {config.accelerator} with strategy {config.strategy} and precision "
            f"{config.precision} is not possible here: {error}"
        ) from error


def launch(
    fabric: Fabric,
    function: Callable[Concatenate[Fabric, Given], Result],
    *args: Given.args,
    **kwargs: Given.kwargs,
) -> Result:
    """Run `function` in every process and give back what the first returned; errors of a process are raised here."""
    if not spawns(fabric):
        return fabric.launch(function, *args, **kwargs)
    _say_who_is_awaited(fabric)
    with tempfile.TemporaryDirectory() as folder, _passing_on_signals():
        try:
            work = Opaque((Path(folder), function, args, kwargs))
            returned: Opaque = fabric.launch(_reporting, work)  # type: ignore[arg-type]
            return returned.value
        except ProcessRaisedException:
            for report in sorted(Path(folder).glob("*.json")):
                kind, arguments = json.loads(report.read_text(encoding="utf-8"))
                raise _ERRORS[kind](*arguments) from None
            raise


class Team:
    """What the processes of a run agree on, over the host's network so that no GPU has to wait."""

    def __init__(self, fabric: Fabric) -> None:
        self.rank = fabric.global_rank
        self.size = fabric.world_size
        self._group: Any = distributed.new_group(backend="gloo") if self.size > 1 else None

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        if self.size == 1:
            return number
        shared = torch.tensor(number)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX, group=self._group)
        return int(shared)

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in order of rank, on every process."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._group)
        return values

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            distributed.barrier(group=self._group)


def _started_outside() -> bool:
    """Whether torchrun or SLURM started the processes, and tells each who it is."""
    return bool(TorchElasticEnvironment.detect() or SLURMEnvironment.detect())


def _refuse_lonely_node(config: TrainingConfig) -> None:
    """Several nodes meet at an address: where nothing names it, each would wait for the others for ever."""
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if name not in os.environ]
    if config.nodes > 1 and missing and not _started_outside():
        raise UserError(
            f"training.nodes is {config.nodes}, but nothing says where the nodes meet and which of them this is "
            f"({', '.join(missing)} not set): start it on every node by torchrun or SLURM, or set MASTER_ADDR, "
            "MASTER_PORT and NODE_RANK"
        )


def _say_who_is_awaited(fabric: Fabric) -> None:
    nodes = getattr(fabric.strategy, "num_nodes", 1)
    if nodes > 1:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        say(
            f"node {os.environ['NODE_RANK']} of {nodes} waits at {place} for the other "
            f"{'node' if nodes == 2 else 'nodes'}: start the same command there, each with its own NODE_RANK"
        )


def _strategy(config: TrainingConfig) -> str | Strategy:
    if config.strategy in _OTHER_STARTS:
        config = config.model_copy(update={"strategy": "ddp"})
    if config.strategy not in ("auto", "ddp") or config.devices * config.nodes == 1:
        return config.strategy
    # Unused parameters: a batch without objects, or heads of earlier tasks, may leave some without a gradient.
    return DDPStrategy(find_unused_parameters=True, start_method="popen" if _started_outside() else "spawn")


def spawns(fabric: Fabric) -> bool:
    """Whether training happens in processes that are still to be started, not in this one."""
    return isinstance(fabric.strategy, DDPStrategy) and fabric.strategy._start_method == "spawn"


class Opaque:
    """Carries a value through fabric, which looks for tensors inside dataclasses and refuses frozen ones."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _reporting(fabric: Fabric, work: Any) -> Any:
    """In a spawned process: errors meant for the user travel to the parent as data, not as a printed traceback."""
    folder, function, args, kwargs = work.value
    try:
        return Opaque(function(fabric, *args, **kwargs))
    except UserError as error:
        kind = type(error).__name__ if type(error).__name__ in _ERRORS else UserError.__name__
        partial = folder / f"{fabric.global_rank}.partial"
        partial.write_text(json.dumps([kind, error.args]), encoding="utf-8")
        partial.rename(folder / f"{fabric.global_rank}.json")
        raise


@contextmanager
def _passing_on_signals() -> Iterator[None]:
    """While children train, a signal to the parent is theirs: they stop together, save, and report."""

    others = set(multiprocessing.active_children())

    def pass_on(number: int) -> None:
        if sys.platform == "win32":  # there Ctrl-C reaches the children by itself, and os.kill would end them unsaved
            return
        for child in multiprocessing.active_children():
            if child.pid is not None and child not in others:
                os.kill(child.pid, signal.Signals(number))

    log = logging.getLogger("torch.multiprocessing.spawn")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns that it ends the other processes after an error
    try:
        with StopRequest(on_first=pass_on).listening():
            yield
    finally:
        log.setLevel(level)
