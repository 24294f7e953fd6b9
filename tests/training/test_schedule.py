"""How long a step takes and at which rate it learns (docs/specification.md, Training)."""

import pytest
import torch
from torch import nn

from comastre.config.run import TrainingConfig
from comastre.config.sections import OptimiserConfig
from comastre.methods.optimiser import adamw
from comastre.training.schedule import iterations_of_step, learning_rate_factor, remember_rates, set_learning_rate


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, 4, 1)
        self.head = nn.Linear(4, 4)


def test_setting_the_rate_keeps_the_groups_shares():
    optimiser = adamw([Model()], OptimiserConfig(learning_rate=1.0), 0)
    remember_rates(optimiser)
    assert set_learning_rate(optimiser, 2.0) == 2.0
    assert {(group["scale"], group["lr"]) for group in optimiser.param_groups} == {(0.1, 0.2), (1.0, 2.0)}


def test_an_optimiser_of_another_kind_keeps_the_rates_that_it_was_made_with():
    model = Model()
    groups = [
        {"params": model.backbone.parameters(), "lr": 0.25},
        {"params": model.head.parameters(), "lr": 4.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    remember_rates(optimiser)
    for factor in (0.5, 0.125):  # always of the rate at the start, not of the last one
        assert set_learning_rate(optimiser, factor) == 4.0 * factor
        assert [group["lr"] for group in optimiser.param_groups] == [0.25 * factor, 4.0 * factor]


def test_poly_schedule_by_hand():
    assert learning_rate_factor(0, 100, warmup=0, power=0.9) == 1.0
    assert learning_rate_factor(50, 100, warmup=0, power=0.9) == pytest.approx(0.5**0.9)
    assert learning_rate_factor(99, 100, warmup=0, power=0.9) == pytest.approx(0.01**0.9)


def test_warmup_rises_linearly_and_then_leaves_the_decay_alone():
    factors = [learning_rate_factor(i, 1000, warmup=4, power=0.0) for i in range(7)]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0])
    assert learning_rate_factor(10, 100, warmup=4, power=0.9) == learning_rate_factor(10, 100, warmup=0, power=0.9)


def test_iterations_of_a_step():
    config = TrainingConfig(iterations=20000, iterations_per_class=1000)
    assert [iterations_of_step(config, step, classes) for step, classes in [(0, 15), (1, 1), (2, 5)]] == [
        20000,
        1000,
        5000,
    ]
