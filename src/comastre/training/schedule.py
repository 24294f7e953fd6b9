"""How long a step takes, and the learning rate as a pure function of the iteration."""

from __future__ import annotations

from torch.optim import Optimizer

from comastre.config.run import RunConfig, TrainingConfig
from comastre.stream.scenario import Task, split_classes


def iterations_of_step(config: TrainingConfig, step: int, num_new_classes: int) -> int:
    """Iterations of one step: fixed for the first, in proportion to the new classes for later ones."""
    return config.iterations if step == 0 else config.iterations_per_class * num_new_classes


def iterations_of_task(config: RunConfig, task: Task) -> int:
    """Iterations of one step of a run: none where its method learns the step by looking at its images."""
    if config.method_settings.learns_at_once(task.step):
        return 0
    if config.trains_as_a_stream:
        _, *later = split_classes(len(task.new_classes), config.continual.setting)
        return config.training.iterations + config.training.iterations_per_class * sum(later)
    return iterations_of_step(config.training, task.step, len(task.new_classes))


def learning_rate_factor(iteration: int, total: int, warmup: int, power: float, by_clock: float = 0.0) -> float:
    """Share of the base learning rate at `iteration` (0-based): linear warm-up times polynomial decay.

    `by_clock` is the share of the time that is used where there is a limit: the rate follows what is ahead.
    """
    rise = min(1.0, (iteration + 1) / (warmup + 1))
    return rise * (1.0 - max(iteration / total, by_clock)) ** power


def remember_rates(optimiser: Optimizer) -> None:
    """Note in every group the rate that it was made with, of which the schedule takes shares."""
    for group in optimiser.param_groups:
        group.setdefault("base_lr", group["lr"])
        group.setdefault("scale", 1.0)


def set_learning_rate(optimiser: Optimizer, factor: float) -> float:
    """Give every group `factor` of its own rate; gives the largest before groups' own scales, for the log."""
    rates = []
    for group in optimiser.param_groups:
        rate = group["base_lr"] * factor
        group["lr"] = rate * group["scale"]
        rates.append(rate)
    return float(max(rates))
