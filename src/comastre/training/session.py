"""One start of a run: who takes part, where it writes, and how it saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from comastre.config.run import RunConfig
from comastre.config.run_files import CHECKPOINTS, CONFIG
from comastre.distributed import average_over_processes
from comastre.evaluation.results import Results
from comastre.methods.protocol import Method
from comastre.training.checkpoint import Checkpoint, Position, optimiser_tensors, random_state, save
from comastre.training.clock import Clock, Times
from comastre.training.directory import fingerprint
from comastre.training.launch import Team
from comastre.training.metrics import MetricsLog
from comastre.training.progress import RunProgress
from comastre.training.stopping import StopRequest


@dataclass(frozen=True)
class Session:
    """What stays the same during one start of a run."""

    fabric: Fabric
    team: Team
    config: RunConfig
    out: Path
    totals: tuple[int, ...]
    """Iterations of each step."""
    method: Method
    progress: RunProgress
    stop: StopRequest
    log: MetricsLog | None
    """None on all processes but the first."""
    times: Times = field(default_factory=Times)

    def clock(self, step: int) -> Clock:
        """When a step ends."""
        return Clock(self.totals[step], self.times.training)

    def overall(self, position: Position) -> int:
        """Iterations of the whole run that are done."""
        return sum(self.totals[: position.step]) + position.iteration

    def how_to_continue(self, position: Position) -> str:
        total = self.totals[position.step]
        done = f" after {position.iteration} of {total} iterations" if total else ""
        return (
            f"stopped in step {position.step + 1}/{len(self.totals)}{done}; everything is saved, go on with: "
            f"comastre train {self.out / CONFIG} --out {self.out}"
        )

    def write_log(self, position: Position, terms: Mapping[str, Tensor], rate: float) -> None:
        """Means over all processes to the log files and the screen."""
        stacked = average_over_processes(torch.stack(list(terms.values())))
        values = {"total": 0.0} | dict(zip(terms, stacked.tolist(), strict=True))  # the total first on the screen
        self.progress.log(position.step, position.iteration, values)
        if self.log is not None:
            extra = {"learning_rate": rate, "images_per_second": self.progress.images_per_second}
            self.log.write(position, self.overall(position), values | extra)

    def save(self, position: Position, model: Any, results: Results, optimiser: Optimizer | None = None) -> None:
        """A checkpoint by the first process, while the others wait; between steps there is no optimiser to keep."""
        random_states = self.team.gather(random_state())
        if self.team.rank == 0:
            save(
                self.out / CHECKPOINTS,
                Checkpoint(
                    position=position,
                    model=model.state_dict(),
                    tasks=tuple(model.tasks),
                    method=self.method.state(),
                    optimiser={} if optimiser is None else optimiser_tensors(optimiser),
                    random_states=tuple(random_states),
                    results=results.as_json() if results.steps else {},
                    scaler=self.fabric.strategy.precision.state_dict(),
                    config=fingerprint(self.config),
                ),
            )
        self.team.wait()
